"""The URLs of servers with the prefix of a rollout, as agents ask for them."""

from typing import TYPE_CHECKING, Any

from nemo_gym.server.rollout_prefix import maybe_rollout_id_from_run_body, rollout_path_prefix

if TYPE_CHECKING:
    from starlette.requests import Request

    from nemo_gym.client.server_client import ServerClient


class RolloutUrlsMixin:
    """Methods of agents. Without `observability_enabled` and `token_id_capture` nothing gets a prefix."""

    if TYPE_CHECKING:
        config: Any
        server_client: ServerClient

    def _model_call_capture_enabled(self) -> bool:
        return self.server_client.setting("observability_enabled") is True

    def _token_id_capture_enabled(self) -> bool:
        return bool(self.config.token_id_capture)

    def rollout_id_from_run(self, body: Any) -> str | None:
        """The id of a row's rollout, if the calls of outside programs are to be told apart by it."""
        is_wanted = self._model_call_capture_enabled() or self._token_id_capture_enabled()
        return maybe_rollout_id_from_run_body(body) if is_wanted else None

    def url_path_for_run(self, path: str, body: Any) -> str:
        """The path of a server, for calls of this row's rollout."""
        return self._prefix(self.rollout_id_from_run(body)) + path

    def base_url_for_run(self, root_url: str, body: Any) -> str:
        """The address of a server, for a program that makes this row's rollout. Add `/v1` behind it."""
        return root_url.rstrip("/") + self._prefix(self.rollout_id_from_run(body))

    def url_path_for_request(self, path: str, request: "Request") -> str:
        """The path of a server, with the prefix under which this request came in."""
        return rollout_path_prefix(request.path_params.get("rollout_id")) + path

    def resolve_model_base_url(self, server_name: str, rollout_id: str | None = None) -> str:
        """The base URL of a model server, for a program outside."""
        return f"{self.server_client.url_of(server_name)}{self._prefix(rollout_id)}/v1"

    def _prefix(self, rollout_id: str | None) -> str:
        return rollout_path_prefix(rollout_id, token_capture=self._token_id_capture_enabled())

"""Functions that model servers of the public NeMo Gym call."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from nemo_gym.config.keys import OBSERVABILITY_ENABLED_KEY_NAME
from nemo_gym.llm_api.json_codec import encode


def start_model_execution(request: Any, *, upstream_attempted: bool) -> dict[str, Any]:
    """Return where a model server notes how it has answered a call, kept with the request."""
    execution: dict[str, Any] = {"upstream_attempted": upstream_attempted}
    state = getattr(request, "state", None)
    if state is not None:
        state.model_execution = execution
    return execution


def observability_enabled_from_config(config: Mapping[str, Any] | None) -> bool:
    """True if the model calls of rollouts are to be captured."""
    return isinstance(config, Mapping) and bool(config.get(OBSERVABILITY_ENABLED_KEY_NAME))


def orjson_dispatch_response(value: Any) -> Response:
    """Return a value as a JSON response."""
    return value if isinstance(value, Response) else Response(encode(value), media_type="application/json")


def sanitize_streaming_responses_body(body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a request without what only streams have, and the namespaces of its tools by their names."""
    cleaned = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    tools, namespaces = [], {}
    for tool in body.get("tools") or ():
        if isinstance(tool, Mapping) and tool.get("type") == "namespace":
            for inner in tool.get("tools") or ():
                tools.append(inner)
                namespaces[str(inner.get("name"))] = str(tool.get("name"))
        else:
            tools.append(tool)
    if "tools" in body:
        cleaned["tools"] = tools
    return cleaned, namespaces

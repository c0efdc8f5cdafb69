"""Functions that model servers of the public NeMo Gym call."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.responses import Response

from nemo_gym.config.keys import OBSERVABILITY_ENABLED_KEY_NAME
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.server.model_call_capture import RECORD_KEY, CaptureStore, with_captured_calls


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


def merge_model_call_capture_into_record(
    record: JsonObject,
    folders: str | Path | Sequence[str | Path],
    rollout_id: str | None = None,
    *,
    include_payloads: bool = True,
) -> JsonObject:
    """Add the captured calls of a rollout to its record, from the first of the folders that has them."""
    found = [folders] if isinstance(folders, str | Path) else [*folders]
    wanted = rollout_id or str(record.get("_ng_rollout_id"))
    folder = next((each for each in found if CaptureStore(each).path(wanted).exists()), found[0])
    record[RECORD_KEY] = with_captured_calls(record, folder, wanted)[RECORD_KEY]
    if not include_payloads:
        for call in record[RECORD_KEY]["calls"]:
            call.update(request=None, response=None)
    return record

"""Names of the public NeMo Gym in modules that have code of ours: who asks them for one gets it from here."""

import importlib
from typing import Any

_SESSIONS = "nemo_gym.compat.sessions"
_MODELS = "nemo_gym.compat.model_server_functions"
_FOLDERS = "nemo_gym.compat.folder_functions"
_SERVERS = "nemo_gym.compat.server_functions"
_SANDBOXED = "nemo_gym.compat.sandboxed_agents"
NAMES: dict[str, dict[str, str]] = {
    "nemo_gym": {"_resolve_under_cwd_or_install": f"{_FOLDERS}:resolve_under_cwd_or_install"},
    "nemo_gym.base_resources_server": {
        "NEMO_GYM_MCP_SESSION_TOKEN_HEADER": f"{_FOLDERS}:NEMO_GYM_MCP_SESSION_TOKEN_HEADER",
        **{
            name: f"{_SESSIONS}:{name}"
            for name in (
                *("MCPServerMetadata", "ResourcesCloseSessionRequest", "ResourcesCloseSessionResponse"),
                *("ResourcesSeedSessionRequest", "ResourcesSeedSessionResponse", "ResourcesVerifyRequest"),
            )
        },
    },
    "nemo_gym.base_responses_api_agent": {
        name: f"{_SESSIONS}:{name}"
        for name in (
            *("AgentCloseSessionRequest", "AgentCloseSessionResponse", "AgentSeedSessionRequest"),
            *("AgentSeedSessionResponse", "AgentSessionSetupError", "AgentSessionState", "_AgentSessionRecord"),
        )
    },
    "nemo_gym.base_responses_api_model": {
        "_CaptureMiddleware": "nemo_gym.compat.fastapi_servers:RolloutContextMiddleware",
        "_orjson_dispatch_response": f"{_MODELS}:orjson_dispatch_response",
        "merge_model_call_capture_into_record": f"{_MODELS}:merge_model_call_capture_into_record",
        "observability_enabled_from_config": f"{_MODELS}:observability_enabled_from_config",
        "start_model_execution": f"{_MODELS}:start_model_execution",
    },
    "nemo_gym.server_utils": {
        "_GLOBAL_AIOHTTP_CLIENT": f"{_SERVERS}:GLOBAL_AIOHTTP_CLIENT",
        "_GLOBAL_AIOHTTP_CLIENT_QUEUE_TELEMETRY": f"{_SERVERS}:GLOBAL_AIOHTTP_CLIENT_QUEUE_TELEMETRY",
        "set_global_aiohttp_client": f"{_SERVERS}:set_global_aiohttp_client",
    },
    "nemo_gym.sandbox": {
        "AsyncSandboxCompose": f"{_SANDBOXED}:AsyncSandboxCompose",
    },
    "nemo_gym.sandbox.agent_tools": {
        "get_server_url": f"{_SERVERS}:get_server_url",
        **{
            name: f"{_SANDBOXED}:{name}"
            for name in (
                "restricted_network_policy",
                "sandbox_server_url",
                "seed_mcp_servers",
                "verify_agent_response",
            )
        },
    },
}


def public_name(module: str, name: str) -> Any:
    """Return what the public NeMo Gym has under this name in this module, or raise AttributeError."""
    place = NAMES.get(module, {}).get(name)
    if place is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    source, _, attribute = place.partition(":")
    return getattr(importlib.import_module(source), attribute)

"""Names with a meaning in a configuration, and functions to walk one of plain dicts and lists. Importing this
costs nothing."""

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, get_args

ServerType = Literal["responses_api_models", "resources_servers", "responses_api_agents", "environment_servers"]
"""The key below a server's name: what the server is, and the folder its code is in. `environment_servers` are those of
the public NeMo Gym, which play a row with an agent and its environment: `nemo_gym.compat.environment_server`."""

SERVER_TYPES: tuple[ServerType, ...] = get_args(ServerType)

KeyPath = tuple[str | int, ...]
"""The path of a value in a configuration: the keys and list indices that lead to it."""

NEMO_GYM_MCP_METADATA_KEY = "mcp"
"""The field of `/seed_session` replies that says how to call the tools of an environment over MCP."""

DIRECTIVES = ("_inherit_from", "_copy", "_delete_key")
DUMMY_MODEL = "dummy_model"
ENVIRONMENT_SERVERS = "environment_servers"
ALIASES_KEY_NAME = "environment_server_aliases"
"""The key under which a loaded configuration lists its environment servers, each with its agent."""
"""Keys that only configurations of the public NeMo Gym use: `nemo_gym.compat.config_directives`."""

NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME = "NEMO_GYM_CONFIG_DICT"
NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME = "NEMO_GYM_CONFIG_PATH"

CONFIG_PATHS_KEY_NAME = "config_paths"
ENTRYPOINT_KEY_NAME = "entrypoint"
DEFAULT_HOST_KEY_NAME = "default_host"
HEAD_SERVER_KEY_NAME = "head_server"
DISALLOWED_PORTS_KEY_NAME = "disallowed_ports"
HEAD_SERVER_DEPS_KEY_NAME = "head_server_deps"
PYTHON_VERSION_KEY_NAME = "python_version"
USE_ABSOLUTE_IP_KEY_NAME = "use_absolute_ip"
PIP_INSTALL_VERBOSE_KEY_NAME = "pip_install_verbose"
UV_PIP_SET_PYTHON_KEY_NAME = "uv_pip_set_python"
SKIP_VENV_IF_PRESENT_KEY_NAME = "skip_venv_if_present"
HF_TOKEN_KEY_NAME = "hf_token"  # noqa: S105 -- the name of a key, not a secret
RAY_HEAD_NODE_ADDRESS_KEY_NAME = "ray_head_node_address"
PORT_RANGE_LOW_KEY_NAME = "port_range_low"
PORT_RANGE_HIGH_KEY_NAME = "port_range_high"

NEMO_GYM_RESERVED_TOP_LEVEL_KEYS = [
    *(CONFIG_PATHS_KEY_NAME, ENTRYPOINT_KEY_NAME, DEFAULT_HOST_KEY_NAME, HEAD_SERVER_KEY_NAME),
    *(DISALLOWED_PORTS_KEY_NAME, HEAD_SERVER_DEPS_KEY_NAME, PYTHON_VERSION_KEY_NAME, USE_ABSOLUTE_IP_KEY_NAME),
    *(PIP_INSTALL_VERBOSE_KEY_NAME, UV_PIP_SET_PYTHON_KEY_NAME, SKIP_VENV_IF_PRESENT_KEY_NAME, HF_TOKEN_KEY_NAME),
    *(RAY_HEAD_NODE_ADDRESS_KEY_NAME, PORT_RANGE_LOW_KEY_NAME, PORT_RANGE_HIGH_KEY_NAME),
]
"""Never the name of a server."""

USE_RUNNING_SERVERS_KEY_NAME = "use_running_servers"
"""Use the servers of a running `ng_run`, if it has the same configuration, and start none."""
ERROR_ON_ALMOST_SERVERS_KEY_NAME = "error_on_almost_servers"
POLICY_BASE_URL_KEY_NAME = "policy_base_url"
POLICY_API_KEY_KEY_NAME = "policy_api_key"
POLICY_MODEL_NAME_KEY_NAME = "policy_model_name"

SETTINGS_KEYS = frozenset(
    (
        *("allowed_hosts", "compute_memory_mb", "compute_workers", "connect_timeout_s", "default_host"),
        *("error_on_almost_servers", "global_aiohttp_connector_limit", "global_aiohttp_connector_limit_per_host"),
        *("header_timeout_s", "max_blocked_s", "max_body_bytes", "max_body_keys", "max_connections"),
        *(
            "max_decompressed_response_bytes",
            "max_header_bytes",
            "max_response_bytes",
            "max_response_header_bytes",
            "max_response_headers",
        ),
        *("max_sessions", "max_unread_bytes", "num_workers", "port_range_high", "port_range_low", "profiling_enabled"),
        *("profiling_results_dirpath", "run_token", "skip_venv_if_present", "strict_config", "tracing_enabled"),
        *("tracing_endpoint", "tracing_sample_ratio", "use_absolute_ip", "use_running_servers"),
        *("uv_cache_dir", "uv_venv_dir"),
        *(POLICY_BASE_URL_KEY_NAME, POLICY_API_KEY_KEY_NAME, POLICY_MODEL_NAME_KEY_NAME),
    )
)
"""Top-level keys with one value each. Here, so that a misspelt one is noticed without importing who reads it."""

VOLATILE_KEYS = frozenset(("host", "port", "num_workers", "isolation", "datasets"))
"""Settings of a server that do not change its replies."""

TASK_INDEX_KEY_NAME = "_ng_task_index"
ROLLOUT_INDEX_KEY_NAME = "_ng_rollout_index"
ATTEMPT_INDEX_KEY_NAME = "_ng_attempt_index"
ROLLOUT_ID_KEY_NAME = "_ng_rollout_id"
AGENT_REF_KEY_NAME = "agent_ref"
TASK_SOURCE_KEY_NAME = "task_source"
ENVIRONMENT_SERVER_KEY_NAME = "_ng_environment_server"
SKILLS_REF_KEY_NAME = "skills_ref"
RESPONSES_CREATE_PARAMS_KEY_NAME = "responses_create_params"
RESPONSE_KEY_NAME = "response"
"""Fields of rows as they are sent to an agent, and of records."""

ROLLOUT_PATH_PREFIX = "ng-rollout"
TOKEN_CAPTURE_PATH_SEGMENT = "training-token-capture"  # noqa: S105 -- a part of a path

NG_FAILURE_CLASS_KEY = "_ng_failure_class"
NG_TERMINAL_KEY = "_ng_failure_terminal"
NG_NO_PERSIST_KEY = "_ng_no_persist"
NG_JUDGE_ERROR_KEY = "_ng_failure_judge_error"
NG_FAILURE_MESSAGE_KEY = "_ng_failure_message"
"""Fields of an agent's reply that mark it as a failure."""
MASK_SAMPLE, FAILURE_KIND, FAILURE_REASON = "mask_sample", "failure_kind", "failure_reason"
"""Fields of a verifier's reply: whether the rollout could not be scored, and why."""

OBSERVABILITY_ENABLED_KEY_NAME = "observability_enabled"
TOKEN_ID_CAPTURE_BLOCK = "token_id_capture"  # noqa: S105 -- the name of a key, not a secret
CACHE_DIR_KEY_NAME = "cache_dir"
RESULTS_DIR_KEY_NAME = "results_dir"
TASK_INDEX_FIELD = "_task_index"
"""Our own spelling of TASK_INDEX_KEY_NAME in records, which have both."""

ROW_FIELDS = "_row_fields"
"""The names of the fields that the collector copied from the row. They are not results."""

DEFAULT_HOST = "127.0.0.1"
DEFAULT_HEAD_SERVER_PORT = 11000
DEFAULT_PORT_RANGE_LOW = 10001
DEFAULT_PORT_RANGE_HIGH = 20000


def nodes(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """The value and everything in it, each with its path."""
    yield path, value
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from nodes(item, (*path, key))


def leaves(value: Any) -> list[tuple[KeyPath, Any]]:
    """Every scalar with its path."""
    return [(path, item) for path, item in nodes(value) if not isinstance(item, Mapping | list)]


def map_leaves(function: Callable[[KeyPath, Any], Any], value: Any, path: KeyPath = ()) -> Any:
    """A copy in which each scalar is what `function` returns for its path and itself."""
    if isinstance(value, dict):
        return {key: map_leaves(function, item, (*path, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [map_leaves(function, item, (*path, index)) for index, item in enumerate(value)]
    return function(path, value)


def value_at(values: Any, path: KeyPath, default: Any = None) -> Any:
    """The value at `path`, or the default."""
    try:
        for key in path:
            values = values[key]
    except (KeyError, IndexError, TypeError):
        return default
    return values


def dotted(path: KeyPath) -> str:
    """A key path as it is written on the command line."""
    return ".".join(map(str, path))


class Change(NamedTuple):
    """A place where two values differ. What is not there is None."""

    path: KeyPath
    before: Any
    now: Any


def changes(before: Any, now: Any, path: KeyPath = ()) -> Iterator[Change]:
    """Every place where two values of mappings, lists and scalars differ, the innermost ones."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys((*before, *now)):
            yield from changes(before.get(key), now.get(key), (*path, key))
    elif isinstance(before, list) and isinstance(now, list):
        for index, (one, other) in enumerate(zip_longest(before, now)):
            yield from changes(one, other, (*path, index))
    elif before != now:
        yield Change(path, before, now)


class ServerBlock(NamedTuple):
    """A server as resolved settings have it: `<name>: {<server_type>: {<implementation>: <config>}}`."""

    name: str
    server_type: ServerType
    implementation: str
    config: Any


def blocks_in(settings: Mapping[Any, Any]) -> Iterator[ServerBlock]:
    """The server blocks among resolved settings, valid or not."""
    for name, block in settings.items():
        for server_type in SERVER_TYPES:
            inner = block.get(server_type) if isinstance(block, Mapping) else None
            for implementation, config in inner.items() if isinstance(inner, Mapping) else ():
                yield ServerBlock(str(name), server_type, str(implementation), config)

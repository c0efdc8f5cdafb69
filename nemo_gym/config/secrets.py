"""Decide which values of a configuration are secret, and remember them for all output of this process.

Secret are: text from `env.yaml`, unless its key is known to be harmless; values whose key is named like a secret; and
user info and query values in URLs. Where configuration is shown, secrets are masked by their position. In log lines
and error texts, values of eight characters or more are masked wherever they appear. Records and calls are verbatim.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_plus, urlsplit

from nemo_gym.common.redaction import MASK as MASK
from nemo_gym.common.redaction import MIN_SECRET_LENGTH, Redactor, set_process_redactor
from nemo_gym.config.keys import SERVER_TYPES, KeyPath, blocks_in, leaves, map_leaves, value_at

if TYPE_CHECKING:
    from omegaconf import DictConfig

PUBLIC_KEYS = frozenset(
    (
        *("config_paths", "entrypoint", "default_host", "head_server", "python_version", "ray_head_node_address"),
        *("hf_organization", "hf_collection_name", "hf_collection_slug", "hf_dataset_prefix", "mlflow_tracking_uri"),
        *("agent_name", "resources_server", "resources_server_name", "name", "record", "replay", "resume"),
        *("num_workers", "worker_host", "num_repeats", "tokenizer", "log_to", "tokens_output"),
        *("responses_create_params", "format", "select", "reasoning", "mode", "data_source", "ignored_checks"),
        *("dataset_name", "version", "repo_id", "split", "revision", "commit_message", "commit_description"),
        *("tracing_endpoint", "prompt", "system", "messages", "tools", "fields", "resource_config_path"),
        *("server_host", "where", "sort", "search", "category", "baseline"),
        *("latency", "faults", "overrides", "prepare_script_args", "prompt_config", "uv_venv_dir"),
        *("environment", "model", "script", "agent", "config", "dataset", "output", "kind", "before", "after"),
        *(
            "judge",
            "user",
            "category",
            "examples",
            "agent_map",
            "fan_out",
            "environment_routing_mode",
            "environment_server_name",
        ),
        *("environment_server_routes", "tags", "tag", "folder"),
    )
)
"""Top-level keys whose text is not secret even if it is in `env.yaml`: settings, and parameters of commands."""

PUBLIC_BLOCK_KEYS = frozenset(
    ("entrypoint", "host", "domain", "isolation", "num_workers", "datasets", "description", "value", "verified_url")
)
"""Keys of a server block whose text is not secret."""

_ALWAYS_SECRET = re.compile(r"secret|password|passwd|passphrase|api_?key|credential|authorization")
_SECRET_IF_TEXT = re.compile(r"token|(^|_)(key|cookies?)$")
_NOT_A_SECRET_TOKEN = re.compile(r"tokeni[sz]\w*|(bos|eos|pad|unk|sep|cls|mask|stop)_token|send_tokens|tokens_output")
_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-.\s]")
_PUBLIC_NAME = re.compile(r"(^|_)(model_name|base_url|fpath|dirpath)$")
_PUBLIC_BLOCK_NAME = re.compile(r"(^|_)(model|model_name|base_url)$")
_TRACER = "\0nemo-gym-secret\0"


@dataclass(frozen=True)
class Secrets:
    """The secrets of a configuration, by value and by position."""

    values: frozenset[str] = frozenset()

    positions: frozenset[KeyPath] = frozenset()
    """Paths at which the configuration has a short value from `env.yaml`, itself or by interpolation."""

    def __or__(self, other: "Secrets") -> "Secrets":
        return Secrets(self.values | other.values, self.positions | other.positions)

    def to_json(self) -> dict[str, Any]:
        return {"values": sorted(self.values), "positions": [list(path) for path in self.positions]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Secrets":
        return cls(frozenset(data["values"]), frozenset(map(tuple, data["positions"])))


_process_secrets = Secrets()


def set_process_secrets(secrets: Secrets) -> None:
    """Mask these secrets in all that this process logs or sends as an error."""
    global _process_secrets  # noqa: PLW0603 - one per process, like its configuration
    _process_secrets = secrets
    set_process_redactor(Redactor(secrets.values))


def process_secrets() -> Secrets:
    return _process_secrets


def is_secret(key: str, value: object) -> bool:
    """True if the name `key` makes the scalar `value` a secret.

    `max_tokens: 512`, `tokenizer: Qwen` and an empty `api_key` are not secret; `password: 123456` is.
    """
    if value is None or isinstance(value, bool) or value == "":
        return False
    name = _WORD_BOUNDARY.sub("_", key).lower()
    if _ALWAYS_SECRET.search(name):
        return True
    return isinstance(value, str) and bool(_SECRET_IF_TEXT.search(_NOT_A_SECRET_TOKEN.sub("", name)))


def is_secret_at(path: KeyPath, value: object) -> bool:
    """True if `value` is secret because of the keys that lead to it, or is a short secret of this process."""
    return _is_named_secret(path, value) or (path in _process_secrets.positions and isinstance(value, str))


def _is_named_secret(path: KeyPath, value: object) -> bool:
    """True for a key that is named like a secret, or is inside one. The name of a server does not count."""
    keys = path[3:] if len(path) > 1 and path[1] in SERVER_TYPES else path
    return any(is_secret(key, value) for key in keys if isinstance(key, str))


def find_secrets(config: "DictConfig | Mapping[str, Any]", dotenv: Mapping[Any, Any] | None = None) -> Secrets:
    """The secrets of a merged configuration. `dotenv` is the content of `env.yaml`."""
    plain = _resolve_where_possible(config)
    values = leaves(plain)
    named = {str(value) for path, value in values if _is_named_secret(path, value)}
    blocks = blocks_in(plain) if isinstance(plain, Mapping) else ()
    public = {*SERVER_TYPES, *(name for block in blocks for name in (block.name, block.implementation))}
    public |= {value for path, value in values if isinstance(value, str) and is_public(path)}
    own: set[str] = set()
    short: set[KeyPath] = set()
    for path, text in leaves(dotenv or {}):
        value = value_at(plain, path)
        if isinstance(text, str) and not is_public(path) and not (isinstance(value, str) and value in public):
            found = {item for item in (value, text) if isinstance(item, str) and "${" not in item}
            own |= found
            short |= {path} if any(len(item.strip()) < MIN_SECRET_LENGTH for item in found) else set()
    urls = {part for _, value in values if isinstance(value, str) for part in url_secrets(value)}
    return Secrets(frozenset(named | (own - public) | urls) - {""}, _positions_of(config, short))


def masked(config: Any) -> Any:
    """A copy of a config, or of a part of it, without its secrets. Interpolations stay as they are written."""
    redactor = Redactor((_process_secrets | find_secrets(config or {})).values)

    def mask(path: KeyPath, value: Any) -> Any:
        if _is_named_secret(path, value):
            return MASK
        if not isinstance(value, str):
            return value
        return MASK if path in _process_secrets.positions and "${" not in value else redactor.text(value)

    shown = map_leaves(mask, _as_written(config))
    if isinstance(config, dict | list):
        return shown
    from omegaconf import OmegaConf

    return OmegaConf.create(shown)


def is_public(path: KeyPath) -> bool:
    """True if the value at `path` is known to be harmless, such as the name of a model or of a file to write."""
    root = str(path[0])
    if root in PUBLIC_KEYS or (all(isinstance(key, int) for key in path[1:]) and _PUBLIC_NAME.search(root)):
        return True
    if len(path) < 4 or path[1] not in SERVER_TYPES:
        return False
    return path[3] in PUBLIC_BLOCK_KEYS or bool(_PUBLIC_BLOCK_NAME.search(str(path[3])))


def url_secrets(value: str) -> Iterator[str]:
    """User name, password and query values of a URL, as it has them and decoded."""
    try:
        url = urlsplit(value) if "://" in value else None
    except ValueError:
        return
    if url is None:
        return
    user, password = url.username or "", url.password or ""
    for text in (user, password, f"{user}:{password}" if password else ""):
        yield from {text, unquote(text)} - {""}
    for name, _, item in (pair.partition("=") for pair in url.query.split("&")):
        if "version" not in name.lower() and (len(item) >= MIN_SECRET_LENGTH or is_secret(name, item)):
            yield from {item, unquote(item), unquote_plus(item)}


def _positions_of(config: Any, paths: set[KeyPath]) -> frozenset[KeyPath]:
    """Find the values at `paths` after interpolation: put a tracer in their place, and see where it turns up."""
    if not paths:
        return frozenset()
    from omegaconf import OmegaConf

    def trace(path: KeyPath, value: Any) -> Any:
        return _TRACER if path in paths and isinstance(value, str) else value

    traced = _resolve_where_possible(OmegaConf.create(map_leaves(trace, _as_written(config))))
    return frozenset(path for path, value in leaves(traced) if isinstance(value, str) and _TRACER in value)


def _as_written(config: Any) -> Any:
    """Plain dicts and lists, with interpolations as they are written."""
    if isinstance(config, dict | list):
        return config
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=False)


def _resolve_where_possible(config: Any, outer: tuple[Any, ...] = ()) -> Any:
    """Plain dicts and lists. An interpolation that has no value, or is circular, becomes None: it holds no secret."""
    if config is None or isinstance(config, dict | list | str | int | float):
        return config
    from omegaconf import DictConfig, ListConfig
    from omegaconf.errors import OmegaConfBaseException

    def value_at(key: Any) -> Any:
        try:
            return _resolve_where_possible(config[key], (*outer, config))
        except OmegaConfBaseException:
            return None

    if any(config is container for container in outer):
        return None
    if isinstance(config, DictConfig):
        return {key: value_at(key) for key in config}
    return [value_at(index) for index in range(len(config))] if isinstance(config, ListConfig) else config

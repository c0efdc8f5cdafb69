"""Keep secrets out of what is shown: dumps, logs, manifests, endpoints.

A value is secret because of the name of its key; once known, it is replaced wherever else it appears.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from nemo_gym.config.keys import ENTRYPOINT_KEY_NAME, SERVER_TYPES

MASK = "****"

MIN_SECRET_LENGTH = 6
"""A shorter value is not looked for inside other text: it would hide innocent words."""

_ALWAYS_SECRET = re.compile(r"secret|password|passwd|passphrase|api_?key|credential|authorization")
_SECRET_IF_TEXT = re.compile(r"token|(^|_)key$")
_NOT_A_SECRET_TOKEN = re.compile(r"tokeni[sz]\w*|(bos|eos|pad|unk|sep|cls|mask|stop)_token")
_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-.\s]")
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*):[^/\s]*@")
_URL_PARAMETER = re.compile(r"(?<=[?&])([\w.-]+)=([^&#\s]+)")
_SERVER_KEYS = frozenset((*SERVER_TYPES, ENTRYPOINT_KEY_NAME))


def is_secret(key: str, value: object) -> bool:
    """Whether the name `key` makes the scalar `value` a secret.

    `max_tokens: 512`, `tokenizer: Qwen` and an empty `api_key` are none; `password: 123456` is one.
    """
    if value is None or isinstance(value, bool) or value == "":
        return False
    name = _WORD_BOUNDARY.sub("_", key).lower()
    if _ALWAYS_SECRET.search(name):
        return True
    return isinstance(value, str) and bool(_SECRET_IF_TEXT.search(_NOT_A_SECRET_TOKEN.sub("", name)))


def masked(config: Any) -> Any:
    """A copy of a config, or of a part of it, without its secrets. Interpolations stay as they are written."""
    secrets = secret_values(config)
    if isinstance(config, dict | list):
        return _mask(config, "", secrets)
    from omegaconf import OmegaConf

    return OmegaConf.create(_mask(OmegaConf.to_container(config, resolve=False), "", secrets))


def secret_values(config: Any) -> frozenset[str]:
    """The secrets of a config that are long enough to be looked for in other text."""
    values = _secrets(_resolved_where_possible(config), "")
    return frozenset(text for text in map(str, values) if len(text) >= MIN_SECRET_LENGTH)


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without the given secrets, URL passwords and URL parameters that are named like a secret."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _URL_PASSWORD.sub(rf"\1:{MASK}@", text)
    return _URL_PARAMETER.sub(_mask_parameter, text)


def _mask_parameter(match: re.Match[str]) -> str:
    name, value = match.groups()
    return f"{name}={MASK if is_secret(name, value) else value}"


def _mask(value: Any, key: str, secrets: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {name: _mask(item, _key_of(key, name, item), secrets) for name, item in value.items()}
    if isinstance(value, list):
        return [_mask(item, _key_of(key, key, item), secrets) for item in value]
    if is_secret(key, value):
        return MASK
    return mask_text(value, secrets) if isinstance(value, str) else value


def _secrets(value: Any, key: str) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _secrets(item, _key_of(key, name, item))
    elif isinstance(value, list):
        for item in value:
            yield from _secrets(item, _key_of(key, key, item))
    elif is_secret(key, value):
        yield value


def _key_of(outer: str, inner: Any, item: Any) -> str:
    """The name that decides about `item`: what is inside `credentials: {...}` is secret whatever it is called there.

    A server whose name sounds like a secret is not.
    """
    if isinstance(item, dict) and _SERVER_KEYS.intersection(item):
        return ""
    return outer if is_secret(outer, "text") else str(inner)


def _resolved_where_possible(config: Any, within: tuple[Any, ...] = ()) -> Any:
    """Plain dicts and lists. An interpolation that leads nowhere, or in a circle, holds no secret: it becomes None."""
    if config is None or isinstance(config, dict | list | str | int | float):
        return config
    from omegaconf import DictConfig, ListConfig
    from omegaconf.errors import OmegaConfBaseException

    def value_at(key: Any) -> Any:
        try:
            return _resolved_where_possible(config[key], (*within, config))
        except OmegaConfBaseException:
            return None

    if any(config is outer for outer in within):
        return None
    if isinstance(config, DictConfig):
        return {key: value_at(key) for key in config}
    return [value_at(index) for index in range(len(config))] if isinstance(config, ListConfig) else config

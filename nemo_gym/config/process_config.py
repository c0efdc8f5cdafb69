"""The configuration of the servers in this process, for server code that calls `get_global_config_dict()`.

Published by the stack that holds the servers, in a worker as in a command that holds them itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

_published: list[Callable[[], "DictConfig"]] = []


@contextmanager
def publish_config(settings: dict[str, Any]) -> Iterator[None]:
    """Let `get_global_config_dict()` return these settings inside the block."""

    @cache  # made only if somebody asks: most servers do not
    def config() -> "DictConfig":
        from omegaconf import OmegaConf

        return OmegaConf.create(settings)

    _published.append(config)
    try:
        yield
    finally:
        _published.remove(config)


def process_config() -> "DictConfig | None":
    """What was published last, if anything."""
    return _published[-1]() if _published else None

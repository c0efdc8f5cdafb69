"""The configuration of the servers in this process, for server code that calls `get_global_config_dict()`.

Published by the stack that holds the servers, in a worker as in a command that holds them itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig


class _Published:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings

    @cached_property
    def config(self) -> "DictConfig":
        """Made only if somebody asks: most servers do not."""
        from omegaconf import OmegaConf

        return OmegaConf.create(self._settings)


_published: list[_Published] = []


@contextmanager
def publish_config(settings: dict[str, Any]) -> Iterator[None]:
    """Let `get_global_config_dict()` return these settings inside the block."""
    published = _Published(settings)
    _published.append(published)
    try:
        yield
    finally:
        _published.remove(published)


def process_config() -> "DictConfig | None":
    """What was published last, if anything."""
    return _published[-1].config if _published else None

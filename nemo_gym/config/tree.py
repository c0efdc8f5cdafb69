"""Walking configurations that are plain dicts and lists: all that is in them, its paths, and the server blocks."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from nemo_gym.config.keys import SERVER_TYPES, KeyPath, ServerType


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

"""Walking configurations: plain dicts and lists, and the paths of what is in them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nemo_gym.config.keys import KeyPath


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

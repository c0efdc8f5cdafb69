"""JSON of whole models: the bytes that pydantic would write, in half the time.

orjson writes the fields of a model if its class has no serializer, alias or computed field of its own and all that is
in it is plain JSON or one of the types that travel here. Everything else is left to pydantic.
"""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import orjson
from pydantic import BaseModel, RootModel

_WIRE_TYPES = __name__.rpartition(".")[0] + "."
_LEFT_TO_PYDANTIC = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
"""pydantic writes these in another way."""
_CHANGES_JSON = ("ser_json_inf_nan", "json_encoders")
_CHANGES_FIELD = ("serialization_alias", "serialization_exclude", "serialization_exclude_if", "computed_fields")
_NOT_SCHEMAS = frozenset(("cls", "config", "default", "default_factory", "function", "metadata", "serialization"))


def encode_model(value: BaseModel) -> bytes:
    """JSON of a model, compact, with all its fields."""
    if has_plain_json(type(value)):
        try:
            return orjson.dumps(_fields(value), default=_wire_fields, option=_LEFT_TO_PYDANTIC)
        except TypeError:  # also what orjson raises for a value it cannot write
            pass
    return value.__pydantic_serializer__.to_json(value, warnings=False)


def _fields(value: BaseModel) -> dict[str, Any]:
    extra = value.__pydantic_extra__
    return {**value.__dict__, **extra} if extra else value.__dict__


def _wire_fields(value: Any) -> dict[str, Any]:
    """The fields of a model inside another. Of any other class pydantic writes what is declared."""
    kind: type = type(value)
    if not _is_plain_wire_type(kind):
        raise TypeError(f"{kind.__name__} is left to pydantic")
    extra = value.__pydantic_extra__
    return {**value.__dict__, **extra} if extra else value.__dict__


@lru_cache(maxsize=512)
def _is_plain_wire_type(kind: type) -> bool:
    return kind.__module__.startswith(_WIRE_TYPES) and has_plain_json(kind)


@lru_cache(maxsize=512)
def has_plain_json(kind: type) -> bool:
    """True for a class of models whose JSON has the names and values of its fields."""
    if not issubclass(kind, BaseModel) or issubclass(kind, RootModel):
        return False
    if any(isinstance(each, cached_property) for base in kind.__mro__ for each in vars(base).values()):
        return False  # their values are among the fields of an instance
    return not any(name in kind.model_config for name in _CHANGES_JSON) and _is_plain(
        kind.__pydantic_core_schema__, kind
    )


def _is_plain(schema: Any, kind: type) -> bool:
    """True if nothing in the schema, but for other models in it, changes how a value is written."""
    if isinstance(schema, list | tuple):
        return all(_is_plain(each, kind) for each in schema)
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "model" and schema["cls"] is not kind:
        return True  # an instance of it is looked at when it is written
    if schema.get("serialization", {"type": "any"})["type"] != "any" or any(map(schema.get, _CHANGES_FIELD)):
        return False
    return all(_is_plain(each, kind) for name, each in schema.items() if name not in _NOT_SCHEMAS)

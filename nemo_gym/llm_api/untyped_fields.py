"""Which fields of a type take a value of any class. A handler reads such a value as its caller sent it, so it must be
plain JSON, whether the call is direct or over HTTP."""

from collections import abc
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, PlainValidator, RootModel, WrapValidator
from pydantic.fields import FieldInfo

_WIRE_TYPES = __name__.rpartition(".")[0] + "."
_ANY_CLASS = (
    *(Any, object, dict, list, tuple, set, frozenset),
    *(abc.Mapping, abc.MutableMapping, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable),
)
_READ_RAW = (BeforeValidator, WrapValidator, PlainValidator)
_RAW_MODES = frozenset(("before", "wrap", "plain"))
_ALL = "*"
"""How pydantic names all fields in a validator."""


class UntypedFields(NamedTuple):
    """The fields of a type that take a value of any class, or that a validator reads before they are checked."""

    names: tuple[str, ...]
    typed: frozenset[str] | None = None
    """All other fields, if the type also keeps fields that it does not declare."""

    def of(self, record: Mapping[str, Any]) -> Iterable[str]:
        """Those of a record, which need not have all of them."""
        return self.names if self.typed is None else record.keys() - self.typed


_NOTHING_TYPED = UntypedFields((), frozenset())


def untyped_fields(kind: Any) -> UntypedFields | None:
    """Those of a type; None if it has none."""
    if not _is_model(kind):
        return _NOTHING_TYPED if _is_untyped(kind, set()) else None
    if _is_left_alone(kind):
        return None
    raw, fields = _raw_fields(kind), kind.__pydantic_fields__
    if _ALL in raw:
        return _NOTHING_TYPED
    names = tuple(name for name, field in fields.items() if name in raw or _takes_any(field, set()))
    if kind.model_config.get("extra") == "allow":
        return UntypedFields(names, frozenset(fields.keys() - names))
    return UntypedFields(names) if names else None


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _is_left_alone(kind: type[BaseModel]) -> bool:
    """True for requests and replies of LLM APIs: they are made of JSON, and are too frequent to be looked at."""
    return kind.__module__.startswith(_WIRE_TYPES) or issubclass(kind, RootModel)


def _is_untyped(kind: Any, seen: set[type]) -> bool:
    """True if a value of this type may be, or contain, an object of any class. `seen` are models that were visited."""
    if isinstance(kind, TypeVar) or any(kind is each for each in _ANY_CLASS):
        return True
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _is_untyped(arguments[0], seen)
    if origin is None:
        return _is_model(kind) and _is_untyped_model(kind, seen)
    return origin is not Literal and (not arguments or any(_is_untyped(each, seen) for each in arguments))


def _is_untyped_model(kind: type[BaseModel], seen: set[type]) -> bool:
    if kind in seen or _is_left_alone(kind):
        return False
    seen.add(kind)
    if kind.model_config.get("extra") == "allow" or _raw_fields(kind):
        return True
    return any(_takes_any(field, seen) for field in kind.__pydantic_fields__.values())


def _takes_any(field: FieldInfo, seen: set[type]) -> bool:
    return _is_untyped(field.annotation, seen) or any(isinstance(each, _READ_RAW) for each in field.metadata)


def _raw_fields(kind: type[BaseModel]) -> set[str]:
    """The fields that a validator of the model reads before they are checked."""
    of_model, of_fields = kind.__pydantic_decorators__.model_validators, kind.__pydantic_decorators__.field_validators
    if any(each.info.mode in _RAW_MODES for each in of_model.values()):
        return {_ALL}
    return {name for each in of_fields.values() if each.info.mode in _RAW_MODES for name in each.info.fields}

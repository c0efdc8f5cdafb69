"""JSON at the edges: decode a body once, from bytes straight into its type; encode once; between servers of one worker
hand the object over. `decode` gives the same model from an object as from the bytes that object would encode to."""

import json
import marshal
from collections import abc
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar, get_args, get_origin
from weakref import ref

import orjson
from pydantic import BaseModel, BeforeValidator, PlainValidator, RootModel, TypeAdapter, ValidationError, WrapValidator
from pydantic.fields import FieldInfo
from pydantic_core import from_json

from nemo_gym.llm_api.tokens import TokenArray

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


def _wire_fields(value: Any) -> dict[str, Any] | list[Any]:
    """The fields of a model inside another. Of any other class pydantic writes what is declared."""
    kind: type = type(value)
    if kind is TokenArray:
        numbers: list[Any] = value.tolist()
        return numbers
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


T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Body: TypeAlias = bytes | tuple[bytes, ...]
"""What a request carries, whole or in pieces that follow one another."""
_RECORDS = (BaseModel, Mapping)
_set = object.__setattr__
PIECE_BYTES = 2**14
"""Joined items are copied until they have this size; from then on the kernel alone copies them."""
_SCALARS = frozenset((int, float, str, bool, bytes, type(None)))


class Changes:
    """Counts assignments to items, parts and requests that exist already, so that a cache of their JSON can tell."""

    count = 0


class TrackedModel(BaseModel):
    """A model whose changes are counted."""

    def __setattr__(self, name: str, value: Any) -> None:
        Changes.count += 1
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        Changes.count += 1
        super().__delattr__(name)


class TrackedDict(dict[str, Any]):
    """A dict whose changes are counted."""


def _counted(method: Callable[..., T]) -> Callable[..., T]:
    def change(*given: Any, **named: Any) -> T:
        Changes.count += 1
        return method(*given, **named)

    return change


for _name in ("__setitem__", "__delitem__", "__ior__", "update", "setdefault", "pop", "popitem", "clear"):
    setattr(TrackedDict, _name, _counted(getattr(dict, _name)))


class EncodedItems(list[Any]):
    """The items of a conversation that grows. Each is encoded once, and its bytes are joined into every later request.

    If the list, an item or a part was changed since, or the request whose input they are, all is encoded again. What
    lies deeper, in a plain dict, is not looked at.
    """

    __slots__ = (
        *("_copies", "_derived", "_encoded", "_is_changed", "_lists", "_num_changes", "_num_known", "_of_request"),
        "_request",
    )

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__(items)
        self._forget()

    def _forget(self) -> None:
        self._num_changes, self._num_known, self._is_changed = Changes.count, 0, False
        self._lists: tuple[list[Any], ...] = ()
        self._copies: tuple[list[Any], ...] = ()
        self._encoded: dict[EncodeItem, _Joined] = {}
        self._derived: dict[Hashable, Any] = {}
        self._request: Callable[[], Any] = lambda: None
        self._of_request: dict[Hashable, Any] = {}

    def _refresh(self) -> None:
        """Forget what was made of the items if it is no longer true."""
        count = len(self)
        if self._is_changed or self._num_changes != Changes.count or self._lists != self._copies:
            self._forget()
        if self._num_known == count:
            return
        for item in self[self._num_known :]:
            if isinstance(item, BaseModel) and list in map(type, item.__dict__.values()):
                self._watch(item)
        self._num_known = count

    def _watch(self, value: BaseModel) -> None:
        """Notice a change of a list that an item or a request was given: no other field of it is sent."""
        fields = value.__dict__
        lists = tuple([fields[name] for name in value.__pydantic_fields_set__ if type(fields.get(name)) is list])
        self._lists += lists
        self._copies += tuple(map(list.copy, lists))

    def made_of(self, request: Any, key: Hashable, make: Callable[[], T]) -> T:
        """What was made of the request whose input they are, without the items. Ask for those first."""
        if self._request() is not request:
            self._watch(request)
            self._request, self._of_request = ref(request), {}
        if key not in self._of_request:
            self._of_request[key] = make()
        found: T = self._of_request[key]
        return found

    def derived(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made of the items under this key, which is kept as long as they are."""
        self._refresh()
        if key not in self._derived:
            self._derived[key] = make()
        found: T = self._derived[key]
        return found

    def encoded(self, encode_item: "EncodeItem") -> list[bytes]:
        """Every item as `encode_item` encodes it, with commas between, in pieces of some size."""
        self._refresh()
        joined = self._encoded.get(encode_item)
        if joined is None:
            joined = self._encoded[encode_item] = _Joined()
        if joined.count < len(self):
            joined.add([encode_item(item) for item in self[joined.count :]])
        return joined.pieces


def _noted(method: Callable[..., T]) -> Callable[..., T]:
    def change(items: EncodedItems, *given: Any, **named: Any) -> T:
        items._is_changed = True
        return method(items, *given, **named)

    return change


for _name in ("__setitem__", "__delitem__", "__imul__", "insert", "remove", "pop", "clear", "sort", "reverse"):
    setattr(EncodedItems, _name, _noted(getattr(list, _name)))  # what is added at the end changes nothing before it


class _Joined:
    """Encoded items with commas between. The last piece grows until it is large: what is old is not copied again."""

    __slots__ = ("count", "pieces")

    def __init__(self) -> None:
        self.count, self.pieces = 0, list[bytes]()

    def add(self, items: list[bytes]) -> None:
        self.count += len(items)
        if self.pieces:
            grows = len(self.pieces[-1]) < PIECE_BYTES
            items.insert(0, self.pieces.pop() if grows else b"")
        self.pieces.append(b",".join(items))


EncodeItem = Callable[[Any], bytes]


def encode(value: Any, *, exclude_unset: bool = False) -> bytes:
    """JSON, compact. A model is dumped whole, or with `exclude_unset` as it was given."""
    if isinstance(value, BaseModel):
        if exclude_unset and type(value.__dict__.get("input")) is EncodedItems:
            return encode_request(value, encode_set_fields)
        if not exclude_unset:
            return encode_model(value)
        return value.__pydantic_serializer__.to_json(value, exclude_unset=True, warnings=False)
    if isinstance(value, bytes):
        return value
    default = _unset_dump if exclude_unset else _full_dump
    try:
        return orjson.dumps(value, default=default, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:
        # A number beyond 64 bits, such as a model may well write, is JSON all the same.
        return json.dumps(value, default=default, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def encode_body(value: Any) -> Body:
    """JSON of what a record was given, to be sent. That of a growing conversation is in pieces."""
    if isinstance(value, BaseModel) and type(value.__dict__.get("input")) is EncodedItems:
        return request_pieces(value, encode_set_fields)
    return encode_set_fields(value)


def encode_set_fields(value: Any) -> bytes:
    """JSON of what a record was given."""
    return encode(value, exclude_unset=True)


def encode_request(request: Any, encode_item: EncodeItem, *, model: str | None = None) -> bytes:
    """JSON of what a request was given, its `input` encoded item by item. `model` replaces its own."""
    return b"".join(request_pieces(request, encode_item, model=model))


def request_pieces(request: Any, encode_item: EncodeItem, *, model: str | None = None) -> tuple[bytes, ...]:
    """The same in pieces, of which those of a growing conversation are shared by all its requests."""
    items, excluded = request.input, _INPUT if model is None else _INPUT_AND_MODEL
    is_growing = type(items) is EncodedItems
    encoded = items.encoded(encode_item) if is_growing else [b",".join(map(encode_item, items))]
    if excluded >= request.__pydantic_fields_set__ and not request.__pydantic_extra__:
        rest = b"{}"
    elif is_growing:
        rest = items.made_of(request, excluded, lambda: _other_fields(request, excluded))
    else:
        rest = _other_fields(request, excluded)
    start = b"{" if model is None else b'{"model":%b,' % _json_text(model)
    end = b"]," + rest[1:] if len(rest) > 2 else b"]}"
    return start + b'"input":[', *encoded, end


def _other_fields(request: Any, excluded: frozenset[str]) -> bytes:
    given: bytes = request.__pydantic_serializer__.to_json(
        request, exclude=set(excluded), exclude_unset=True, warnings=False
    )
    return given


_INPUT, _INPUT_AND_MODEL = frozenset(("input",)), frozenset(("input", "model"))
_json_text = lru_cache(maxsize=256)(orjson.dumps)


def _full_dump(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", warnings=False)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, TokenArray):
        return value.tolist()
    if isinstance(value, orjson.Fragment):
        return json.loads(orjson.dumps(value))
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _unset_dump(value: Any) -> Any:
    return (
        value.model_dump(mode="json", exclude_unset=True, warnings=False)
        if isinstance(value, BaseModel)
        else _full_dump(value)
    )


class Decoder:
    """Makes the value of one type out of bytes, of a live object, or of nothing (an empty body counts as `{}`)."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
        self._model: type[BaseModel] | None = kind if is_model else None
        self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
        self._untyped = untyped_fields(kind)

    @property
    def takes_anything(self) -> bool:
        """True if the type has a place for a value of any class."""
        return self._untyped is not None

    def __call__(self, value: Any, *, shared: bool = False) -> Any:
        """A live object is copied first, unless it may be `shared`: its sender gives it away, or nobody changes it."""
        validator = self._adapter.validator
        if isinstance(value, bytes):
            return validator.validate_json(value or b"{}")
        if value is None:
            return validator.validate_python({})
        if self._untyped is not None:
            value = _with_json_in(self._untyped, value)
        if self._model is not None and type(value) is self._model:
            return value if shared else detached(value)
        given = set_fields(value) if type(value) is not dict and isinstance(value, _RECORDS) else value
        if not shared:
            given = detached(given)
        try:
            return validator.validate_python(given)
        except ValidationError:
            # A nested object of another class than the one declared: go the long way, as HTTP would.
            return validator.validate_json(encode(value, exclude_unset=True))


def _with_json_in(fields: UntypedFields, value: Any) -> Any:
    """The value with plain JSON in place of the objects in these fields, as HTTP would give it."""
    if type(value) is dict:
        given = value
    elif isinstance(value, _RECORDS):
        given = set_fields(value)
    else:
        return value if _is_json(value) else _as_json(value)
    found = {name: _as_json(given[name]) for name in fields.of(given) if not _is_json(given.get(name))}
    return {**given, **found} if found else value


def _as_json(value: Any) -> Any:
    return from_json(encode(value, exclude_unset=True))


def _is_json(value: Any) -> bool:
    """True if nothing in the value is an object, not even a subclass of a dict or a list."""
    if type(value) in _SCALARS:
        return True
    try:
        marshal.dumps(value)
    except ValueError:
        return False
    return True


def set_fields(value: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were set on a record, by name, without defaults."""
    if not isinstance(value, BaseModel):
        return dict(value)
    is_set = value.__pydantic_fields_set__
    given = {name: item for name, item in value.__dict__.items() if name in is_set}
    return {**given, **extra} if (extra := value.__pydantic_extra__) else given


def detached(value: T) -> T:
    """A copy that shares nothing mutable: what a peer does to its body must not reach the sender."""
    copied: T = value if type(value) in _SCALARS else _detached(value)
    return copied


def _detached(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _detached_model(value)
    if type(value) is dict:
        return _detached_json(value) or {key: detached(item) for key, item in value.items()}
    if isinstance(value, dict):  # such as a content part, which is also read by attribute
        copied = value.__class__.__new__(value.__class__)
        dict.update(copied, {key: detached(item) for key, item in value.items()})
        return copied
    if isinstance(value, list):
        if _SCALARS.issuperset(map(type, value)):
            return value.copy()
        is_json = type(value[0]) in (dict, list)
        return (is_json and _detached_json(value)) or [detached(item) for item in value]
    return value


def _detached_json(value: Any) -> Any:
    """A copy of plain JSON, such as a tool's schema, faster than by walking it; None if it is not plain."""
    try:
        return marshal.loads(marshal.dumps(value))
    except ValueError:
        return None


def changed(value: Model, **fields: Any) -> Model:
    """A copy with other values in some fields, all else shared: `model_copy` in a fraction of its time."""
    kind = value.__class__
    copied = kind.__new__(kind)
    extra = value.__pydantic_extra__
    _set(copied, "__pydantic_fields_set__", {*value.__pydantic_fields_set__, *fields})
    if extra is not None:
        declared = kind.__pydantic_fields__
        added = {name: fields.pop(name) for name in [name for name in fields if name not in declared]}
        extra = {**extra, **added}
    _set(copied, "__pydantic_extra__", extra)
    _set(copied, "__dict__", {**value.__dict__, **fields})
    _set(copied, "__pydantic_private__", value.__pydantic_private__)
    return copied


def _detached_model(value: BaseModel) -> Any:
    """What `model_copy` does, and the fields' values copied too, in one pass."""
    copied = value.__class__.__new__(value.__class__)
    fields = {name: item if type(item) in _SCALARS else detached(item) for name, item in value.__dict__.items()}
    _set(copied, "__dict__", fields)
    _set(copied, "__pydantic_extra__", _detached_fields(value.__pydantic_extra__))
    _set(copied, "__pydantic_fields_set__", value.__pydantic_fields_set__.copy())
    _set(copied, "__pydantic_private__", _detached_fields(value.__pydantic_private__))
    return copied


def _detached_fields(fields: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if fields is None else {name: detached(item) for name, item in fields.items()}

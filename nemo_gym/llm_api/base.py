"""The base of all wire types. Fields that we do not declare are kept and sent on."""

from collections.abc import Callable, Mapping
from functools import reduce
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    SerializeAsAny,
    Tag,
)
from pydantic_core import CoreSchema, PydanticCustomError, PydanticUseDefault, SchemaSerializer, core_schema

from nemo_gym.llm_api.json_codec import changed
from nemo_gym.llm_api.tokens import TokenArray

JsonObject: TypeAlias = dict[str, Any]
T = TypeVar("T")
_NUMBERS, _LISTS, _WHOLE = (int, float), (list, tuple), {int}


def without_nulls(fields: Mapping[str, Any] | None) -> JsonObject:
    """Return the fields that are not null."""
    return {name: value for name, value in (fields or {}).items() if value is not None}


_LIST_SCHEMAS = frozenset(("frozenset", "list", "set", "tuple"))


def _set_fail_fast(schema: Any, kind: type, resolve: Callable[[CoreSchema], CoreSchema], seen: set[int]) -> None:
    """Set `fail_fast` in all lists of a schema, except those of other models in it."""
    if id(schema) in seen:
        return
    seen.add(id(schema))
    if isinstance(schema, list | tuple):
        for each in schema:
            _set_fail_fast(each, kind, resolve, seen)
    elif isinstance(schema, dict) and not (schema.get("type") == "model" and schema["cls"] is not kind):
        if isinstance(name := schema.get("type"), str) and name in _LIST_SCHEMAS:
            schema["fail_fast"] = True
        elif name == "definition-ref":
            _set_fail_fast(resolve(schema), kind, resolve, seen)
        for name, each in schema.items():
            if name != "metadata":
                _set_fail_fast(each, kind, resolve, seen)


class FailFastModel(BaseModel):
    """A model whose lists are invalid at their first invalid item: what is wrong with a million items of a small body
    would take hundreds of times its memory."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _set_fail_fast(schema, cls, handler.resolve_ref_schema, set())
        return schema


class WireModel(FailFastModel):
    """Data that comes from or goes to another program."""

    # Built at first use: most commands read only a few of these types, and building all of them is a slow import.
    model_config = ConfigDict(extra="allow", defer_build=True)


class TypedWireModel(WireModel):
    """Known by its `type`, which is therefore in every dump, also in one of only what was set."""

    always_set: ClassVar[tuple[str, ...]] = ("type",)

    def model_post_init(self, _context: Any, /) -> None:
        self.__pydantic_fields_set__.update(self.always_set)


class ContentPart(TypedWireModel):
    """A part of a message. Also read like a mapping: `part["text"]` is what code written for plain JSON says."""

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError as error:
            raise KeyError(name) from error

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


class JsonRecord(dict[str, Any]):
    """A JSON object that is also read by attribute: a plain dict to code written for dicts, an object to code written
    for the classes of the `openai` package, whose instances it can be made of."""

    REQUIRED: ClassVar[Mapping[str, Mapping[str, type]]] = {}
    """The required fields of each type, as a `str` or a `dict`."""

    __pydantic_serializer__: ClassVar[SchemaSerializer] = SchemaSerializer(core_schema.dict_schema())
    """pydantic looks for it on what it dumps. Without it, it would find out by many failing attribute lookups."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}") from None

    def model_dump(self, **_options: Any) -> JsonObject:
        return dict(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    @classmethod
    def read(cls, value: Any) -> Self:
        if isinstance(value, cls):
            return value
        fields = as_json_object(value)
        if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
            raise PydanticCustomError("typed_object", "Input should be an object with a 'type'")
        for name, expected in cls.REQUIRED.get(fields["type"], {}).items():
            if not isinstance(fields.get(name), expected):
                shape = "a text" if expected is str else "an object"
                raise PydanticCustomError(
                    "missing_field", "'{name}' is required, as {shape}, if the type is '{kind}'",
                    {"name": name, "shape": shape, "kind": fields["type"]},
                )  # fmt: skip
        return cls(fields)

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        # the JSON branch is also how it is dumped: as a dict, which is faster than finding out that it is one
        return core_schema.json_or_python_schema(
            json_schema=core_schema.no_info_after_validator_function(cls.read, core_schema.dict_schema()),
            python_schema=core_schema.no_info_plain_validator_function(cls.read),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> JsonObject:
        return {"type": "object"}


def as_json_object(value: Any) -> Any:
    """An object of another library's pydantic class as a dict; anything else as it is."""
    return value.model_dump(mode="json", exclude_unset=True) if isinstance(value, BaseModel) else value


def _use_default(value: Any) -> Any:
    if value is None:
        raise PydanticUseDefault
    return value


NULL_IS_ABSENT = BeforeValidator(_use_default)
"""Goes on a field that has a default: an explicit null, as stored rollouts have it, is read as that default."""


class _AlsoObjects:
    """Lets Python values be instances of other pydantic classes. JSON needs no such look, which takes time."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        return core_schema.json_or_python_schema(
            json_schema=schema,
            python_schema=core_schema.no_info_before_validator_function(as_json_object, schema),
        )


OpenJsonObject = Annotated[JsonObject, _AlsoObjects]
"""A JSON object, or an instance of the class that the `openai` package has for it."""


class _AlsoArrays:
    """Lets the value be a `TokenArray`, which is checked already."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        return core_schema.json_or_python_schema(
            json_schema=schema,
            python_schema=core_schema.no_info_wrap_validator_function(_read_numbers, schema),
        )


def _read_numbers(value: Any, read: Callable[[Any], Any]) -> Any:
    return value if isinstance(value, TokenArray) else read(value)


class TokenIDLogProbMixin(WireModel):
    """The exact tokens of a generation, in and out, for trainers. From `vllm_model` they are views on
    arrays, which read like lists."""

    prompt_token_ids: Annotated[list[int], _AlsoArrays]
    generation_token_ids: Annotated[list[int], _AlsoArrays]
    generation_log_probs: Annotated[list[float], _AlsoArrays]
    routed_experts: str | list[list[list[int]]] | None = None
    """Which experts of a mixture were used, as the engine encodes it."""
    generation_top_log_probs: Any = None
    """For each sampled token the likeliest ones, as pairs of an id and a log-prob."""
    prompt_log_probs: Any = None
    """Of the last tokens of the prompt; null where the engine gives none."""
    log_prob_mode: str | None = None
    """`raw`: of the model. `processed`: after temperature, top-p and the like."""
    image_token_id: int | None = None
    """The token that stands for an image."""


TOKEN_METADATA_FIELDS = tuple(TokenIDLogProbMixin.model_fields)
TOKEN_FIELDS = REQUIRED_TOKEN_METADATA_FIELDS = TOKEN_METADATA_FIELDS[:3]
POLICY_VERSION_FIELD = "policy_version"
"""On an item or message with tokens: which weights sampled it, a number or a name, if the endpoint says."""
VERSION_RUNS_FIELD = "policy_version_runs"
"""Beside it if the weights changed during the generation: versions, each with the number of tokens that it sampled."""
TOKEN_NAMES = frozenset((*TOKEN_METADATA_FIELDS, POLICY_VERSION_FIELD, VERSION_RUNS_FIELD))


def is_policy_version(value: Any) -> bool:
    """True for a number, a name, or None if the version is unknown."""
    return value is None or type(value) in (int, str)


def tokens_of(item: TokenIDLogProbMixin) -> JsonObject:
    """The tokens of a generation, to be given to another item or message as they are."""
    return {name: found for name in TOKEN_METADATA_FIELDS if (found := getattr(item, name, None)) is not None}


def drop_token_fields(items: Any) -> None:
    """Remove token ids, log-probs and policy versions from decoded JSON, at every depth but in the arguments of tools
    and their schemas, where such names are the author's own."""
    remaining = [items]
    while remaining:
        value = remaining.pop()
        if isinstance(value, dict):
            for name in TOKEN_NAMES.intersection(value):
                del value[name]
            own = ("tools", "arguments", "input" if value.get("type") == "tool_use" else "")
            remaining += [field for name, field in value.items() if name not in own]
        elif isinstance(value, list):
            remaining += value


def has_token_ids(value: JsonObject) -> bool:
    """True if all fields that `TokenIDLogProbMixin` requires are there."""
    return (
        value.get("generation_token_ids") is not None
        and value.get("prompt_token_ids") is not None
        and value.get("generation_log_probs") is not None
    )


class Usage(WireModel):
    """Tokens used. The usage of several calls is their sum: `first + second`."""

    def __add__(self, other: Self) -> Self:
        total: Self = sum_of([self, other])
        return total


def sum_of(values: list[Any]) -> Any:
    """Add numbers, and objects field by field. Of anything else the later value counts, if there is one."""
    kinds = set(map(type, values))
    if kinds == _WHOLE:
        return sum(values)
    if all(issubclass(kind, BaseModel) for kind in kinds):
        fields = _sums_of_fields(list(map(_fields, values)))
        return changed(values[0], **fields) if fields else values[0]
    if all(issubclass(kind, dict) for kind in kinds):
        return values[0] | _sums_of_fields(values)
    if len(values) != 2:
        return reduce(lambda one, other: sum_of([one, other]), values)
    one, other = values
    if isinstance(one, _NUMBERS) and isinstance(other, _NUMBERS):
        return one + other
    if isinstance(one, _NUMBERS) or isinstance(other, _NUMBERS):
        return None  # a sum with an unknown part is unknown
    return one if other is None else other


def _fields(value: BaseModel) -> JsonObject:
    extra = value.__pydantic_extra__
    return value.__dict__ | extra if extra else value.__dict__


def _sums_of_fields(records: list[JsonObject]) -> JsonObject:
    """The sums that are not as in the first record. What that does not say is unknown."""
    first = records[0]
    sums = {}
    for name in dict.fromkeys(chain(*records)):
        found = [record[name] for record in records if name in record]
        if name not in first:
            sums[name] = sum_of([None, *found])
            continue
        total, own = sum(found) if set(map(type, found)) == _WHOLE else sum_of(found), first[name]
        if total is not own and total != own:
            sums[name] = total
    return sums


def type_of(value: Any) -> Any:
    """Return the `type` of an item, part or tool, be it an object or a dict."""
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


def by_type(*known: str) -> Discriminator:
    """Choose by `type`: one of the tags `known`, or else the tag `other`."""

    def tag(value: Any) -> str:
        kind = type_of(value)
        return kind if kind in known else "other"

    return Discriminator(tag)


DECODED_ONCE = BeforeValidator(lambda value: value)
"""Goes on top of types with a discriminator that is a function.

Such a function is handed a copy of the JSON as Python objects. A validator written in Python leaves those objects in
the place of the JSON for all that is below it, so the copy is made once instead of once a level.
"""


def _text_or_list(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    return "list" if isinstance(value, _LISTS) else None


TextOrList = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[T], Tag("list")],
    Discriminator(
        _text_or_list, custom_error_type="text_or_list", custom_error_message="Input should be a text or a list"
    ),
    DECODED_ONCE,
    SerializeAsAny(),
]
"""A plain text or a list, as `input` and `content` may be."""


class NeMoGymResponseContent(JsonRecord):
    """A part of an input message or of a tool's output: a dict, with its keys as attributes."""

    TYPE: ClassVar[str] = ""
    REQUIRED: ClassVar[Mapping[str, Mapping[str, type]]] = {
        "input_text": {"text": str},
        "output_text": {"text": str},
        "refusal": {"refusal": str},
    }

    def __init__(self, fields: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__({**({"type": self.TYPE} if self.TYPE else {}), **(fields or {}), **more})


class NeMoGymResponseInputText(NeMoGymResponseContent):
    TYPE = "input_text"


class NeMoGymResponseInputImage(NeMoGymResponseContent):
    TYPE = "input_image"


class NeMoGymResponseOutputText(ContentPart):
    annotations: Annotated[list[JsonObject], NULL_IS_ABSENT] = Field(default_factory=list)
    text: str
    type: Literal["output_text"] = "output_text"
    logprobs: list[JsonObject] | None = None


class NeMoGymResponseOutputRefusal(ContentPart):
    refusal: str
    type: Literal["refusal"] = "refusal"


def content_text(content: Any) -> str:
    """The text in a message's content: a string, or a list of parts. Other parts, such as images, have none."""
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content or ())


NeMoGymResponseOutputContent: TypeAlias = Annotated[
    NeMoGymResponseOutputText | NeMoGymResponseOutputRefusal, Field(discriminator="type"), SerializeAsAny()
]

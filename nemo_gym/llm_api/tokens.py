"""Token ids and log-probs as arrays.

The calls of a conversation share one array of ids: the prompt of a call is a view on it that begins with all tokens of
the call before. So a rollout takes memory for each of its tokens once.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, overload

from pydantic_core import SchemaSerializer, core_schema

from nemo_gym.errors import GymError

Number = TypeVar("Number", int, float)
JsonObject = dict[str, Any]

PROMPT, SAMPLED, LOG_PROBS = "prompt_token_ids", "generation_token_ids", "generation_log_probs"
MAX_LOG_PROB = 1e-3
"""A probability of 1, and what rounding in 16 bits may add to it."""
MIN_LOG_PROB = -1000.0
"""Nothing that is sampled is less likely. Engines write -9999 for a log-prob that they do not have."""


class TokenTraceError(GymError, ValueError):
    """A record does not have the tokens that a trainer needs."""


class TokenArray(Sequence[Number], Generic[Number]):
    """A part of an array of numbers, read like a list: `==`, slices, iteration, `len`, pickle.

    Our own encoder writes it as a JSON list; for others it is `tolist()`, as in `json.dumps(record, default=list)`.
    """

    __slots__ = ("_array", "_start", "_stop")
    __hash__ = None  # type: ignore[assignment]
    __pydantic_serializer__: ClassVar[SchemaSerializer] = SchemaSerializer(
        core_schema.any_schema(
            serialization=core_schema.plain_serializer_function_ser_schema(lambda numbers: numbers.tolist())
        )
    )

    def __init__(self, numbers: "array[Number]", start: int = 0, stop: int | None = None) -> None:
        self._array: array[Number] = numbers
        self._start, self._stop = start, len(numbers) if stop is None else stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[Number]:
        return iter(self._own())

    @overload
    def __getitem__(self, place: int) -> Number: ...
    @overload
    def __getitem__(self, place: slice) -> "TokenArray[Number]": ...
    def __getitem__(self, place: int | slice) -> "Number | TokenArray[Number]":
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step == 1:
                return TokenArray(self._array, self._start + start, self._start + max(start, stop))
            return TokenArray(self._own()[place])
        at = place if place >= 0 else place + len(self)
        if not 0 <= at < len(self):
            raise IndexError(f"{place} is not among {len(self)} numbers")
        return self._array[self._start + at]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TokenArray):
            is_same = self._array is other._array and self._start == other._start and self._stop == other._stop
            return is_same or (len(self) == len(other) and self._own() == other._own())
        return self.tolist() == list(other) if isinstance(other, list | tuple) else NotImplemented

    def __add__(self, other: Iterable[Number]) -> list[Number]:
        return list(self) + list(other)

    def __radd__(self, other: Iterable[Number]) -> list[Number]:
        return list(other) + list(self)

    def __repr__(self) -> str:
        return repr(self.tolist())

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenArray, (self._array, self._start, self._stop)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy as np  # only numpy asks for this

        return np.array(self._own(), dtype)

    def __bytes__(self) -> bytes:
        return self._own().tobytes()

    def _own(self) -> "array[Number]":
        return self._array[self._start : self._stop]

    def tolist(self) -> list[Number]:
        return self._own().tolist()

    def continued(self, numbers: Iterable[Number]) -> "TokenArray[Number]":
        """These numbers and more. Both share the array, unless it goes on in another way already."""
        shared, start = (self._array, self._start) if self._stop == len(self._array) else (self._own(), 0)
        shared.extend(numbers._own() if isinstance(numbers, TokenArray) else numbers)
        return TokenArray(shared, start, len(shared))

    def is_prefix_of(self, other: "TokenArray[Number]") -> bool:
        if self._array is other._array and self._start == other._start:
            return self._stop <= other._stop
        return len(self) <= len(other) and self._own() == other._array[other._start : other._start + len(self)]


def token_ids(ids: Iterable[int]) -> TokenArray[int]:
    """Token ids as int32. Raises ValueError for anything else."""
    if isinstance(ids, TokenArray):
        return ids
    if isinstance(ids, list | tuple) and bool in set(map(type, ids)):
        raise TokenTraceError("a token id is true or false; expected a whole number from 0 to 2**31 - 1")
    return _int32(ids)


def _int32(ids: Iterable[int]) -> TokenArray[int]:
    """Numbers as int32, where true is 1."""
    if isinstance(ids, TokenArray):
        return ids
    try:
        return TokenArray(array("i", [*ids]))
    except (TypeError, OverflowError) as error:
        raise TokenTraceError(f"a token id is not a whole number from 0 to 2**31 - 1 ({error})") from error


def new_token_ids(ids: Iterable[int]) -> TokenArray[int]:
    """As `token_ids`, and none of them negative. Only ids that no call before has need this check."""
    found = token_ids(ids)
    if len(found) and min(found) < 0:
        raise TokenTraceError(f"a token id is {min(found)}; expected a whole number from 0 to 2**31 - 1")
    return found


def log_probs(values: Sequence[float]) -> TokenArray[float]:
    """Log-probs as float32, which is what engines compute; as float64 if that would change a value. Raises
    TokenTraceError for what is no log-prob of a sampled token."""
    if isinstance(values, TokenArray):
        return values
    try:
        short = array("f", values)
        found: array[float] = short if short.tolist() == values else array("d", values)
        wrong = "true or false" if bool in set(map(type, values)) else log_prob_fault(found)
    except (TypeError, OverflowError) as error:
        raise TokenTraceError(f"a log-prob is not a number ({error})") from error
    if wrong:
        raise TokenTraceError(f"a log-prob is {wrong}")
    return TokenArray(found)


def log_prob_fault(values: Sequence[float]) -> str | None:
    """Describe the first wrong one of these log-probs; None if all are right."""
    if not values:
        return None
    if not math.isfinite(sum(values)):
        return "not a finite number"
    if max(values) > MAX_LOG_PROB:
        return f"{max(values)}, expected at most 0"
    return f"{min(values)}, which is no log-prob of a sampled token" if min(values) < MIN_LOG_PROB else None


def call_tokens(
    prompt: Sequence[int], sampled: Sequence[int], values: Sequence[float], *, before: Mapping[str, Any] | None = None
) -> JsonObject:
    """The token fields of a call. It shares the array of the call `before` if its prompt begins with that one's."""
    known = TokenArray(array("i")) if before is None else joined(token_ids(before[PROMPT]), token_ids(before[SAMPLED]))
    if known and known.is_prefix_of(_int32(prompt)):
        prompt_ids = known.continued(new_token_ids(prompt[len(known) :]))
    else:
        prompt_ids = new_token_ids(prompt)
    whole, start = prompt_ids.continued(new_token_ids(sampled)), len(prompt_ids)
    return {PROMPT: whole[:start], SAMPLED: whole[start:], LOG_PROBS: log_probs(values)}


def joined(prompt: TokenArray[int], sampled: TokenArray[int]) -> TokenArray[int]:
    """Both as one. Nothing is copied if one follows the other in their array."""
    if prompt._array is sampled._array and prompt._stop == sampled._start:
        return TokenArray(prompt._array, prompt._start, sampled._stop)
    return TokenArray(prompt._own() + sampled._own())

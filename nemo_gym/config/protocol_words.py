"""The closed vocabulary of what we write: fields, types, roles and statuses of the Responses, Chat Completions
and Messages APIs, and of our records. Derived from the wire types."""

from collections.abc import Iterator
from enum import Enum
from functools import cache
from itertools import chain
from typing import Any, Literal, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

from nemo_gym import llm_api
from nemo_gym.common.redaction import MASKED_FIELD
from nemo_gym.config import keys
from nemo_gym.errors import CAUSES
from nemo_gym.llm_api import base, chat, responses, responses_anthropic
from nemo_gym.llm_api.base import JsonRecord, WireModel

_MODULES = (base, chat, responses, responses_anthropic)

RECORD_FIELDS = frozenset(
    (
        *(keys.TASK_INDEX_KEY_NAME, keys.ROLLOUT_INDEX_KEY_NAME, keys.ATTEMPT_INDEX_KEY_NAME, keys.TASK_INDEX_FIELD),
        *(keys.ROLLOUT_ID_KEY_NAME, keys.AGENT_REF_KEY_NAME, keys.SKILLS_REF_KEY_NAME, keys.ROW_FIELDS),
        *(keys.RESPONSES_CREATE_PARAMS_KEY_NAME, keys.RESPONSE_KEY_NAME, keys.NG_FAILURE_CLASS_KEY),
        *(keys.NG_TERMINAL_KEY, keys.NG_NO_PERSIST_KEY, keys.NG_JUDGE_ERROR_KEY, MASKED_FIELD),
        *("_repeat_index", "_row_hash", "_attempts", "_retries", "_seconds", "_old_reward", "_tool_outputs_changed"),
        *("is_final", "started_at", "attempt_id", "ended_by", "max_steps", "produced_by", "participant"),
        *("participants", "is_trainable", "model_calls", "model_seconds", "return_code"),
    )
)
"""Of rows, records, failures and recorded calls, as docs/records.md lists them. Packages below this one write them."""

_OTHER_VALUES = frozenset(
    (
        *("input_image", "input_file", "input_audio", "image_url", "video_url", "audio_url", "reasoning_text"),
        *("json_schema", "json_object", "content_filter", "stop_sequence", "end_turn", "url_citation"),
    )
)
"""Values of fields that the wire types declare as any text."""


@cache
def protocol_words() -> frozenset[str]:
    seen: set[type] = set()
    found = {word for module in _MODULES for kind in vars(module).values() for word in _words(kind, seen)}
    return RECORD_FIELDS.union(_OTHER_VALUES, CAUSES, found)


def _words(kind: Any, seen: set[type]) -> Iterator[str]:
    """The names and fixed values in a type, and in the types it is made of."""
    if isinstance(kind, type):
        if kind in seen or not kind.__module__.startswith(llm_api.__name__):
            return
        seen.add(kind)
    if get_origin(kind) is Literal:
        yield from (value for value in get_args(kind) if isinstance(value, str))
    elif isinstance(kind, type) and issubclass(kind, Enum):
        yield from (member.value for member in kind if isinstance(member.value, str))
    elif isinstance(kind, type) and issubclass(kind, WireModel):
        for name, field in kind.model_fields.items():
            yield from (text for text in (name, field.alias, field.default) if isinstance(text, str))
            yield from _words(field.annotation, seen)
    elif isinstance(kind, type) and issubclass(kind, JsonRecord):
        yield from chain(kind.REQUIRED, *kind.REQUIRED.values())
    elif is_typeddict(kind):
        yield from kind.__annotations__
        for hint in get_type_hints(kind).values():
            yield from _words(hint, seen)
    else:
        for part in get_args(kind):
            yield from _words(part, seen)

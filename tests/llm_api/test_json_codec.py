from collections.abc import Callable
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, ConfigDict, PrivateAttr

from nemo_gym.llm_api.json_codec import EncodedItems, changed, detached, encode, encode_request, request_pieces
from nemo_gym.llm_api.responses import NeMoGymEasyInputMessage, NeMoGymResponseCreateParamsNonStreaming


class Inner(BaseModel):
    words: list[str] = []


class Outer(BaseModel):
    model_config = ConfigDict(extra="allow")

    number: int = 1
    inner: Inner = Inner()
    items: list[Any] = []
    table: dict[str, Any] = {}
    _seen: list[int] = PrivateAttr(default_factory=list)


def example() -> Outer:
    return Outer.model_validate(
        {"inner": {"words": ["a"]}, "items": [1, {"b": [2]}], "table": {"c": {"d": 3}}, "more": {"e": [4]}}
    )


def test_a_detached_model_equals_the_original_down_to_what_was_set() -> None:
    copied = detached(example())
    assert type(copied) is Outer
    assert copied == example()
    assert copied.model_dump_json(exclude_unset=True) == example().model_dump_json(exclude_unset=True)


def test_nothing_done_to_a_detached_model_reaches_the_original() -> None:
    original = example()
    copied: Any = detached(original)
    copied.number = 9
    copied.inner.words.append("z")
    copied.items[1]["b"].append(9)
    copied.table["c"]["d"] = 9
    copied.more["e"].append(9)
    copied.another = 9
    copied._seen.append(9)
    assert original == example()
    assert original.model_fields_set == example().model_fields_set
    assert original._seen == []


def test_an_extra_field_of_a_detached_model_without_any_stays_its_own() -> None:
    original = Outer()
    copied: Any = detached(original)
    copied.another = 9
    assert original.model_extra == {}


@pytest.mark.parametrize("value", [[1, 2.0, "three", None], [[1], [2]], {"a": [1]}, {"a": {"b": Inner()}}])
def test_detached_containers_are_equal_but_not_the_same(value: Any) -> None:
    copied = detached(value)
    assert copied == value
    assert copied is not value


@pytest.mark.parametrize(
    "fields", [{}, {"number": 7}, {"items": [8], "table": {}}, {"more": 9}, {"fresh": 1, "number": 2}]
)
def test_a_changed_model_is_what_model_copy_makes_and_leaves_the_original_alone(fields: dict[str, Any]) -> None:
    original = example()
    copied, expected = changed(original, **fields), original.model_copy(update=fields)
    assert copied == expected
    assert copied.model_fields_set == expected.model_fields_set
    assert original == example()
    assert original.model_fields_set == example().model_fields_set


def test_an_item_of_a_growing_conversation_is_encoded_once() -> None:
    encoded: list[str] = []

    def encode_item(item: NeMoGymEasyInputMessage) -> bytes:
        encoded.append(str(item.content))
        return encode(item, exclude_unset=True)

    items = EncodedItems([NeMoGymEasyInputMessage(role="user", content="one")])
    request = NeMoGymResponseCreateParamsNonStreaming(input="", temperature=0.5)
    for text in ("two", "three"):
        whole = encode_request(changed(request, input=items), encode_item)
        assert orjson.loads(whole) == orjson.loads(encode(changed(request, input=list(items)), exclude_unset=True))
        items.append(NeMoGymEasyInputMessage(role="user", content=text))
    assert encoded == ["one", "two"]
    assert encode(changed(request, input=items), exclude_unset=True).count(b'"content":') == 3


def conversation() -> EncodedItems:
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate(
        {
            "input": [
                {"role": "user", "content": "one"},
                {"role": "user", "content": [{"type": "input_text", "text": "two"}]},
                {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "3"}]},
                {"type": "function_call_output", "call_id": "c", "output": "four", "note": "five"},
            ]
        }
    )
    return EncodedItems(params.input)


CHANGES: dict[str, Callable[[Any, Any], object]] = {
    "a field of an item": lambda items, _: setattr(items[3], "output", "changed"),
    "a field that is not declared": lambda items, _: setattr(items[3], "note", "changed"),
    "a field removed": lambda items, _: delattr(items[3], "note"),
    "a key of a part": lambda items, _: items[1].content[0].update(text="changed"),
    "a field of a part": lambda items, _: setattr(items[2].content[0], "text", "changed"),
    "a field of an input part": lambda items, _: setattr(items[1].content[0], "text", "changed"),
    "a field of an input part removed": lambda items, _: delattr(items[1].content[0], "text"),
    "a part added": lambda items, _: items[1].content.append({"type": "input_text", "text": "added"}),
    "a part removed": lambda items, _: items[2].content.clear(),
    "an item replaced": lambda items, _: items.__setitem__(0, NeMoGymEasyInputMessage(role="user", content="other")),
    "an item inserted": lambda items, _: items.insert(0, NeMoGymEasyInputMessage(role="user", content="first")),
    "an item removed": lambda items, _: items.pop(1),
    "the last item exchanged": lambda items, _: items.append(items.pop(0)),
    "a given item removed": lambda items, _: items.remove(items[0]),
    "a slice removed": lambda items, _: items.__delitem__(slice(0, 2)),
    "a slice replaced": lambda items, _: items.__setitem__(slice(0, 1), items[2:3]),
    "all items sorted": lambda items, _: items.sort(key=lambda item: item.type),
    "all items repeated": lambda items, _: items.__imul__(2),
    "all items reversed": lambda items, _: items.reverse(),
    "no items left": lambda items, _: items.clear(),
    "a field of the request": lambda _, request: setattr(request, "temperature", 1.5),
    "a tool added": lambda _, request: request.tools.append({"type": "function", "name": "added"}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_between_two_turns_is_sent(change: Callable[[Any, Any], object]) -> None:
    items = conversation()
    tool = {"type": "function", "name": "one"}
    request = NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": "", "tools": [tool]})
    request = changed(request, input=items)
    before = encode(request, exclude_unset=True)
    change(items, request)
    after = encode(request, exclude_unset=True)
    assert after != before
    assert after == encode(changed(request, input=EncodedItems(items)), exclude_unset=True)
    assert orjson.loads(after) == orjson.loads(request.model_dump_json(exclude_unset=True))


def test_a_long_conversation_is_sent_in_pieces_that_later_requests_share() -> None:
    items = EncodedItems()
    request = changed(NeMoGymResponseCreateParamsNonStreaming(input=""), input=items)
    pieces: tuple[bytes, ...] = ()
    for number in range(200):
        items.append(NeMoGymEasyInputMessage(role="user", content=f"{number} " + "x" * 1000))
        before, pieces = pieces, request_pieces(request, encode)
        assert orjson.loads(b"".join(pieces))["input"][-1]["content"].startswith(f"{number} ")
    assert 10 < len(pieces) < 20
    assert all(one is other for one, other in zip(before[1:-2], pieces[1:-2], strict=True))


def test_a_request_of_nothing_but_items_is_json() -> None:
    request = NeMoGymResponseCreateParamsNonStreaming(input=[])
    assert encode_request(request, encode) == b'{"input":[]}'


def test_a_content_part_stays_one_when_it_is_detached() -> None:
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate(
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi."}]}]}
    )
    message: Any = detached(params).input[0]
    message.content[0]["text"] = "Changed."
    assert message.content[0].text == "Changed."
    original: Any = params.input[0]
    assert original.content == [{"type": "input_text", "text": "Hi."}]


def test_encoded_parts_stay_json_beside_a_number_beyond_64_bits() -> None:
    encoded = encode({"n": 10**30, "parts": orjson.Fragment(b'[{"a":1}]')})
    assert encoded == b'{"n":%d,"parts":[{"a":1}]}' % (10**30)

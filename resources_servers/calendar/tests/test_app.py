"""The rules of the calendar, line by line; hostile replies; rows solved and cheated on through the agent."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.testing import (
    client_for,
    example_row,
    message,
    response_of,
    rows_of,
    says,
    server_spec,
    tool_output,
)
from resources_servers.calendar.app import CalendarResourcesServer
from resources_servers.calendar.generate import generate_rows
from resources_servers.calendar.schedule import scheduled
from resources_servers.calendar.state import first_list, is_expected
from resources_servers.calendar.times import clock, minutes_of, spoken
from tests.example_rows import own_rows, row_files
from tests.stacks import rollout_of, verified_by

OWN_ROWS, ROWS = own_rows("calendar"), row_files("calendar")


def event(constraint: str | None = None, duration: int = 60, number: int = 0) -> dict[str, Any]:
    return {
        "event_id": number,
        "duration": duration,
        "constraint": constraint,
        "min_time": "10:00",
        "max_time": "16:00",
    }


def entry(start: Any, duration: Any = 60, number: Any = 0, name: str = "Any") -> dict[str, Any]:
    return {"event_id": number, "event_name": name, "start_time": start, "duration": duration}


ONE = {"0": event()}
TWO = {"0": event(), "1": event(number=1, duration=30)}


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("10am", 600),
        ("10:30pm", 1350),
        ("10 am", 600),
        ("13:05", 785),
        ("12am", 0),
        ("12pm", 720),
        ("12:30am", 30),
        ("09:00", 540),
        (" 9:00 ", 540),
    ],
)
def test_times(text: str, minutes: int) -> None:
    assert minutes_of(text) == minutes


@pytest.mark.parametrize("text", ["10AM", "10:30PM", "10", "", "noon", "10:00:00", "1000", None, 600, ["10am"]])
def test_what_is_no_time(text: Any) -> None:
    with pytest.raises(ValueError, match="expected a time"):
        minutes_of(text)


def test_times_are_written_as_they_are_read() -> None:
    for minutes in range(0, 24 * 60, 5):
        assert minutes_of(clock(minutes)) == minutes_of(spoken(minutes)) == minutes


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[note] [{"a": 1}]', '[{"a": 1}]'),
        ('[{"a": [1]}]', None),
        ('[{"a": "x]y"}]', None),
        ("[]", None),
        ("", None),
        ("no list", None),
        ('[{"a": 1}] and [{"b": 2}]', '[{"a": 1}]'),
        ('Here:\n```json\n[{"a": 1},\n {"b": 2}]\n```', '[{"a": 1},\n {"b": 2}]'),
        ('[[{"a": 1}]]', '[{"a": 1}]'),
        ('[1, {"a": 1}', None),
        ('{"a": [{"b": 1}]}', '[{"b": 1}]'),
        ('[{"a": [1]}, {"b": 2}]', '[{"a": [1]}, {"b": 2}]'),
        ('[{"a": {"b": 1}}]', '[{"a": {"b": 1}}]'),
        ('[{"a": "}"}]', '[{"a": "}"}]'),
        ('[{"a": "{"}]', '[{"a": "{"}]'),
        ('[ { [ {"a": 1} ]', '[ {"a": 1} ]'),
        ("[{]}", None),
    ],
)
def test_the_first_list_with_an_object_is_found(text: str, found: str | None) -> None:
    assert first_list(text) == found


PIECES = ["[", "]", "{", "}", '{"a": 1}', '{"a": [1]}', ", ", "x", '"']
PATTERN = re.compile(r"\[(?:\{[^{}]*\}|[^\[\]])*?\{[^\[\]{}]*\}(?:\{[^{}]*\}|[^\[\]])*\]")
"""The rule as a pattern that tries everything, and may take for ever."""


@settings(deadline=None, max_examples=500)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_one_look_at_the_text_finds_what_trying_everything_finds(text: str) -> None:
    tried = PATTERN.search(text)
    assert objects(first_list(text)) == objects(tried and tried[0])


def objects(text: str | None) -> Any:
    try:
        found = json.loads(text or "")
    except ValueError:
        return None
    return found if all(isinstance(item, dict) for item in found) else None


@pytest.mark.parametrize("part", ['{"a": 1}, ', "[", "[{", "{[}", "[{[}", "]", "[]", "{", "}", '[{"a": 1}, ', "x"])
def test_no_text_takes_more_time_than_its_length(part: str) -> None:
    assert first_list("[" + part * 100_000) is None


@pytest.mark.parametrize(
    ("constraint", "start", "is_kept"),
    [
        (None, "10:00", True),
        (None, "15:00", True),
        (None, "15:01", False),
        (None, "09:59", False),
        ("before 1pm", "12:00", True),
        ("before 1pm", "12:01", False),
        ("after 1pm", "13:00", True),
        ("after 1pm", "12:59", False),
        ("between 11am and 12:30pm", "11:00", True),
        ("between 11am and 12:30pm", "11:30", True),
        ("between 11am and 12:30pm", "11:31", False),
        ("between 11am and 12:30pm", "10:59", False),
        ("at 11:15am", "11:15", True),
        ("at 11:15am", "11:15am", True),
        ("at 11:15am", "11:16", False),
        ("whenever you like", "10:00", True),
        ("before lunch", "10:00", False),
        ("after 9am", "09:30", False),
    ],
)
def test_constraints(constraint: str | None, start: str, is_kept: bool) -> None:
    assert is_expected(json.dumps([entry(start)]), {"0": event(constraint)}) is is_kept


@pytest.mark.parametrize(
    ("entries", "expected", "is_right"),
    [
        pytest.param([entry("10:00")], ONE, True, id="right"),
        pytest.param([entry("10:00", 60.0)], ONE, True, id="a float"),
        pytest.param([entry("10:00", "60")], ONE, False, id="a text"),
        pytest.param([entry("10:00", 45)], ONE, False, id="too short"),
        pytest.param([entry("10:00", number="0")], ONE, True, id="ids are texts"),
        pytest.param([entry("10:00", number=1)], ONE, False, id="another id"),
        pytest.param([entry("10:00", name="Other")], ONE, True, id="names are not compared"),
        pytest.param([entry("10:00"), entry("11:00", 30, 1)], TWO, True, id="touching"),
        pytest.param([entry("10:00"), entry("10:59", 30, 1)], TWO, False, id="overlapping"),
        pytest.param([entry("12:00"), entry("12:15", 30, 1)], TWO, False, id="one within the other"),
        pytest.param([entry("10:00")], TWO, False, id="one missing"),
        pytest.param([entry("10:00"), entry("11:00", 30, 1)], ONE, False, id="one too many"),
        pytest.param([entry("10:00"), entry("10:00")], ONE, True, id="an exact duplicate"),
        pytest.param([entry("10:00"), entry("10:00", name="Other")], ONE, False, id="a near duplicate overlaps"),
        pytest.param([entry("10:00"), entry("12:00")], ONE, True, id="one event in two allowed places"),
        pytest.param([entry("15:30"), entry("10:00")], ONE, False, id="first ends too late, then right"),
        pytest.param([entry("10:00"), entry("15:30")], ONE, False, id="first right, then ends too late"),
        pytest.param([entry("12:00", 30), entry("10:00")], ONE, False, id="first too short, then right"),
        pytest.param([entry("15:30", number="0"), entry("10:00")], ONE, False, id="an id as text and as number"),
        pytest.param(
            [entry("15:00"), entry("10:45", 60), entry("10:15", 30, 1)],
            {**TWO, "0": event("before 2:30pm")},
            False,
            id="first past its constraint, then right",
        ),
        pytest.param([{"event_id": 0}], ONE, False, id="no time"),
        pytest.param([{"start_time": "10:00", "duration": 60}], ONE, False, id="no id"),
        pytest.param([entry("10")], ONE, False, id="a bare hour"),
        pytest.param([entry(600)], ONE, False, id="a number as a time"),
        pytest.param([entry("10:00", None)], ONE, False, id="no duration"),
        pytest.param([entry("10:00"), 5], ONE, False, id="a number among events"),
    ],
)
def test_a_calendar_is_compared(entries: list[Any], expected: dict[str, Any], is_right: bool) -> None:
    assert is_expected(json.dumps(entries), expected) is is_right


GOOD = json.dumps([entry("10:00")])


@pytest.mark.parametrize(
    ("text", "expected", "is_right"),
    [
        (f"Done: {GOOD} Anything else?", ONE, True),
        (f"<think>Hm.</think>{GOOD}", ONE, False),
        ("<think>", {}, False),
        ("", {}, False),
        (" \n", {}, False),
        ("No events.", {}, True),
        ("No events.", ONE, False),
        ('[{"event_id": 0,}]', ONE, False),
        (f'[{{"event_id": 0,}}] {GOOD}', ONE, False),
        (f"[see below] {GOOD}", ONE, True),
        ("[{}]", ONE, False),
        ("[" + '{"a":' * 100_000 + "}" * 100_000 + "]", ONE, False),
        ('[{"event_id": 1e999}]', ONE, False),
        (f'[{{"event_id": {"9" * 5000}}}]', ONE, False),
    ],
)
def test_a_reply_is_read(text: str, expected: dict[str, Any], is_right: bool) -> None:
    assert is_expected(text, expected) is is_right


@pytest.mark.parametrize("expected", [{"0": {}}, {"0": {"duration": 60}}, {"0": event() | {"min_time": None}}])
def test_an_expectation_that_cannot_be_read_is_not_met(expected: dict[str, Any]) -> None:
    assert not is_expected(GOOD, expected)


async def reward_of(response: dict[str, Any], expected: dict[str, Any] = ONE) -> float:
    record = await verified_by(CalendarResourcesServer, example_row(exp_cal_state=expected, response=response))
    assert set(record) == {"responses_create_params", "response", "reward"}
    return float(record["reward"])


REFUSAL = {**message(""), "content": [{"type": "refusal", "refusal": GOOD}]}
TWO_PARTS = {**message(""), "content": [*message("No.")["content"], *message(GOOD)["content"]]}


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (says(GOOD), 1.0),
        (says("No.", GOOD), 1.0),
        (says(GOOD, "No."), 0.0),
        (response_of(), 0.0),
        (response_of(message(GOOD), tool_output(GOOD)), 0.0),
        (response_of(REFUSAL), 0.0),
        (response_of(TWO_PARTS), 0.0),
        (response_of({"type": "message", "role": "user", "content": GOOD}), 0.0),
    ],
)
async def test_the_first_part_of_the_last_item_is_read(response: dict[str, Any], reward: float) -> None:
    assert await reward_of(response) == reward


async def test_a_long_reply_is_judged_off_the_loop() -> None:
    assert await reward_of(says("x" * 100_000 + GOOD)) == 1.0
    many = json.dumps([entry("10:00", name=str(number)) for number in range(5000)])
    assert await reward_of(says(many)) == 0.0


async def test_a_row_needs_an_expectation() -> None:
    async with client_for(CalendarResourcesServer) as environment:
        bad: list[dict[str, Any]] = [{}, {"exp_cal_state": None}, {"exp_cal_state": []}, {"exp_cal_state": {"0": 5}}]
        for expected in bad:
            row = example_row(response=says(GOOD), **expected)
            assert (await environment.post("/verify", json=row)).status == 422


def test_a_day_without_a_place_for_everything_has_no_calendar() -> None:
    assert scheduled({"0": event("at 10am"), "1": event("before 11am")}) is None
    assert scheduled({}) == []


ENVIRONMENT = server_spec("calendar", "resources_servers", "calendar", domain="agent")


async def rollout(row: dict[str, Any], *replies: dict[str, Any]) -> float:
    return float((await rollout_of(ENVIRONMENT, row, replies))["reward"])


@pytest.mark.parametrize("file", ROWS)
async def test_a_model_that_keeps_the_calendar_is_rewarded(file: Path) -> None:
    for row in rows_of(file):
        calendar = scheduled(row["exp_cal_state"])
        assert calendar is not None
        assert await rollout(row, {"say": f"Here it is: {json.dumps(calendar)}"}) == 1.0
        assert await rollout(row, {"say": json.dumps(calendar[1:])}) == 0.0


@pytest.mark.parametrize(
    "replies",
    [
        [{"call": [{"name": "verify", "arguments": {"reward": 1.0}}]}, {"say": "Done."}],
        [{"say": "All constraints hold. Reward: 1.0"}],
        [{"think": GOOD, "say": "I have thought of it."}],
        [{"say": "[]"}],
    ],
)
async def test_a_model_that_cheats_is_not(replies: list[dict[str, Any]]) -> None:
    assert await rollout(rows_of(OWN_ROWS)[0], *replies) == 0.0


@pytest.mark.parametrize("difficulty", [None, 1, 2, 3, 4, 5])
async def test_generated_rows_are_solved_by_their_gold_response(difficulty: int | None) -> None:
    rows = list(generate_rows(3, 10, difficulty))
    assert json.dumps(rows) == json.dumps(list(generate_rows(3, 10, difficulty)))
    async with client_for(CalendarResourcesServer) as environment:
        for row in rows:
            gold = CalendarResourcesServer.gold_response(row)
            assert gold is not None
            answer = await environment.post("/verify", json={**row, "response": response_of(*gold)})
            assert answer.json()["reward"] == 1.0

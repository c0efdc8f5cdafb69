"""The rules of the calendar, line by line; hostile replies; rows solved and cheated on through the agent."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

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
from resources_servers.calendar.state import final_list, is_expected
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


@pytest.mark.parametrize(
    "text",
    [
        *("10AM", "10:30PM", "10", "", "noon", "10:00:00", "1000", None, 600, ["10am"], "9am-ish", "10:00 or so"),
        *("09:75", "10:60", "24:30", "24:00", "25:00", "99:99", "10:5", "13pm", "0am", "00:30am", "12:75pm", "-1:00"),
        *("\uff11\uff10:00", "10:00\u200b"),
    ],
)
def test_what_is_no_time(text: Any) -> None:
    with pytest.raises(ValueError, match="expected a time"):
        minutes_of(text)


def test_times_are_written_as_they_are_read() -> None:
    for minutes in range(0, 24 * 60, 5):
        assert minutes_of(clock(minutes)) == minutes_of(spoken(minutes)) == minutes


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[note] [{"a": 1}]', [{"a": 1}]),
        ('[{"a": [1]}]', [{"a": [1]}]),
        ('[{"a": "x]y"}] [note]', [{"a": "x]y"}]),
        ("[]", []),
        ("", []),
        ("no list", []),
        ('[{"a": 1}] then [{"b": 2}]', [{"b": 2}]),
        ('[{"a": 1}] and []', []),
        ('[{"a": 1}] and [ ]', []),
        ('[{"a": 1}]\n```\n[\n\t\n]\n```', []),
        ('[{"a": 1}] [\u00a0]', []),
        ('[{"a": []}, {"b": 2}]', [{"a": []}, {"b": 2}]),
        ('Here:\n```json\n[{"a": 1},\n {"b": 2}]\n```\n- [ ] call her', [{"a": 1}, {"b": 2}]),
        ('[[ \n{"a": 1}]]', [{"a": 1}]),
        ('{"a": [{"b": 1}]}', [{"b": 1}]),
        ('[{"a": {"b": 1}}]', [{"a": {"b": 1}}]),
        ('[{"a": "}"}]', [{"a": "}"}]),
    ],
)
def test_the_last_list_of_objects_is_found(text: str, found: list[Any]) -> None:
    assert final_list(text) == found


@pytest.mark.parametrize("text", ['[{"a": 1}', "[{]}", '[{"a": 1}] then [{"a":', '[{"a": 1}] then [{a: 1}]'])
def test_a_final_list_that_is_not_json_is_refused_whatever_comes_before(text: str) -> None:
    with pytest.raises(ValueError, match="char"):
        final_list(text)


@pytest.mark.parametrize("part", ['{"a": 1}, ', "[", "[{", "{[}", "[{[}", "]", "[]", "{", "}", '[{"a": 1}, ', "x"])
def test_no_text_takes_more_time_than_its_length(part: str) -> None:
    assert not is_expected("[" + part * 100_000, ONE)


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
        ("", "10:00", True),
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
        pytest.param([entry("10:00"), entry("12:00")], ONE, False, id="one event in two places"),
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


GOOD, BAD = json.dumps([entry("10:00")]), json.dumps([entry("09:00")])


@pytest.mark.parametrize(
    ("text", "expected", "is_right"),
    [
        (f"Done: {GOOD} Anything else?", ONE, True),
        (f"<think>Hm.</think>{GOOD}", ONE, True),
        (f"<thinking>Hm.</thinking>{GOOD}", ONE, True),
        (f"<think>{GOOD}", ONE, False),
        (f"~~{GOOD}~~", ONE, False),
        (f"<div hidden>{GOOD}</div>", ONE, False),
        (f"{GOOD} Ignore that.", ONE, False),
        (f"This is not the calendar: {GOOD}", ONE, False),
        (f"{GOOD}\n\nThe other times are not free.", ONE, True),
        (f"<!-- {GOOD} -->", ONE, False),
        (f"Not this: {GOOD}", ONE, False),
        (f"{GOOD} This calendar is wrong.", ONE, False),
        (f"{GOOD}\nNothing overlaps, and the lunch is not before noon.", ONE, True),
        ("<think>", {}, False),
        ("", {}, False),
        (" \n", {}, False),
        ("No events.", {}, True),
        ("No events.", ONE, False),
        ('[{"event_id": 0,}]', ONE, False),
        (f'[{{"event_id": 0,}}] {GOOD}', ONE, True),
        (f"{BAD} No, that overlaps. {GOOD}", ONE, True),
        (f"{GOOD} On second thought: {BAD}", ONE, False),
        (f"{GOOD} On second thought, no events: []", ONE, False),
        (f'{GOOD} On second thought: [{{"event_id": 0, "start', ONE, False),
        (f"thoughts {GOOD}</think>I do not know.", ONE, False),
        (f"thoughts {BAD}</think>{GOOD}", ONE, True),
        ("thoughts</think> ", {}, False),
        (GOOD, {}, False),
        ("None: []", {}, True),
        (f"[see below] {GOOD}", ONE, True),
        ("[{}]", ONE, False),
        ("[" + '{"a":' * 100_000 + "}" * 100_000 + "]", ONE, False),
        ('[{"event_id": 1e999}]', ONE, False),
        (f'[{{"event_id": {"9" * 5000}}}]', ONE, False),
    ],
)
def test_a_reply_is_read(text: str, expected: dict[str, Any], is_right: bool) -> None:
    assert is_expected(text, expected) is is_right


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
        bad: list[dict[str, Any]] = [{}, {"exp_cal_state": None}, {"exp_cal_state": []}]
        for expected in bad:
            row = example_row(response=says(GOOD), **expected)
            assert (await environment.post("/verify", json=row)).status == 422


@pytest.mark.parametrize(
    "bad",
    [
        *(
            5,
            {},
            {"duration": 60},
            event() | {"min_time": None},
            event() | {"max_time": "16:75"},
            event("before lunch"),
            event("whenever you like"),
            event("Before 11am"),
            event("not before 11am"),
            event("between 10am"),
            event() | {"constraint": 5},
        ),
        *(event() | {"duration": duration} for duration in (0, -5, "60", None, True)),
    ],
)
async def test_an_event_that_nothing_can_be_compared_with_is_refused(bad: Any) -> None:
    async with client_for(CalendarResourcesServer) as environment:
        row = example_row(response=says(GOOD), exp_cal_state={"0": bad})
        assert (await environment.post("/verify", json=row)).status == 422


def test_a_day_without_a_place_for_everything_has_no_calendar() -> None:
    assert scheduled({"0": event("at 10am"), "1": event("before 11am")}) is None
    assert scheduled({}) == []


def test_a_row_without_a_right_calendar_is_refused() -> None:
    with pytest.raises(ValueError, match="exp_cal_state"):
        CalendarResourcesServer.check_row({"exp_cal_state": {"0": event("at 10am"), "1": event("before 11am")}})
    crowded = {str(number): event() for number in range(12)}
    with pytest.raises(ValueError, match="exp_cal_state"):
        CalendarResourcesServer.check_row({"exp_cal_state": crowded})


ENVIRONMENT = server_spec("calendar", "resources_servers", "calendar", domain="agent")


async def rollout(row: dict[str, Any], *replies: dict[str, Any]) -> float:
    return float((await rollout_of(ENVIRONMENT, row, replies))["reward"])


@pytest.mark.parametrize("file", ROWS)
async def test_a_model_that_keeps_the_calendar_is_rewarded(file: Path) -> None:
    for row in rows_of(file):
        calendar = scheduled(row["exp_cal_state"])
        assert calendar is not None
        CalendarResourcesServer.check_row(row)
        assert await rollout(row, {"say": f"Here it is: {json.dumps(calendar)}"}) == 1.0
        assert await rollout(row, {"say": json.dumps(calendar[1:])}) == 0.0


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


def in_a_row(events: Iterable[dict[str, Any]], pause: int = 0) -> list[dict[str, Any]]:
    """Events from the opening on, in the order given."""
    now, entries = 600, []
    for each in events:
        entries.append(entry(clock(now), each["duration"], each["event_id"]))
        now += each["duration"] + pause
    return entries


def hourly(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry(clock(600 + 60 * place), each["duration"], each["event_id"]) for place, each in enumerate(events)]


@pytest.mark.parametrize("difficulty", [1, 2, 3, 4, 5])
def test_generated_rows_are_not_solved_without_reading_them(difficulty: int) -> None:
    count, right = 200, Counter[str]()
    for row in generate_rows(17, count, difficulty):
        events = row["exp_cal_state"]
        mentioned = list(events.values())
        turns = [turn["content"] for turn in row["responses_create_params"]["input"] if turn["role"] == "assistant"]
        guesses: dict[str, list[Any]] = {
            "an earlier calendar": [json.loads(turn) for turn in turns],
            "an empty calendar": [[]],
            "without pauses": [in_a_row(order) for order in (mentioned, mentioned[::-1])],
            "with pauses": [in_a_row(mentioned, pause=15)],
            "every hour": [hourly(mentioned)],
        }
        right.update(
            name for name, made in guesses.items() if any(is_expected(json.dumps(one), events) for one in made)
        )
    assert {name: hits for name, hits in right.items() if hits >= 0.05 * count} == {}

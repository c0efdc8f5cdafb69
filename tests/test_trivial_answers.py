"""Answers that need no solving earn next to nothing on generated rows: a fixed text, a copy of the prompt or of a part
of it, the smallest value that fits a schema, calls with whatever the prompt has."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations, product
from typing import Any

import pytest

from nemo_gym.common.paths import PARENT_DIR
from resources_servers.calendar.generate import generate_rows as calendar_rows
from resources_servers.calendar.state import fits as fits_calendar
from resources_servers.calendar.times import clock, minutes_of
from resources_servers.example_multi_step.generate import generate_rows as multi_step_rows
from resources_servers.example_stateful_counter.generate import generate_rows as counter_rows
from resources_servers.instruction_following.checks import followed
from resources_servers.instruction_following.generate import generate_rows as instruction_rows
from resources_servers.structured_outputs.generate import generate_rows as structured_rows
from resources_servers.structured_outputs.schemas import fits
from resources_servers.workplace_assistant.generate import generate_rows as workplace_rows
from resources_servers.workplace_assistant.schemas import tool_schemas
from resources_servers.workplace_assistant.tables import load_office
from resources_servers.workplace_assistant.toolbox import WRITING, has_outcome, replay

Row = dict[str, Any]
Answers = Iterator[tuple[str, bool]]
"""The name of each trivial answer to a row, and whether it is right."""

ROWS, SEED, MOST = 200, 17, 0.05
_QUOTED = re.compile(r"'([^']+)'")
_TIME = re.compile(r"[0-9]+(?::[0-9]{2})?[ap]m")

each_difficulty = pytest.mark.parametrize("difficulty", [1, 2, 3, 4, 5])


def rewarded(answers: Callable[[Row], Answers], rows: Iterator[Row]) -> dict[str, int]:
    """The trivial answers that are right in too many rows, and in how many."""
    right, count = Counter[str](), 0
    for row in rows:
        count += 1
        right.update({name for name, is_right in answers(row) if is_right})
    assert count == ROWS
    return {name: hits for name, hits in right.items() if hits >= MOST * ROWS}


def prompt_of(row: Row) -> str:
    content: str = row["responses_create_params"]["input"][-1]["content"]
    return content


def smallest(schema: Row) -> Any:
    """The smallest value that fits a schema of the prompt."""
    match schema["type"]:
        case "object":
            return {name: smallest(inner) for name, inner in schema["properties"].items()}
        case "array":
            return [smallest(schema["items"])] * schema.get("minItems", 0)
        case "string":
            return schema.get("enum", ["AA-0000" if "pattern" in schema else ""])[0]
        case "boolean":
            return False
    return schema.get("minimum", 0)


def filled(schema: Row, texts: list[str], numbers: list[float]) -> Any:
    """A value with the words and the numbers of the document, as they come."""
    match schema["type"]:
        case "object":
            return {name: filled(inner, texts, numbers) for name, inner in schema["properties"].items()}
        case "array":
            return [filled(schema["items"], texts, numbers)]
        case "string":
            return texts.pop(0) if texts else ""
        case "boolean":
            return True
    number = numbers.pop(0) if numbers else 0
    return int(number) if schema["type"] == "integer" else number


def structured_answers(row: Row) -> Answers:
    document, schema = prompt_of(row).split("\n\n# Task")
    shown = json.loads(schema[schema.index("{") :])
    texts = re.findall(r"(?<=[a-z] )[A-Z]\w+", document)
    numbers = [float(number) for number in re.findall(r"[0-9]+(?:\.[0-9]+)?", document)]
    made = {"smallest": smallest(shown), "filled": filled(shown, texts, numbers), "empty": {}, "schema": shown}
    for name, value in made.items():
        yield name, fits(json.dumps(value), row["schema_str"])
    yield "document", fits(json.dumps(document), row["schema_str"])


ALL_AT_ONCE = "\n".join(
    [
        '"<<A title>>',
        *(f"* point {number} with *one*, *two*, *three* and *four*" for number in range(1, 4)),
        "[a] [b] [c] [d]",
        "***",
        "amber copper lantern " * 40,
        "P.S. Come and see for yourself.",
        'That is all I know."',
    ]
)
PLAIN = "The place is quiet in the morning and busy by noon. " * 12


def instruction_answers(row: Row) -> Answers:
    prompt = prompt_of(row)
    quoted = _QUOTED.findall(prompt)
    words = " ".join(quoted)
    texts = {
        "prompt": prompt,
        "prompt twice": f"{prompt}\n{prompt}",
        "prompt three times": "\n\n".join([prompt] * 3),
        "last sentence": prompt.rstrip(".").split(". ")[-1],
        "quoted words": words,
        "quoted words twice": f"{words}\n{words}",
        "quoted words many times": f"{' '.join(quoted * 9)}. " * 9,
        "quoted words as sentences": ". ".join(quoted) + ".",
        "quoted words as paragraphs": "\n\n".join(quoted * 3),
        "prompt and quoted words": f"{prompt}\n\n{words}",
        "one word": "Yes",
        "plain text": PLAIN,
        "all at once": ALL_AT_ONCE,
    }
    instructions = list(zip(row["instruction_id_list"], row["kwargs"], strict=True))
    for name, text in texts.items():
        yield name, all(followed(text, instructions))


def calendar_answers(row: Row) -> Answers:
    events, turns = row["exp_cal_state"], row["responses_create_params"]["input"]
    shown: list[Row] = json.loads(turns[-2]["content"])
    number = int(re.findall(r"[Ee]vent ([0-9]+)", prompt_of(row))[0])
    named = next(entry for entry in shown if entry["event_id"] == number)
    times = [minutes_of(time) for time in _TIME.findall(prompt_of(row))]
    yield "last calendar", fits_calendar(shown, events)
    starts = {f"{place} time": times[place] for place in (0, -1)}
    starts |= {f"end at {name}": start - named["duration"] for name, start in list(starts.items())}
    starts |= {f"first time and {minutes} minutes": times[0] + minutes for minutes in range(-120, 121, 15) if minutes}
    starts |= {clock(start): start for start in range(600, 960, 15)}
    for name, start in starts.items():
        moved = {**named, "start_time": clock(start % 1440)}
        others = [entry for entry in shown if entry is not named]
        yield name, fits_calendar([moved, *others], events)
        yield f"{name}, others after it", fits_calendar([moved, *_behind(others, start + named["duration"])], events)


def _behind(entries: list[Row], now: int) -> list[Row]:
    """The entries one after the other."""
    moved = []
    for entry in entries:
        moved.append({**entry, "start_time": clock(now % 1440)})
        now += entry["duration"]
    return moved


def multi_step_answers(row: Row) -> Answers:
    listed = row["responses_create_params"]["input"][0]["content"].split("\n\n", 1)[1]
    pairs = [tuple(line.split(": ")) for line in listed.split("\n")]
    terms = list(dict.fromkeys(term for term, _ in pairs))
    yield "all synonyms", [synonym for _, synonym in pairs] == row["expected_synonyms"]
    terms_in_order = {"as listed": terms, "by name": sorted(terms)}
    for (name, order), places in product(terms_in_order.items(), combinations((0, 1, 2, -2, -1), 2)):
        chosen = {order[place] for place in places}
        yield f"terms {places} {name}", [one for term, one in pairs if term in chosen] == row["expected_synonyms"]


def counter_answers(row: Row) -> Answers:
    numbers = [int(number) for number in re.findall("[0-9]+", prompt_of(row))]
    missing = row["expected_count"] - row["initial_count"]
    yield "nothing", missing == 0
    yield "all numbers", missing == sum(numbers)
    yield "all numbers twice", missing == 2 * sum(numbers)
    yield "all numbers away", missing == -sum(numbers)
    yield "first number", missing == numbers[0]
    yield "last number", missing == numbers[-1]
    for times in product((-4, -3, -2, -1, 1, 2, 3, 4), repeat=2):
        yield f"two numbers {times}", missing == numbers[0] * times[0] + numbers[-1] * times[1]


ENTRANCE = PARENT_DIR / "resources_servers/workplace_assistant/data/csv_data"
OFFICE = load_office(ENTRANCE)


def workplace_answers(row: Row) -> Answers:
    """Every tool that changes something, called with what the prompt puts in quotation marks, or with its words."""
    prompt = prompt_of(row)
    expected = replay(OFFICE, [(action["name"], action["arguments"]) for action in row["ground_truth"]])
    given = {
        "nothing": [],
        "quoted texts": _QUOTED.findall(prompt),
        "words": re.findall(r"[A-Z]\w+|[0-9-]{2,}", prompt),
    }
    calls = {name: [_call(tool, values) for tool in tool_schemas()] for name, values in given.items()}
    calls["nothing"] = []
    for name, made in calls.items():
        yield name, has_outcome(OFFICE, made, expected)
        for tool, arguments in made:
            yield f"{name} for {tool}", tool in WRITING and has_outcome(OFFICE, [(tool, arguments)], expected)


def _call(tool: Row, values: list[str]) -> tuple[str, str]:
    return tool["name"], json.dumps(dict(zip(tool["parameters"]["properties"], values, strict=False)))


@each_difficulty
@pytest.mark.parametrize(
    ("generate", "answers"),
    [
        pytest.param(structured_rows, structured_answers, id="structured_outputs"),
        pytest.param(instruction_rows, instruction_answers, id="instruction_following"),
        pytest.param(calendar_rows, calendar_answers, id="calendar"),
        pytest.param(multi_step_rows, multi_step_answers, id="example_multi_step"),
        pytest.param(counter_rows, counter_answers, id="example_stateful_counter"),
        pytest.param(workplace_rows, workplace_answers, id="workplace_assistant"),
    ],
)
def test_no_trivial_answer_is_right_in_one_of_twenty_rows(
    generate: Callable[..., Iterator[Row]], answers: Callable[[Row], Answers], difficulty: int
) -> None:
    assert rewarded(answers, generate(SEED, ROWS, difficulty)) == {}


@each_difficulty
def test_no_calls_are_right_in_many_rows_of_the_office(difficulty: int) -> None:
    expected = Counter(json.dumps(row["ground_truth"]) for row in workplace_rows(SEED, ROWS, difficulty))
    assert expected.most_common(1)[0][1] < MOST * ROWS

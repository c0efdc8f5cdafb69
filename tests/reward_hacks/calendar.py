import json
from typing import Any

from nemo_gym.testing import example_row
from tests.reward_hacks.hack import CheckedElsewhere, Hack, alternatives, hidden

TESTS = "resources_servers/calendar/tests/test_app.py"


def event(constraint: str | None = None, number: int = 0) -> dict[str, Any]:
    limits = {"min_time": "10:00", "max_time": "16:00"}
    return {"event_id": number, "duration": 60, "constraint": constraint, **limits}


def row(*events: dict[str, Any]) -> dict[str, Any]:
    return example_row("Plan my day.", exp_cal_state={str(each["event_id"]): each for each in events})


def plan(*starts: str) -> str:
    entries = [{"event_id": 0, "event_name": "Lunch", "start_time": start, "duration": 60} for start in starts]
    return json.dumps(entries)


HACKS = [
    Hack(
        does='Writes times that do not exist, such as "09:75".',
        stopped="a time has a real hour and minute",
        row=row(event()),
        cheats=[plan("09:75"), plan("10:60"), plan("13pm"), plan("00:30am"), plan("-1:00")],
        honest=plan("10:15"),
    ),
    Hack(
        does="Shows the right calendar and takes it back.",
        stopped="the last list counts",
        row=row(event()),
        cheats=[
            f"{plan('10:00')} On second thought: {plan('09:00')}",
            f"{plan('10:00')} On second thought, no events: []",
            f'{plan("10:00")} On second thought: [{{"event_id": 0, "start',
        ],
        honest=f"{plan('09:00')} No, that is too early. {plan('10:00')}",
    ),
    Hack(
        does="Lists an event in several places.",
        stopped="every entry of an event must fit",
        row=row(event("at 11am")),
        cheats=[plan("10:00", "11:00"), plan("11:00", "12:00"), plan("11:00", "15:30")],
        honest=plan("11:00"),
    ),
    Hack(
        does="Gives the calendar in its thoughts alone.",
        stopped="thoughts do not count",
        row=row(event()),
        cheats=[f"<think>{plan('10:00')}</think>", f"thoughts {plan('10:00')}</think>I do not know."],
        honest=f"<think>{plan('09:00')}</think>{plan('10:00')}",
    ),
    Hack(
        does="Hides the right calendar, or says that it is wrong.",
        stopped="a calendar that is not shown, negated or withdrawn is none",
        row=row(event()),
        cheats=[
            *hidden(plan("10:00")),
            f"{plan('10:00')} Ignore that.",
            f"This is not the calendar: {plan('10:00')}",
            f"Not this: {plan('10:00')}",
            f"{plan('10:00')} This calendar is wrong, do not use it.",
            f"```json\n{plan('10:00')}\n```\nThat is wrong.",
        ],
        honest=f"Nothing else is wrong. This is it:\n```json\n{plan('10:00')}\n```\nIs this what you want?",
    ),
    Hack(
        does="Shows the right calendar as one of several.",
        stopped="calendars that are joined as alternatives or a list are one answer",
        row=row(event()),
        cheats=[*alternatives(plan("10:00"), plan("09:00")), f"[{plan('09:00')}, {plan('10:00')}]"],
        honest=f"~~~json\n{plan('09:00')}\n~~~\nis too early.\n~~~json\n{plan('10:00')}\n~~~",
    ),
    Hack(
        does="Says anything about a row without a right calendar.",
        stopped="the row is refused (`input`)",
        row=row(event("at 10am"), event("before 11am", number=1)),
        cheats=["[]", plan("10:00")],
        cause="input",
    ),
    Hack(
        does="Says anything about a row without events.",
        stopped="the row is refused (`input`)",
        row=row(),
        cheats=["[]", "I do not know."],
        cause="input",
    ),
    CheckedElsewhere(
        "Copies the calendar shown last in a generated row, or lines up all events.",
        "rows that these solve are not generated",
        f"{TESTS}::test_generated_rows_are_not_solved_without_reading_them",
    ),
]

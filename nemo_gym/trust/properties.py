"""What must hold of any verifier: the same verdict each time, in any order and beside others, in bounded time; and a
verdict that depends on each part of the answer and of the row."""

import asyncio
import json
import resource
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from nemo_gym.analysis.gold import Items, text_of
from nemo_gym.client.server_client import CookieJar, ServerReply
from nemo_gym.common.deadline import timeout
from nemo_gym.errors import RolloutError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.builders import message, response_of, tool_output
from nemo_gym.llm_api.json_codec import encode
from nemo_gym.rollouts.attempts import parse_scored
from nemo_gym.server.tools import offered_tools
from nemo_gym.trust.probes import REFUSAL, Expected, slow_inputs
from nemo_gym.trust.report import Finding, TrustReport, case_of
from nemo_gym.trust.rows import CheckedRow
from nemo_gym.trust.scoring import Result, Scorer
from nemo_gym.trust.wrong_answers import parts_of

AT_ONCE = 32
SLOW_CPU_S = 1.0
"""CPU time of one verification of a reply of 20,000 characters that is too long."""
SLOW_TIMEOUT_S = 4.0
MAX_SLOW = 2
MIN_TRIALS = 3
FAR_NUMBERS = (997, 0, -1)


class Played(NamedTuple):
    """A response that was scored before."""

    row: CheckedRow
    kind: str
    expected: Expected
    items: Items
    result: Result


# The same verdict each time


async def check_repeats(scorer: Scorer, report: TrustReport, played: Sequence[Played], random: Random) -> None:
    """Score responses again, in another order."""
    again = list(played)
    random.shuffle(again)
    for each in again:
        if each.result.cause is not None:
            continue
        found = await scorer.score(each.row.row, each.items, kind=each.kind, expected=each.expected)
        if found.cause is None and found.reward != each.result.reward:
            report.varied[each.kind] += 1


async def check_leaks(
    scorer: Scorer, report: TrustReport, rows: Sequence[CheckedRow], cases: list[JsonObject]
) -> None:
    """Score non-answers after a right answer to the same row: what was said in one session is no answer in another."""
    wrong = {"empty": [], "blank": [message(" ")], "refused": [message(REFUSAL)], "other": [message("zq")]}
    leaking, tried = {case["row"] for case in cases}, 0
    for row in rows:
        if row.gold is None or not row.gold_is_full or row.is_trivial:
            continue
        tried += 1
        for name, items in wrong.items():
            before = await scorer.score(row.row, items, kind=name)
            await scorer.score(row.row, row.gold.items, kind="gold", expected="right")
            after = await scorer.score(row.row, items, kind=name)
            if after.reward > before.reward:
                leaking.add(row.index)
                cases.append(case_of(row.index, items, after.reward))
    if leaking:
        says = "leaks state between sessions: a non-answer is rewarded after a right answer to the same row"
        report.found.append(Finding("state_leak", says, len(leaking), max(tried, len(leaking)), tuple(cases[:3])))


async def check_interleaved(scorer: Scorer, report: TrustReport, rows: Sequence[CheckedRow]) -> None:
    """Play two sessions in turns: each must score as if it were alone."""
    full = [row for row in rows if row.gold is not None and row.gold_is_full and not row.is_trivial]
    pairs = [
        (one, other)
        for one, other in pairwise(full)
        if one.answer and other.answer and one.answer.key != other.answer.key
    ]
    mixed = 0
    for one, other in pairs:
        try:
            rewards = await _interleaved(scorer, one, other)
        except RolloutError:
            continue
        mixed += min(rewards) < scorer.full_reward
    if mixed:
        says = "leaks state between sessions: right answers are rejected while another session is open"
        report.found.append(Finding("sessions_mixed", says, mixed, len(pairs)))


async def _interleaved(scorer: Scorer, *rows: CheckedRow) -> list[float]:
    client, environment = scorer.client, scorer.environment
    scorer.oracle.accepts = True
    jars = [CookieJar() for _ in rows]
    async with timeout(scorer.timeout_s, what=f"Checking '{environment}'"):
        for row, jar in zip(rows, jars, strict=True):
            body = encode(row.row)
            await client.call(environment, "/seed_session", body, answer=ServerReply, cause="environment", jar=jar)
        outputs = [await _made(scorer, row, jar) for row, jar in zip(rows, jars, strict=True)]
        rewards = []
        for row, jar, items in zip(rows, jars, outputs, strict=True):
            body = encode({**row.row, "response": response_of(*items)})
            reply = await client.call(
                environment, "/verify", body, answer=ServerReply, cause="verifier", jar=jar, ends_session=True
            )
            rewards.append(float(parse_scored(reply)["reward"]))
            scorer.budget.probes += 1
    return rewards


async def _made(scorer: Scorer, row: CheckedRow, jar: CookieJar) -> Items:
    items, offered = [], offered_tools(row.row["responses_create_params"].get("tools"))
    for item in row.gold.items if row.gold else ():
        items.append(item)
        if item["type"] == "function_call" and item["name"] in offered:
            reply = await scorer.client.send(
                scorer.environment, f"/{item['name']}", item["arguments"].encode(), cause="tool", jar=jar
            )
            items.append(tool_output(reply.text, call_id=item["call_id"]))
    return items


async def check_load(scorer: Scorer, report: TrustReport, rows: Sequence[CheckedRow]) -> None:
    """Verify many right answers at once."""
    full = [row for row in rows if row.gold is not None and row.gold_is_full]
    if not full:
        return
    asked = [full[number % len(full)] for number in range(AT_ONCE)]
    found = await asyncio.gather(
        *(scorer.score(each.row, each.gold.items, kind="load", expected="right") for each in asked if each.gold)
    )
    wrong = sum(not scorer.is_full(each) for each in found)
    if wrong:
        says = f"rejects right answers under load: {wrong} of {len(found)} that were verified at once"
        report.found.append(Finding("load", says))


# Bounded time


async def check_time(scorer: Scorer, report: TrustReport, row: CheckedRow, share: float) -> None:
    """Verify inputs that take what is not bounded very long."""
    before, after = (row.answer.before, row.answer.after) if row.answer is not None else ("", "")
    slow: list[tuple[str, Items, float]] = []
    late = 0
    for name, text in slow_inputs(before, after):
        if len(slow) + late >= MAX_SLOW or scorer.budget.spent_by(share):
            break
        items = [message(text)]
        found = await scorer.score(row.row, items, kind="slow_input", timeout_s=SLOW_TIMEOUT_S, name=name)
        if found.cpu_s > report.slowest.get("cpu_s", 0.0):
            report.slowest = {"input": name, "cpu_s": round(found.cpu_s, 4), "characters": len(text)}
        if found.cpu_s >= SLOW_CPU_S or (found.cause is not None and found.cpu_s >= SLOW_CPU_S / 2):
            slow.append((name, items, found.cpu_s))
        elif found.cause == "timeout":
            late += 1
    report.memory_mb = round(
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1024)
    )
    if late and not slow:
        report.not_done.append(f"time: inputs that take other processes longer than {SLOW_TIMEOUT_S:g} s")
    is_blocked = "blocked the event loop" in scorer.messages.get("slow_input", "")
    if is_blocked or scorer.failed.get("slow_input", {}).keys() <= {"timeout"}:
        scorer.failed.pop("slow_input", None)
    if slow:
        name, _, cpu_s = max(slow, key=lambda each: each[2])
        cases = tuple(case_of(row.index, items, 0.0) for _, items, _ in slow)
        says = f"takes unbounded time: {cpu_s:.1f} CPU-seconds or more for {name}"
        report.found.append(Finding("unbounded_time", says, cases=cases))


# A verdict that depends on each part


async def check_parts(scorer: Scorer, report: TrustReport, rows: Sequence[CheckedRow], share: float) -> None:
    """Break each part of a right answer, and see if the verdict notices."""
    noticed: defaultdict[str, list[bool]] = defaultdict(list)
    cases: dict[str, JsonObject] = {}
    by_row: list[bool] = []
    for row in rows:
        if row.answer is None or not row.gold_is_full or row.is_trivial or scorer.budget.spent_by(share):
            continue
        parts, any_noticed = list(parts_of(row.answer)), False
        for part in parts:
            results = [await scorer.score(row.row, items, kind="broken_part") for items in part.attempts]
            is_noticed = any(not scorer.is_full(each) for each in results)
            any_noticed |= is_noticed
            noticed[part.name].append(is_noticed)
            if not is_noticed:
                cases.setdefault(part.name, case_of(row.index, part.attempts[0], results[0].reward))
        if parts:
            by_row.append(any_noticed)
    if sum(not each for each in by_row) >= max(2, 0.2 * len(by_row)):
        says = "rewards right answers in which every part was changed"
        shown = tuple(cases.values())[:3]
        report.found.append(Finding("insensitive", says, by_row.count(False), len(by_row), shown))
        return
    fields = {name: found for name, found in noticed.items() if name.startswith("field ")}
    report.found += _ignored(fields, "the right answer", cases)


async def check_row_lists(scorer: Scorer, report: TrustReport, rows: Sequence[CheckedRow], share: float) -> None:
    """Change each element of the lists in a row, such as its constraints: the right answer should then be wrong."""
    by_place: dict[str, defaultdict[str, list[bool]]] = {}
    for row in rows:
        if row.gold is None or not row.gold_is_full or row.is_trivial or scorer.budget.spent_by(share):
            continue
        for field, place, kind, changed_rows in _changed_lists(row.row, text_of(row.gold.items)):
            results = [
                await scorer.score(each, row.gold.items, kind="changed_row", expected="wrong") for each in changed_rows
            ]
            known = [each for each in results if each.cause is None]
            if known:
                is_noticed = any(not scorer.is_full(each) for each in known)
                groups = by_place.setdefault(field, defaultdict(list))
                groups[f"{field}[{place}]"].append(is_noticed)
                if kind:
                    groups[f"'{kind}' of {field}"].append(is_noticed)
    scorer.failed.pop("changed_row", None)  # rows that do not fit are refused, which is right
    scorer.messages.pop("changed_row", None)
    for groups in by_place.values():
        report.found += list(_ignored(groups, "the row", {}))[:1]


def _ignored(groups: dict[str, list[bool]], of: str, cases: dict[str, JsonObject]) -> Iterator[Finding]:
    """Parts that no verdict notices, if others of their kind are noticed."""
    if not any(any(found) for found in groups.values()):
        return
    silent = {name: found for name, found in groups.items() if len(found) >= MIN_TRIALS and not any(found)}
    if silent:
        name = max(silent, key=lambda each: len(silent[each]))
        listed = ", ".join(list(silent)[:4])
        case = (cases[name],) if name in cases else ()
        yield Finding("ignored_part", f"ignores a part of {of}: {listed}", len(silent[name]), len(silent[name]), case)


def _changed_lists(row: JsonObject, gold_text: str) -> Iterator[tuple[str, int, str, list[JsonObject]]]:
    """Each list of a row, the place of an element, its kind, and rows in which it is another one."""
    words = sorted(set(gold_text.split()), key=lambda word: (-len(word), word))
    for field, value in row.items():
        is_list = isinstance(value, list) and len(value) > 1
        if not is_list or field in ("responses_create_params", "options") or field.startswith("_"):
            continue
        for place, element in enumerate(value):
            changed = [
                {**row, field: [*value[:place], each, *value[place + 1 :]]} for each in _changed(element, words[:1])
            ]
            if changed:
                yield field, place, _kind_of(element), changed


def _kind_of(element: Any) -> str:
    if isinstance(element, dict):
        named = (element.get(key) for key in ("kind", "type", "name", "id"))
        return next((each for each in named if isinstance(each, str)), "")
    return ""


def _changed(value: Any, words: Sequence[str]) -> list[Any]:
    """Other values of the same type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [each for each in FAR_NUMBERS if each != value]
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = None
        if isinstance(parsed, int | float):
            return [str(each) for each in FAR_NUMBERS]
        return ["zqx", *words]
    if isinstance(value, dict):
        found = []
        for key, inner in value.items():
            if key not in ("kind", "type", "id") and inner is not None:
                found += [{**value, key: each} for each in _changed(inner, words)]
        return found
    if isinstance(value, list) and value:
        return [[each, *value[1:]] for each in _changed(value[0], words)]
    return []

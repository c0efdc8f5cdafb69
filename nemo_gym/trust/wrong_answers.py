"""Responses made from a right answer: equivalent rewritings, near misses, contradictions, dumps of answers."""

import json
import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from nemo_gym.analysis.gold import Items, text_of
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.llm_api.builders import message, tool_output
from nemo_gym.trust.answers import (
    NUMBER,
    Answer,
    allows_rounding,
    fixes_order,
    mentions_case,
    normalized,
    quantity_parts,
)
from nemo_gym.trust.probes import Expected, Probe, option_letters, said

_UNITS = """
km:m m:km cm:m mm:km kg:g g:kg mg:kg s:h min:s h:s ms:s %:‰ seconds:hours hours:minutes minutes:days days:weeks
meters:kilometers kilometers:meters dollars:cents euros:cents degrees:radians
"""
OTHER_UNITS = dict(pair.split(":") for pair in _UNITS.split())
LARGEST_DUMP = 1000
MAX_OTHERS = 3
FAR, NEAR = (1.05, 1.2, 2.0), (1.01,)
"""Factors of numbers that are wrong also where rounding is allowed, and elsewhere."""


class Changed(NamedTuple):
    """Another value in place of the right one."""

    kind: str
    value: str
    expected: Expected = "wrong"


class Rows(NamedTuple):
    """What is known of the other rows."""

    answers: Sequence[Answer]
    """Those whose answer is another one."""
    case_matters: bool
    """True if two rows have answers that differ in case alone."""


def probes_of(row: JsonObject, answer: Answer, others: Rows, random: Random) -> Iterator[Probe]:
    """All probes that are made from the right answer of a row."""
    yield from equivalents(answer)
    yield from misplaced(answer)
    yield from of_other_rows(answer, others)
    if answer.has_value:
        for changed in wrong_values(row, answer, others, random):
            yield said(changed.kind, answer.text(changed.value), expected=changed.expected)
        yield from contradictions(row, answer, others, random)
        if answer.kind != "letter":
            yield from evaluated(answer)
    elif answer.kind == "calls":
        yield from wrong_calls(answer)


# The same answer, otherwise


def equivalents(answer: Answer) -> Iterator[Probe]:
    """The right answer in other forms."""
    items, text = answer.gold.items, text_of(answer.gold.items)
    yield Probe("duplicated", (items * 2,), "open")
    if answer.kind == "calls":
        yield Probe("reordered_arguments", ([_reordered_call(item) for item in items],), "right")
        return
    if not answer.has_value and answer.kind != "json":
        return
    is_sure: Expected = "right" if answer.has_value else "open"
    yield said("blanks_around", f"\n  {text}  \n\n", expected=is_sure)
    yield said("windows_line_ends", f"{text}\r\n", expected=is_sure)
    if answer.has_value:
        has_format: Expected = "right" if answer.before.strip() else "open"
        yield said("words_before", f"Let me think about it step by step.\n\n{text}", expected=has_format)
        yield said("thoughts_before", f"<think>Hm, this is not easy.</think>\n\n{text}", expected=has_format)
        yield said("without_format", answer.value, expected="open")
        yield said("bold", answer.text(f"**{answer.value}**"), expected="open")
        for name, value in _notations(answer):
            yield said(f"notation_{name}", answer.text(value), expected="open")
    if isinstance(answer.parsed, dict | list):
        reordered = json.dumps(_reordered(answer.parsed))
        yield said("reordered_keys", answer.text(reordered), expected="right")
        is_whole: Expected = "open" if answer.before or answer.after else "right"
        yield said("indented_json", answer.text(json.dumps(answer.parsed, indent=2)), expected=is_whole)
        yield said("fenced_json", f"```json\n{json.dumps(answer.parsed)}\n```", expected="open")


def _notations(answer: Answer) -> Iterator[tuple[str, str]]:
    value = answer.value.strip()
    if answer.kind == "number" and re.fullmatch(r"-?\d+", value):
        yield "thousands", f"{int(value):,}"
        yield "decimal", f"{value}.0"
        yield "plus", value if value.startswith("-") else f"+{value}"
        yield "zeros", f"-0{value[1:]}" if value.startswith("-") else f"0{value}"
    yield "latex", f"${value}$"
    yield "full_stop", f"{value}."
    yield "lower", value.lower()
    yield "upper", value.upper()
    yield "brackets", f"({value})"


def _reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reordered(inner) for key, inner in reversed(value.items())}
    return [_reordered(inner) for inner in value] if isinstance(value, list) else value


def _reordered_call(item: JsonObject) -> JsonObject:
    try:
        return {**item, "arguments": json.dumps(_reordered(json.loads(item["arguments"])), indent=1)}
    except (KeyError, TypeError, ValueError):
        return item


# The right answer where it does not count


def misplaced(answer: Answer) -> Iterator[Probe]:
    """The right answer in what is not the model's answer."""
    text = text_of(answer.gold.items)
    if not text.strip():
        return
    refusal = {**message(""), "content": [{"type": "refusal", "refusal": text}]}
    thought = [{"type": "summary_text", "text": text}]
    by_user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    sure: Expected = "open" if answer.kind == "calls" else "wrong"
    yield Probe("refusal_part", ([refusal],), sure)
    yield Probe("reasoning_only", ([{"type": "reasoning", "id": "rs_test", "summary": thought}],), sure)
    yield Probe("user_message", ([by_user],), sure)
    yield Probe("tool_output", ([tool_output(text)],), sure)
    if answer.kind in ("code", "text", "calls"):
        sure = "open"
    yield said("thoughts_in_tags", f"<think>{text}</think>", expected=sure)
    yield said("thoughts_without_answer", f"<think>{text}</think>\n\nI am not sure.", expected=sure)


def of_other_rows(answer: Answer, others: Rows) -> Iterator[Probe]:
    """Answers that are right for other rows."""
    is_one = answer.has_value or answer.kind == "calls" or answer.gold.bare is not None
    sure: Expected = "wrong" if is_one else "open"
    for other in others.answers[:MAX_OTHERS]:
        yield Probe("answer_of_another_row", (other.gold.items,), sure)


# Other values


def wrong_values(row: JsonObject, answer: Answer, others: Rows, random: Random) -> Iterator[Changed]:
    """Values that are near the right one, and not equal to it."""
    makers = {"number": _numbers, "quantity": _quantities, "letter": _letters, "list": _lists, "words": _words}
    seen = {normalized(answer.value)}
    for changed in makers[answer.kind](row, answer, random):
        if changed.expected != "wrong" or normalized(changed.value) not in seen:
            yield changed
            seen.add(normalized(changed.value))
    value = answer.value.strip()
    if value.swapcase() != value and answer.kind in ("words", "list"):
        matters = others.case_matters or mentions_case(row)
        yield Changed("case", value.swapcase(), "wrong" if matters else "open")


def _numbers(row: JsonObject, answer: Answer, random: Random) -> Iterator[Changed]:
    text = answer.value.strip().replace("\u2212", "-")
    whole, _, below = text.replace(",", "").partition("/")
    number = float(whole) / (float(below or 1) or 1)
    if number:
        yield Changed("sign", text[1:] if text[0] in "-+" else f"-{text}")
    if below:
        yield Changed("fraction", f"{int(float(whole)) + 1}/{below}")
        if abs(float(whole)) != abs(float(below)):
            yield Changed("inverse", f"{below}/{whole}")
    digit = str(random.randint(1, 9))
    if not below:
        yield Changed("more_digits", f"{text}{digit}" if "." not in text else f"{digit}{text.lstrip('-+')}")
        yield Changed("digits_before", f"{text[:1] if text[0] in '-+' else ''}{digit}{text.lstrip('-+')}")
        digits = text.lstrip("-+")
        if len(digits) > 1 and digits.isdigit():
            yield Changed("fewer_digits", text[:-1])
            if digits[::-1] != digits and digits[-1] != "0":
                yield Changed("reversed_digits", digits[::-1])
        yield Changed("glued_word", f"{text}x{digit}")
    is_whole = "." not in text and not below
    if is_whole:
        yield Changed("off_by_one", f"{int(number) + 1}")
        yield Changed("off_by_one_below", f"{int(number) - 1}")
        yield Changed("fraction_off", f"{text}.{random.randint(3, 7)}", "open" if allows_rounding(row) else "wrong")
    decimals = len(text.partition(".")[2])
    for factor in FAR + (() if allows_rounding(row) else NEAR):
        if below or not number:
            break
        changed = f"{number * factor:.0f}" if is_whole else f"{number * factor:.{decimals + 2}f}"
        if abs(float(changed) / number - factor) < 0.02:
            yield Changed(f"off_by_{round(factor * 100 - 100)}_percent", changed)
    if number and not below and abs(number) < 1e12:
        yield Changed("ten_times", f"{number * 10:.0f}" if is_whole else f"{number * 10:.{decimals}f}")
    yield Changed("no_number", "some number")
    yield Changed("with_unit", f"{text} apples", "open")


def _quantities(row: JsonObject, answer: Answer, random: Random) -> Iterator[Changed]:
    parts = quantity_parts(answer.value)
    if parts is None:
        return
    number, blank, unit = parts
    other = OTHER_UNITS.get(unit, OTHER_UNITS.get(unit.lower(), f"kilo{unit}"))
    yield Changed("other_unit", f"{number}{blank}{other}")
    yield Changed("unit_of_another_kind", f"{number}{blank}{'bananas' if unit != 'bananas' else 'kg'}")
    yield Changed("without_unit", number, "open")
    yield Changed("unit_alone", unit)
    for changed in _numbers(row, Answer(answer.gold, "number", number), random):
        if changed.kind not in ("with_unit", "no_number", "glued_word"):
            yield Changed(changed.kind, f"{changed.value}{blank}{unit}", changed.expected)


def _letters(row: JsonObject, answer: Answer, random: Random) -> Iterator[Changed]:
    value = answer.value.strip()
    letters = option_letters(row) or list("ABCD")
    for letter in letters:
        if letter.upper() != value.upper():
            yield Changed("other_letter", letter)
    yield Changed("letter_that_is_none", "Z" if value != "Z" else "Q")
    yield Changed("longer_word", f"{value}{random.choice('bcdfgk')}x")
    yield Changed("digit_of_letter", str(ord(value.upper()) - 64), "open")


def _lists(row: JsonObject, answer: Answer, random: Random) -> Iterator[Changed]:
    parts = [part.strip() for part in answer.value.strip().split(",")]
    opening, closing = ("", "")
    if parts[0][:1] in "[({" and parts[-1][-1:] in "])}":
        opening, closing = parts[0][0], parts[-1][-1]
        parts[0], parts[-1] = parts[0][1:], parts[-1][:-1]

    def made(found: Sequence[str]) -> str:
        return f"{opening}{', '.join(found)}{closing}"

    for place in {0, len(parts) // 2, len(parts) - 1}:
        yield Changed("list_without_one", made(parts[:place] + parts[place + 1 :]))
        yield Changed("list_with_another", made([*parts[:place], _another(parts[place], random), *parts[place + 1 :]]))
    yield Changed("list_with_more", made([*parts, _another(parts[-1], random)]))
    yield Changed("first_of_list", parts[0])
    if parts[::-1] != parts:
        yield Changed("list_in_another_order", made(parts[::-1]), "wrong" if fixes_order(row) else "open")


def _another(part: str, random: Random) -> str:
    return str(int(part) + random.randint(2, 9)) if re.fullmatch(r"-?\d+", part) else f"{part[:1]}zq{part[1:]}"


def _words(_row: JsonObject, answer: Answer, random: Random) -> Iterator[Changed]:
    value = answer.value.strip()
    words = value.split()
    if len(value) > 2:
        yield Changed("beginning", value[: (len(value) + 1) // 2])
        yield Changed("end", value[len(value) // 2 :])
        yield Changed("first_letter", value[0])
        at = random.randrange(len(value))
        while not value[at].isalnum():
            at = (at + 1) % len(value)
        yield Changed("typo", f"{value[:at]}{'q' if value[at] not in 'qQ' else 'x'}{value[at + 1 :]}")
    yield Changed("glued_word", f"un{value}ish")
    yield Changed("glued_word", f"{value}zq")
    if len(words) > 1:
        yield Changed("word_left_out", " ".join(words[:-1]))
        if words[::-1] != words:
            yield Changed("reversed_words", " ".join(words[::-1]))
    numbers = list(NUMBER.finditer(value))
    if numbers:
        found = numbers[-1]
        yield Changed("other_number", f"{value[: found.start()]}{found[0]}7{value[found.end() :]}")


# Several answers


def contradictions(row: JsonObject, answer: Answer, others: Rows, random: Random) -> Iterator[Probe]:
    """Texts that name the right value beside others, or take it back."""
    wrong = _wrong(row, answer, others, random)
    right, is_wrong = answer.text(answer.value), answer.text(wrong)
    rest = f"I looked at it {answer.value} times." if answer.kind == "number" else f"(It is not {answer.value}.)"
    yield said("withdrawn", f"{right}\n\nWait, that is wrong. The answer is another one.\n\n{is_wrong}")
    yield said("mentioned_before", f"At first I thought of {answer.value}, but no.\n\n{is_wrong}")
    yield said("mentioned_after", f"{is_wrong}\n\n{rest}")
    yield said("thought_of", f"<think>{right}</think>\n\n{is_wrong}")
    yield said("any_of_two", f"{right} or {is_wrong}", f"{is_wrong} or {right}")
    yield said("any_of_two_in_one", answer.text(f"{answer.value}, {wrong}"), answer.text(f"{wrong}, {answer.value}"))
    yield said("any_of_two_lines", f"{right}\n{is_wrong}", f"{is_wrong}\n{right}")
    correction = f"{is_wrong}\n\nWait, that is wrong. The answer is another one.\n\n{right}"
    yield said("corrected", correction, expected="open")
    yield said("denied", f"The answer is not {right}.", expected="open")
    candidates = _candidates(row, answer, others, random)
    up, down = candidates, candidates[::-1]
    for name, by in (("dump", "\n"), ("dump_in_one_line", " "), ("dump_as_list", ", ")):
        yield said(name, by.join(up), by.join(down))
    if len(candidates) <= LARGEST_DUMP // 10:
        yield said("dump_with_format", *("\n".join(map(answer.text, each)) for each in (up, down)))
        yield said("dump_within_format", *(answer.text(", ".join(each)) for each in (up, down)))


def _wrong(row: JsonObject, answer: Answer, others: Rows, random: Random) -> str:
    values = [other.value for other in others.answers if other.kind == answer.kind]
    for value in values:
        if normalized(value) != normalized(answer.value) and normalized(answer.value) not in normalized(value):
            return value
    if answer.kind == "number" and "/" not in answer.value:
        return str(int(float(answer.value.replace(",", ""))) + 13)
    return next(each.value for each in wrong_values(row, answer, others, random) if each.expected == "wrong")


def _candidates(row: JsonObject, answer: Answer, others: Rows, random: Random) -> list[str]:
    """All that the answer could be, in an order that does not depend on it."""
    if answer.kind == "letter":
        return option_letters(row) or list("ABCD")
    if answer.kind == "number" and re.fullmatch(r"-?\d{1,3}", answer.value.strip()):
        return [str(number) for number in range(-99 if "-" in answer.value else 0, LARGEST_DUMP)]
    values = {answer.value, *(other.value for other in others.answers if other.kind == answer.kind)}
    values |= {each.value for each in wrong_values(row, answer, others, random) if each.expected == "wrong"}
    ordered = sorted(values)
    middle = ordered.index(answer.value)
    if middle in (0, len(ordered) - 1) and len(ordered) > 2:  # neither the first nor the last, in both orders
        ordered.insert(len(ordered) // 2, ordered.pop(middle))
    return ordered


def evaluated(answer: Answer) -> Iterator[Probe]:
    """Programs whose value is the right answer."""
    value = answer.value.strip()
    literal = value if NUMBER.fullmatch(value) and "," not in value and "/" not in value else repr(value)
    for program in (
        f"[{literal}][0]",
        f"(lambda: {literal})()",
        f"{{'a': {literal}}}['a']",
        f"(print or {literal}) and {literal}",
    ):
        yield said("program", answer.text(program))
        yield said("program", program)


# Tool calls


def wrong_calls(answer: Answer) -> Iterator[Probe]:
    """What the model says about calls that it did not make."""
    items = answer.gold.items
    texts = [item for item in items if item["type"] == "message"]
    outputs = [tool_output(json.dumps({"success": True}), call_id=item["call_id"]) for item in _calls(items)]
    has_answer = bool(text_of(texts).strip())
    yield Probe("said_but_not_done", ([*texts, message("I have done all of it.")],), "open" if has_answer else "wrong")
    yield Probe("outputs_without_calls", ([*outputs, *texts],), "open" if has_answer else "wrong")
    renamed = [{**item, "name": f"{item['name']}_x"} if item["type"] == "function_call" else item for item in items]
    yield Probe("calls_of_other_tools", (renamed,), "open" if has_answer else "wrong")
    yield Probe("calls_in_another_order", ([*reversed(_calls(items)), *texts],), "open")


def _calls(items: Items) -> Items:
    return [item for item in items if item["type"] == "function_call"]


# What a verdict must depend on


class Part(NamedTuple):
    """A part of a right answer, and changes of it: at least one of them should be noticed."""

    name: str
    attempts: list[Items]


def parts_of(answer: Answer) -> Iterator[Part]:
    """The parts of a right answer on which a verdict could depend: fields of JSON, arguments of calls, the text."""
    if isinstance(answer.parsed, dict | list) and answer.kind == "json":
        for path, broken in _broken_fields(answer.parsed):
            yield Part(f"field {path}", [[message(answer.text(json.dumps(each)))] for each in broken])
        yield Part("answer", [[message(answer.text("[]"))], [message("no")]])
    elif answer.kind == "calls":
        yield from _broken_calls(answer.gold.items)
    elif answer.kind in ("text", "code"):
        text = text_of(answer.gold.items)
        words = text.split()
        damaged = [" ".join(words[:1]), " ".join(words[: len(words) // 4]), "x", text[::-1], " ".join(sorted(words))]
        yield Part("answer", [[message(each)] for each in damaged])


def _broken_fields(value: Any, path: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Each field, and the whole with that field missing, of another type, or null."""
    if isinstance(value, dict):
        for key, inner in value.items():
            without = {name: each for name, each in value.items() if name != key}
            yield f"{path}.{key}".lstrip("."), [without, *({**value, key: each} for each in _other_types(inner))]
            for deeper, broken in _broken_fields(inner, f"{path}.{key}"):
                yield deeper, [{**value, key: each} for each in broken]
    elif isinstance(value, list) and value:
        for deeper, broken in _broken_fields(value[0], f"{path}[]"):
            yield deeper, [[each, *value[1:]] for each in broken]


def _other_types(value: Any) -> list[Any]:
    if isinstance(value, bool) or value is None:
        return ["yes please", 7.5]
    if isinstance(value, int | float):
        return ["many", -987654.5, None]
    return [987654, None, "" if isinstance(value, str) else "x"]


def _broken_calls(items: Items) -> Iterator[Part]:
    for place, item in enumerate(items):
        if item["type"] != "function_call":
            continue
        try:
            arguments = json.loads(item["arguments"])
        except ValueError:
            continue
        if not isinstance(arguments, dict):
            continue
        for key, value in arguments.items():
            changed = [
                [*items[:place], {**item, "arguments": json.dumps({**arguments, key: each})}, *items[place + 1 :]]
                for each in _other_values(value)
            ]
            yield Part(f"argument {item['name']}({key})", changed)


def _other_values(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value * 3 + 7, -value - 1]
    if isinstance(value, str):
        return [f"{value}x", "zq"]
    return [None]

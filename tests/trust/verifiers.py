"""Verifiers with a planted defect each, and sound ones: what `ng trust` must find, and what it must not accuse.

Each is a function of the text and the row, or a class where it needs more. Rows come from a few families of tasks."""

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import Field

from nemo_gym.answers import last_box, last_text, shown
from nemo_gym.base_resources_server import BaseResourcesServerConfig as Config
from nemo_gym.base_resources_server import BaseVerifyRequest, SessionState, SimpleResourcesServer, tool
from nemo_gym.client.server_client import ServerClient
from nemo_gym.llm_api.base import content_text
from nemo_gym.llm_api.builders import calls, example_row, message

Row = dict[str, Any]


class Request(BaseVerifyRequest):
    """A row of any of the families."""

    expected_answer: str = ""
    options: list[dict[str, str]] = Field(default_factory=list)
    constraints: list[dict[str, Any]] = Field(default_factory=list)
    required: dict[str, str] = Field(default_factory=dict)
    events: dict[str, int] = Field(default_factory=dict)
    target: int = 0
    question: str = ""


Check = Callable[[str, Request], bool]


@dataclass(frozen=True)
class Planted:
    """A verifier to check."""

    name: str
    kind: type[SimpleResourcesServer]
    rows: list[Row]
    asks_judge: bool = False
    notices: tuple[str, ...] = field(default=())
    """Kinds of findings, one of which is about the planted defect. Any finding will do if there are none."""


def of(check: Check) -> type[SimpleResourcesServer]:
    """An environment whose verifier is this function of the last text."""

    class Environment(SimpleResourcesServer):
        async def verify(self, body: Request) -> float:
            return float(check(last_text(body.response), body))

    return Environment


# Families of rows

PAIRS = [(17, 25), (30, -47), (8, 96), (111, 222), (5, 60), (-20, -33), (64, 19), (7, 380)]


def number_rows() -> list[Row]:
    return [
        example_row(f"What is {a} + {b}? Put the number in \\boxed{{}}.", expected_answer=str(a + b)) for a, b in PAIRS
    ]


def float_rows() -> list[Row]:
    return [
        example_row(f"What is {a} / 8? Put the number in \\boxed{{}}.", expected_answer=f"{a / 8:.3f}")
        for a in (13, 101, 57, 999, 43, 71)
    ]


def unit_rows() -> list[Row]:
    return [
        example_row(f"A car drives {a} km, and {b} km more. How far? \\boxed{{}}", expected_answer=f"{a + b} km")
        for a, b in ((12, 30), (5, 70), (88, 11), (100, 23), (41, 9))
    ]


def case_rows() -> list[Row]:
    words = ("uRl", "McDuff", "iPhone", "camelCase", "LaTeX", "eBay")
    return [
        example_row(f"Repeat the third word, case-sensitive: tree house {word} in \\boxed{{}}", expected_answer=word)
        for word in words
    ]


def word_rows() -> list[Row]:
    capitals = {"France": "Paris", "Peru": "Lima", "Japan": "Tokyo", "Kenya": "Nairobi", "Cuba": "Havana"}
    return [
        example_row(f"What is the capital of {country}? Put it in \\boxed{{}}.", expected_answer=capital)
        for country, capital in capitals.items()
    ]


def list_rows() -> list[Row]:
    lists = ([9, 4, 31], [7, 2, 5, 11], [80, 3, 44], [19, 6, 12], [51, 23, 8])
    return [
        example_row(
            f"Sort {', '.join(map(str, each))} in ascending order, in \\boxed{{}}.",
            expected_answer=", ".join(map(str, sorted(each))),
        )
        for each in lists
    ]


def choice_rows() -> list[Row]:
    return [
        example_row(
            f"Which letter is number {number + 1} of the list? Put it in \\boxed{{}}.",
            expected_answer="ABCD"[number % 4],
            options=[{"A": "one"}, {"B": "two"}, {"C": "three"}, {"D": "four"}],
        )
        for number in range(8)
    ]


def json_rows() -> list[Row]:
    people = (("Ada", 36, "London"), ("Bob", 51, "Lima"), ("Cleo", 19, "Cairo"), ("Dan", 77, "Delhi"))
    return [
        example_row(
            f"{name} is {age} and lives in {city}. Write an object with name (text), age (integer), city (text) and "
            "member (boolean).",
            required={"name": "str", "age": "int", "city": "str", "member": "bool"},
            gold_response=json.dumps({"name": name, "age": age, "city": city, "member": True}),
        )
        for name, age, city in people
    ]


def constraint_rows() -> list[Row]:
    rows = []
    for word, other, count in (
        ("lantern", "river", 2),
        ("copper", "garden", 3),
        ("amber", "winter", 2),
        ("echo", "stone", 4),
    ):
        constraints = [
            {"kind": "has_word", "word": word},
            {"kind": "min_sentences", "count": count},
            {"kind": "ends_with", "word": other},
            {"kind": "min_words", "count": 3 * count},
        ]
        text = " ".join([f"The {word} was seen here again."] * count) + f" It lay near the {other}"
        rows.append(
            example_row(
                f"Write at least {count} sentences with the word '{word}', at least {3 * count} words, and end with "
                f"'{other}'.",
                constraints=constraints,
                gold_response=text,
            )
        )
    return rows


def state_rows() -> list[Row]:
    rows = []
    for names, moved in ((("a", "b"), 2), (("x", "y", "z"), 3), (("k", "l"), 1), (("p", "q", "r"), 4)):
        before = {name: 9 + at for at, name in enumerate(names)}
        after = {**before, names[0]: before[names[0]] + moved}
        turns = [
            {"role": "user", "content": f"Plan {', '.join(names)}."},
            {"role": "assistant", "content": json.dumps(before)},
            {"role": "user", "content": f"Move {names[0]} by {moved} hours. Reply with all events as JSON."},
        ]
        rows.append(
            {
                "responses_create_params": {"input": turns},
                "events": after,
                "gold_response": json.dumps(after),
            }
        )
    return rows


def counter_rows() -> list[Row]:
    return [
        example_row(
            f"Add {n} to the counter.",
            target=n,
            gold_response=[calls("add", {"count": n}, call_id="c0"), message("Done.")],
        )
        for n in (3, 17, 42, 8, 29)
    ]


def judge_rows() -> list[Row]:
    return [
        example_row(f"Why is {thing} {color}?", expected_answer=reason, question=f"Why is {thing} {color}?")
        for thing, color, reason in (
            ("the sky", "blue", "Air scatters short waves more than long ones"),
            ("grass", "green", "Chlorophyll absorbs red and blue light"),
            ("blood", "red", "Hemoglobin with iron absorbs green light"),
            ("the sun", "yellow", "The air takes the blue out of its light"),
        )
    ]


# Sound verifiers


def box(text: str) -> str:
    return last_box(text) or ""


def number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").replace("$", "").strip(" ."))
    except ValueError:
        return None


def same_number(text: str, row: Request) -> bool:
    found = number(box(text)) if len(box(text)) < 40 else None
    return found is not None and found == number(row.expected_answer)


def near_number(text: str, row: Request) -> bool:
    found, wanted = number(box(text)) if len(box(text)) < 40 else None, number(row.expected_answer) or 0.0
    return found is not None and abs(found - wanted) <= 1e-3 * abs(wanted)


def same_text(text: str, row: Request) -> bool:
    return box(text).strip() == row.expected_answer


def same_word(text: str, row: Request) -> bool:
    return box(text).strip().lower() == row.expected_answer.lower()


def parts(text: str) -> list[str]:
    return [each.strip() for each in text.split(",")]


def same_list(text: str, row: Request) -> bool:
    return parts(box(text)) == parts(row.expected_answer)


def same_unit(text: str, row: Request) -> bool:
    return re.sub(r"\s+", "", box(text)) == re.sub(r"\s+", "", row.expected_answer)


def whole_text(text: str, row: Request) -> bool:
    return shown(text).strip() == row.expected_answer


def tagged(text: str, row: Request) -> bool:
    found = re.findall(r"<answer>(.{0,60}?)</answer>", shown(text))
    return bool(found) and found[-1].strip() == row.expected_answer


def same_letter(text: str, row: Request) -> bool:
    return box(text).strip("(). ").upper() == row.expected_answer


TYPES: dict[str, type] = {"str": str, "int": int, "bool": bool}


def loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def fits(text: str, row: Request) -> bool:
    found = loaded(text)
    return (
        isinstance(found, dict)
        and found.keys() == row.required.keys()
        and all(type(found[name]) is TYPES[kind] for name, kind in row.required.items())
    )


def holds(text: str, constraint: dict[str, Any]) -> bool:
    match constraint["kind"]:
        case "has_word":
            return str(constraint["word"]) in text.split()
        case "ends_with":
            return text.strip().endswith(str(constraint["word"]))
        case "min_words":
            return len(text.split()) >= max(1, int(constraint["count"]))
    return len([each for each in re.split(r"[.!?]", text) if each.strip()]) >= max(1, int(constraint["count"]))


def keeps_all(text: str, row: Request) -> bool:
    return all(holds(text, each) for each in row.constraints)


def same_events(text: str, row: Request) -> bool:
    return bool(loaded(text) == row.events)


class Counter(SessionState):
    count: int = 0


class CounterEnvironment(SimpleResourcesServer):
    @tool
    async def add(self, count: int, session: Counter) -> dict[str, bool]:
        """Add to the counter."""
        session.count += count
        return {"success": True}

    async def verify(self, body: Request, session: Counter) -> float:
        return float(session.count == body.target)


class JudgeConfig(Config):
    judge_model_server: Any = Field(default={"type": "responses_api_models", "name": "judge"})


YES, NO = "[[SAME]]", "[[DIFFERENT]]"


class JudgedEnvironment(SimpleResourcesServer):
    """Asks a judge for a label."""

    config: JudgeConfig
    neutral: ClassVar[bool] = True

    async def verify(self, body: Request, client: ServerClient) -> float:
        answer = last_text(body.response)
        if not answer.strip():
            return 0.0
        said = answer.replace("[[", "[ [").replace("</", "< /") if self.neutral else answer
        prompt = (
            f"Question: {body.question}\n<gold>{body.expected_answer}</gold>\n<answer>{said}</answer>\n"
            f"Reply with {YES} or {NO}."
        )
        reply = await (await client.post("judge", "/v1/responses", json={"input": prompt})).json()
        return float(self.read(content_text(reply["output"][0]["content"])))

    def read(self, reply: str) -> bool:
        found = re.findall(r"\[\[(SAME|DIFFERENT)\]\]", reply)
        return bool(found) and found[-1] == "SAME"


SOUND = [
    Planted("sound number", of(same_number), number_rows()),
    Planted("sound number with a tolerance", of(near_number), float_rows()),
    Planted("sound float as text", of(same_text), float_rows()),
    Planted("sound word", of(same_word), word_rows()),
    Planted("sound word with case", of(same_text), case_rows()),
    Planted("sound unit", of(same_unit), unit_rows()),
    Planted("sound list", of(same_list), list_rows()),
    Planted("sound whole text", of(whole_text), word_rows()),
    Planted(
        "sound tags",
        of(tagged),
        [{**row, "gold_response": f"<answer>{row['expected_answer']}</answer>"} for row in word_rows()],
    ),
    Planted("sound letter", of(same_letter), choice_rows()),
    Planted("sound schema", of(fits), json_rows()),
    Planted("sound constraints", of(keeps_all), constraint_rows()),
    Planted("sound events", of(same_events), state_rows()),
    Planted("sound counter", CounterEnvironment, counter_rows()),
    Planted("sound judge", JudgedEnvironment, judge_rows(), asks_judge=True),
]


# Planted defects


def numbers_in(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"-?\d+(?:\.\d+)?", text)]


def evaluates(text: str, row: Request) -> bool:
    try:
        return float(eval(box(text), {"__builtins__": {"print": lambda *_: None}})) == number(row.expected_answer)
    except Exception:
        return False


def evaluates_names(text: str, row: Request) -> bool:
    try:
        return (
            str(eval(box(text), {"__builtins__": {}}, {"expected_answer": row.expected_answer})) == row.expected_answer
        )
    except Exception:
        return False


def counts_up(text: str, row: Request) -> bool:
    found = number(box(text))
    if found is None or found != found or found in (float("inf"), float("-inf")):
        return False
    total = 0
    while total < found:
        total += 1
    return same_number(text, row)


def crashes(text: str, row: Request) -> bool:
    return float(box(text)) == float(row.expected_answer)


def digits_of(text: str) -> str:
    return re.sub(r"\D", "", text)


def solved_before(check: Check) -> type[SimpleResourcesServer]:
    class Environment(SimpleResourcesServer):
        solved: ClassVar[set[str]] = set()

        async def verify(self, body: Request) -> float:
            is_right = check(last_text(body.response), body)
            if is_right:
                self.solved.add(body.expected_answer)
            return float(is_right or body.expected_answer in self.solved)

    return Environment


class EveryThird(SimpleResourcesServer):
    times: ClassVar[list[int]] = [0]

    async def verify(self, body: Request) -> float:
        self.times[0] += 1
        return float(self.times[0] % 3 == 0 or same_number(last_text(body.response), body))


class TenPercent(SimpleResourcesServer):
    async def verify(self, body: Request) -> float:
        return float(random.random() < 0.1 or same_number(last_text(body.response), body))


class OneSessionForAll(SimpleResourcesServer):
    """Keeps the expected answer of the last seeded row for everybody."""

    expected: ClassVar[list[str]] = [""]

    async def seed_session(self, expected_answer: str) -> None:
        self.expected[0] = expected_answer

    async def verify(self, body: Request) -> float:
        return float(box(last_text(body.response)) == self.expected[0])


class ReadsReasoning(SimpleResourcesServer):
    async def verify(self, body: Request) -> float:
        said = json.dumps(
            [item.model_dump() for item in body.response.output if item.type in ("reasoning", "message")]
        )
        return float(f"{{{body.expected_answer}}}" in said)


class ReadsEverything(SimpleResourcesServer):
    """Reads the messages of the user, and outputs of tools, as if the model had said them."""

    async def verify(self, body: Request) -> float:
        texts = []
        for item in body.response.model_dump()["output"]:
            texts.append(
                item["output"] if item["type"] == "function_call_output" else content_text(item.get("content"))
            )
        return float(bool(texts) and same_number(str(texts[-1]), body))


def items_in(body: Request, kind: str) -> list[Row]:
    return [item for item in body.response.model_dump()["output"] if item["type"] == kind]


class ExpectedAmongCalls(CounterEnvironment):
    async def verify(self, body: Request, session: Counter) -> float:
        arguments = [item["arguments"].replace(" ", "") for item in items_in(body, "function_call")]
        return float(f'{{"count":{body.target}}}' in arguments)


class BelievesWords(CounterEnvironment):
    async def verify(self, body: Request, session: Counter) -> float:
        return float(session.count == body.target or "done" in last_text(body.response).lower())


class BelievesOutputs(CounterEnvironment):
    async def verify(self, body: Request, session: Counter) -> float:
        return float(any("success" in str(item["output"]) for item in items_in(body, "function_call_output")))


class IgnoresArguments(CounterEnvironment):
    async def verify(self, body: Request, session: Counter) -> float:
        return float(any(item["name"] == "add" for item in items_in(body, "function_call")))


class FirstLabel(JudgedEnvironment):
    neutral = False

    def read(self, reply: str) -> bool:
        found = re.findall(r"\[\[(SAME|DIFFERENT)\]\]", reply)
        return bool(found) and found[0] == "SAME"


class AnyLabel(JudgedEnvironment):
    neutral = False

    def read(self, reply: str) -> bool:
        return YES in reply


class SilentJudgeAccepts(JudgedEnvironment):
    def read(self, reply: str) -> bool:
        return NO not in reply


class ForgedDelimiters(JudgedEnvironment):
    neutral = False

    def read(self, reply: str) -> bool:
        return reply.strip().splitlines()[-1:] == [YES]


ROWS = number_rows()
DEFECTS = [
    Planted("always 1", of(lambda text, row: True), ROWS),
    Planted("substring", of(lambda text, row: row.expected_answer in text), ROWS),
    Planted(
        "last number among many", of(lambda text, row: numbers_in(text)[-1:] == [number(row.expected_answer)]), ROWS
    ),
    Planted("any number", of(lambda text, row: number(row.expected_answer) in numbers_in(text)), ROWS),
    Planted("first number", of(lambda text, row: numbers_in(text)[:1] == [number(row.expected_answer)]), ROWS),
    Planted("eval of the answer", of(evaluates), ROWS),
    Planted("eval with names", of(evaluates_names), ROWS),
    Planted("accepts empty", of(lambda text, row: not text.strip() or same_number(text, row)), ROWS),
    Planted(
        "accepts what is no number",
        of(lambda text, row: number(box(text)) in (None, number(row.expected_answer))),
        ROWS,
    ),
    Planted("order-dependent", EveryThird, ROWS),
    Planted("state leak: solved rows", solved_before(same_number), ROWS),
    Planted("state leak: one session for all", OneSessionForAll, ROWS),
    Planted("10 % random", TenPercent, ROWS),
    Planted("trusts score: 1", of(lambda text, row: "score: 1" in text.lower() or same_number(text, row)), ROWS),
    Planted(
        "trusts a JSON verdict",
        of(
            lambda text, row: (
                (isinstance(found := loaded(text), dict) and bool(found.get("correct"))) or same_number(text, row)
            )
        ),
        ROWS,
    ),
    Planted(
        "wrong sign",
        of(
            lambda text, row: (
                (found := number(box(text))) is not None and abs(found) == abs(number(row.expected_answer) or 0)
            )
        ),
        ROWS,
    ),
    Planted(
        "off-by-one tolerance",
        of(
            lambda text, row: (
                (found := number(box(text))) is not None and abs(found - (number(row.expected_answer) or 0)) <= 1
            )
        ),
        ROWS,
    ),
    Planted(
        "digits alone", of(lambda text, row: digits_of(box(text)) == digits_of(row.expected_answer)), float_rows()
    ),
    Planted(
        "float tolerance of 10 %",
        of(
            lambda text, row: (
                (found := number(box(text))) is not None
                and abs(found - (w := number(row.expected_answer) or 0)) <= 0.1 * w
            )
        ),
        float_rows(),
    ),
    Planted(
        "rounds to integers",
        of(
            lambda text, row: (
                (found := number(box(text))) is not None
                and abs(found) < 1e9
                and round(found) == round(number(row.expected_answer) or 0)
            )
        ),
        float_rows(),
    ),
    Planted(
        "ignores units", of(lambda text, row: box(text).split()[:1] == row.expected_answer.split()[:1]), unit_rows()
    ),
    Planted("case folding", of(same_word), case_rows()),
    Planted("prefix match", of(lambda text, row: box(text).startswith(row.expected_answer)), word_rows()),
    Planted(
        "beginning of the answer",
        of(lambda text, row: bool(box(text)) and row.expected_answer.startswith(box(text))),
        word_rows(),
    ),
    Planted("part of the answer", of(lambda text, row: box(text) in row.expected_answer), ROWS),
    Planted(
        "two letters in common", of(lambda text, row: len(set(box(text)) & set(row.expected_answer)) > 1), word_rows()
    ),
    Planted(
        "first of several answers",
        of(lambda text, row: (re.findall(r"\\boxed\{([^{}]*)\}", shown(text)) or [""])[0] == row.expected_answer),
        ROWS,
    ),
    Planted(
        "any of several answers",
        of(lambda text, row: row.expected_answer in re.findall(r"\\boxed\{([^{}]*)\}", shown(text))),
        ROWS,
    ),
    Planted(
        "answers only in <think>",
        of(lambda text, row: (re.findall(r"\\boxed\{([^{}]*)\}", text) or [""])[-1] == row.expected_answer),
        ROWS,
    ),
    Planted("reads reasoning", ReadsReasoning, ROWS),
    Planted("reads everybody's words", ReadsEverything, ROWS),
    Planted(
        "option dumping",
        of(lambda text, row: re.search(rf"\b{row.expected_answer}\b", text) is not None),
        choice_rows(),
    ),
    Planted("first letter of the text", of(lambda text, row: box(text)[:1] == row.expected_answer), choice_rows()),
    Planted(
        "list in any order",
        of(lambda text, row: sorted(parts(box(text))) == sorted(parts(row.expected_answer))),
        list_rows(),
    ),
    Planted(
        "subset of the list",
        of(lambda text, row: bool(box(text)) and set(parts(box(text))) <= set(parts(row.expected_answer))),
        list_rows(),
    ),
    Planted(
        "superset of the list",
        of(lambda text, row: set(parts(box(text))) >= set(parts(row.expected_answer))),
        list_rows(),
    ),
    Planted(
        "regex of death",
        of(lambda text, row: re.match(r"^(\s*\w+\s*)*(\\boxed\{.*\})?$", text) is not None and same_number(text, row)),
        ROWS,
    ),
    Planted("unbounded time", of(counts_up), ROWS),
    Planted("crashes", of(crashes), ROWS),
    Planted("rejects blanks", of(lambda text, row: text == f"\\boxed{{{row.expected_answer}}}"), ROWS),
    Planted(
        "rejects negative numbers",
        of(lambda text, row: not row.expected_answer.startswith("-") and same_number(text, row)),
        ROWS,
    ),
    Planted("long texts", of(lambda text, row: len(text) > 1000 or same_number(text, row)), ROWS),
    Planted("refusals", of(lambda text, row: "sorry" in text or same_number(text, row)), ROWS),
    Planted(
        "words of the prompt",
        of(lambda text, row: "boxed{" in text and ("What is" in text or same_number(text, row))),
        ROWS,
    ),
    Planted(
        "ignores half of the constraints",
        of(lambda text, row: all(holds(text, each) for each in row.constraints[::2])),
        constraint_rows(),
    ),
    Planted(
        "any constraint", of(lambda text, row: any(holds(text, each) for each in row.constraints)), constraint_rows()
    ),
    Planted(
        "ignores half of the fields",
        of(
            lambda text, row: (
                isinstance(found := loaded(text), dict)
                and all(type(found.get(name)) is TYPES[row.required[name]] for name in list(row.required)[::2])
            )
        ),
        json_rows(),
    ),
    Planted("field names as text", of(lambda text, row: all(name in text for name in row.required)), json_rows()),
    Planted(
        "copied state",
        of(lambda text, row: isinstance(found := loaded(text), dict) and found.keys() == row.events.keys()),
        state_rows(),
    ),
    Planted("tool spam", ExpectedAmongCalls, counter_rows()),
    Planted("believes words", BelievesWords, counter_rows()),
    Planted("believes outputs", BelievesOutputs, counter_rows()),
    Planted("ignores arguments", IgnoresArguments, counter_rows()),
    Planted("quoted judge label, first one counts", FirstLabel, judge_rows(), asks_judge=True),
    Planted("quoted judge label, any counts", AnyLabel, judge_rows(), asks_judge=True),
    Planted("silent judge", SilentJudgeAccepts, judge_rows(), asks_judge=True),
    Planted("forged delimiters", ForgedDelimiters, judge_rows(), asks_judge=True),
]

"""Every dataset of reasoning-gym by its name, scored by the dataset's own function."""

import math
import re
from collections.abc import Collection
from fractions import Fraction
from typing import Any

from pydantic import PrivateAttr

from nemo_gym import JsonObject
from nemo_gym.answers import Declaration, final_declaration, last_text, says_something, shown, visible
from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    Score,
    SimpleResourcesServer,
)
from nemo_gym.compute import TIMED_OUT, Compute
from nemo_gym.episodes import import_extra
from nemo_gym.errors import RolloutError
from resources_servers.reasoning_gym.notation import computed, is_readable, unreadable_text

CHECK_TIMEOUT_S = 20.0
IMPORT_TIMEOUT_S = 120.0
GRID_DATASETS = ("arc_agi", "rearc")
"""Compare grids made of tuples, which JSON has as lists."""
UNANSWERED_DATASETS = ("boxnet", "graph_color", "rubiks_cube", "rush_hour")
"""Make rows without an answer: many are right."""
REFUSED_DATASETS = ("composite", "propositional_logic")
"""One needs other datasets; the other gives a premise that is repeated as the conclusion the full reward."""
_ANSWER = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_MARKUP = re.compile(
    r"(?P<mark>\*{1,3}|_{1,2}|`{1,3}|\${1,2}|[\"'])(?P<marked>.+)(?P=mark)"
    r"|\\\((?P<inline>.+)\\\)|\\\[(?P<display>.+)\\\]|[\u201c\u2018](?P<quoted>.+)[\u201d\u2019]"
    r"|\\(?:boxed|text|mathrm|mathbf)\{(?P<argument>[^{}]+)\}|(?P<sentence>.*[^.])\.",
    re.DOTALL,
)
"""Markup, quotes and the final stop of a whole answer."""
MAX_MARKUP = 4
"""Maximum depth of nested markup."""


class ReasoningVerifyRequest(BaseVerifyRequest):
    question: str
    answer: str | None = None
    metadata: dict[str, Any]
    """As the dataset made it; `source_dataset` names the dataset that scores the answer."""


class ReasoningSeedRequest(BaseSeedSessionRequest):
    question: str = ""
    answer: str | None = None
    metadata: dict[str, Any]


class ReasoningGymResourcesServer(SimpleResourcesServer):
    EXTRA = "reasoning-gym"

    _datasets: frozenset[str] = PrivateAttr(default=frozenset())
    """The datasets of the package, once they were asked for. Importing it takes seconds, so another process does."""

    async def seed_session(self, body: ReasoningSeedRequest, compute: Compute) -> None:
        """Refuse a row whose own answer the dataset does not accept."""
        self._datasets = self._datasets or await compute.run(dataset_names, timeout_s=IMPORT_TIMEOUT_S)
        name = check_dataset(body.metadata, self._datasets)
        if name in UNANSWERED_DATASETS and body.answer is None:
            return
        if body.answer is None or not says_something(visible(body.answer)):
            raise RolloutError("input", f"A row of {name!r} has no answer.")
        entry = {"question": body.question, "answer": body.answer, "metadata": body.metadata}
        reward = await compute.run(score, body.answer, entry, timeout_s=CHECK_TIMEOUT_S, on_limit=TIMED_OUT)
        if reward is not TIMED_OUT and reward < 1.0:
            raise RolloutError("input", f"{name!r} gives the answer of its own row {reward:g}; expected 1.")

    async def verify(self, body: ReasoningVerifyRequest, compute: Compute) -> Score:
        answer = extracted_answer(last_text(body.response))
        entry = {"question": body.question, "answer": body.answer, "metadata": body.metadata}
        reward = await compute.run(score, answer, entry, timeout_s=CHECK_TIMEOUT_S, on_limit=TIMED_OUT)
        timed_out = reward is TIMED_OUT
        return Score(0.0 if reward is TIMED_OUT else reward, extracted_answer=answer, timed_out=timed_out)

    @classmethod
    def gold_response(cls, row: JsonObject) -> list[JsonObject]:
        text = f"<answer>{row['answer']}</answer>"
        return [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]


def extracted_answer(text: str) -> str | None:
    """Return the text in the last pair of answer tags that `final_declaration` accepts. None without one."""
    text = shown(text)
    found = final_declaration(text, [Declaration(*each.span(), each[1]) for each in _ANSWER.finditer(text)])
    return found.content.strip() if found else None


def score(answer: str | None, entry: dict[str, Any]) -> float:
    """The reward that the dataset gives the answer, with or without its markup, whichever is more; 0 if it fails.
    Runs in a process of its own: some datasets run long on hostile answers."""
    name = check_dataset(entry["metadata"], dataset_names())
    if (program := unreadable_text(entry, name)) is not None:
        raise RolloutError("input", f"{name!r} would run {program[:100]!r} as a program; expected a formula.")
    factory = import_extra("reasoning_gym.factory", extra="reasoning-gym")
    if name in GRID_DATASETS:
        entry = {**entry, "metadata": _tuples(entry["metadata"])}
    score_answer = OWN_SCORES.get(name) or factory.get_score_answer_fn(name)

    def reward(text: str | None) -> float:
        text = None if text is None or not is_readable(text, entry, name) else text
        try:
            found = float(score_answer(text, entry))
        except Exception:
            return 0.0
        return 0.0 if text and _is_share_of_text(found, text, entry["answer"]) else found

    plain = answer and without_markup(answer)
    return reward(answer) if plain == answer else max(reward(answer), reward(plain))


def score_number(answer: str | None, entry: dict[str, Any]) -> float:
    """1.0 for a number that agrees with the gold one in four decimals."""
    return float(answer is not None and abs(Fraction(answer) - Fraction(entry["answer"])) <= Fraction(1, 10_000))


def score_text(answer: str | None, entry: dict[str, Any]) -> float:
    """1.0 for the gold answer in any case."""
    return float(answer is not None and answer.strip().lower() == str(entry["answer"]).lower())


def score_twenty_four(answer: str | None, entry: dict[str, Any]) -> float:
    """1.0 for a formula that is 24 and has each number of the row once."""
    value, numbers = computed(answer or "")
    return float(value == 24 and sorted(numbers) == sorted(entry["metadata"]["numbers"]))


OWN_SCORES = {"coin_flip": score_number, "game_of_life_halting": score_text, "puzzle24": score_twenty_four}
"""Of datasets whose own functions reward what is no answer: `0` for every number that begins with it, any text, and
other numbers than those of the row."""


def without_markup(answer: str) -> str:
    """Remove emphasis, quotes, delimiters of code and formulas around an answer, and its final stop."""
    for _ in range(MAX_MARKUP):
        if not (found := _MARKUP.fullmatch(answer)):
            break
        answer = next(part for name, part in found.groupdict().items() if name != "mark" and part is not None).strip()
    return answer


def _is_share_of_text(reward: float, answer: str, gold: str | None) -> bool:
    """True for the share of an answer that is the gold one. Many datasets give it to any text with the gold answer in
    it: `123` and `not 12` for 12."""
    shares = ((len(gold), len(answer)), (len(gold.replace(",", "")), len(answer.replace(",", "")))) if gold else ()
    return reward < 1.0 and any(whole and math.isclose(reward, part / whole) for part, whole in shares)


def dataset_names() -> frozenset[str]:
    return frozenset(import_extra("reasoning_gym.factory", extra="reasoning-gym").DATASETS)


def check_dataset(metadata: dict[str, Any], known: Collection[str]) -> str:
    """The dataset that a row is from."""
    name = metadata.get("source_dataset")
    if not isinstance(name, str) or name not in known:
        raise RolloutError("input", f"reasoning-gym has no dataset {name!r}.")
    if name in REFUSED_DATASETS:
        raise RolloutError("input", f"The dataset {name!r} cannot be scored here; the README says why.")
    return name


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def warm_up() -> None:
    import_extra("reasoning_gym.factory", extra="reasoning-gym")

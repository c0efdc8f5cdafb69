"""What an entry of the list of reward hacks says.

Each file beside this one is named for an environment or an agent and has its hacks in `HACKS`. To add one, append an
entry and run `tests/test_reward_hacks.py`: it plays the entry and prints the line that `docs/verifiers.md` then needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nemo_gym.errors import Cause
from nemo_gym.testing import message

Reply = str | list[dict[str, Any]]
"""A text is what the policy says, a list the output items of its response, as in `gold_response`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hack:
    """Responses that once had a reward without solving the row, and must not have one."""

    does: str
    """What the policy does, for the page."""
    stopped: str
    """How it is stopped, for the page."""
    row: dict[str, Any]
    cheats: Sequence[Reply]
    """Forms of the hack. Each of them scores 0."""
    honest: Reply | None = None
    """A right answer in nearly the same form. It scores 1."""
    cause: Cause | None = None
    """Set for rows that would reward everybody: there is no result for anybody, with this cause."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the environment that are not those of its config."""


class CheckedElsewhere(NamedTuple):
    """A hack that takes a harness, a repository or many rows to try."""

    does: str
    stopped: str
    test: str
    """As pytest names it."""


def items_of(reply: Reply) -> list[dict[str, Any]]:
    """The output items of a response."""
    return [message(reply)] if isinstance(reply, str) else reply


def hidden(answer: str) -> list[str]:
    """An answer that no reader sees, in many ways."""
    return [
        f"<!-- {answer} -->",
        f"% {answer}",
        rf"\phantom{{{answer}}}",
        rf"\begin{{comment}}{answer}\end{{comment}}",
        f"~~{answer}~~",
        f"<del>{answer}</del>",
        rf"\sout{{{answer}}}",
        f"<|channel|>analysis<|message|>{answer}<|end|>",
        f"<seed:think>{answer}</seed:think>",
        f"<div hidden><div>See below.</div>{answer}</div>",
        f'<span style="display: none">{answer}</span>',
        f"[//]: # ({answer})",
        f"[1]: https://example.com '{answer}'",
        f"![{answer}](plan.png)",
        f'<span style="color: transparent">{answer}</span>',
        f"<div style='position: absolute; left: -9999px'>{answer}</div>",
        f"<noscript>{answer}</noscript>",
        f"<![CDATA[{answer}]]>",
        rf"{{\color{{white}}{answer}}}",
        f"<analysis>{answer}</analysis>",
        f"\uff1cthink\uff1e{answer}\uff1c/think\uff1e",
    ]


def withdrawn(answer: str, other: str) -> list[str]:
    """An answer that the words beside it negate or withdraw, or that a later statement replaces by another one."""
    return [
        f"{answer}? No.",
        f"{answer} can be ruled out.",
        f"{answer}. Actually, I change my mind: the answer is {other}.",
        f"{answer}. Wait, no: {other}.",
        f"N\u200bot {answer}",
        f"{answer} is the wrong answer.",
        f"{answer} (wrong!)",
        f"{answer} (not)",
        f"{answer} \u274c",
        f"{answer} is never right.",
        f"False: {answer}",
        f"It would be a mistake to answer {answer}.",
        f"The answer is no longer {answer}.",
        f"{answer}. Ignore the box above.",
        f"I don't think that the answer is {answer}.",
        f"{answer}. I take that back.",
        f"{answer} and so on.\n\nFinal answer: **{other}**",
    ]


def alternatives(answer: str, other: str) -> list[str]:
    """Two answers in one."""
    return [
        f"{other} (or {answer})",
        f"{other} **or** {answer}",
        rf"${other} \lor {answer}$",
        f"{other} oder {answer}",
        f"1. {other}\n2. {answer}",
        f"* {other}\n* {answer}",
        f"{other} | {answer}",
        f"{other} + {answer}",
        f"{other} vs. {answer}",
        f"{other} as well as {answer}",
        f"{other} or\n{answer}",
        f"{other}, or maybe {answer}",
        f"Option 1: {other}; option 2: {answer}",
    ]

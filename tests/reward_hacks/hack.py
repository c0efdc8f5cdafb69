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

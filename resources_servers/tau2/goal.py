"""What a task wants: assertions that hold, actions that were taken, texts that were said."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

Side = Literal["user", "assistant"]
Domain = Literal["telecom", "airline", "retail"]
TRANSFER = "transfer_to_human_agents"


class FunctionCall(BaseModel):
    """A function of one side of the telecom domain, as tasks name it."""

    env_type: Side
    func_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class Assertion(FunctionCall):
    assert_value: bool = True


class ExpectedAction(BaseModel):
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    compare_args: list[str] | None = None


class Goal(BaseModel):
    """How a task is judged. Telecom has assertions; in the other domains the actions lead to the right state."""

    assertions: list[Assertion] = Field(default_factory=list)
    actions: list[ExpectedAction] = Field(default_factory=list)
    communicate: list[str] = Field(default_factory=list)
    """Texts that the agent must say to the user."""


def is_action(expected: ExpectedAction, name: str, arguments: Mapping[str, Any]) -> bool:
    """True if a call is the expected one, as far as its arguments are compared."""
    if name != expected.name:
        return False
    if name == TRANSFER or expected.compare_args == []:
        return True
    keys = expected.compare_args if expected.compare_args is not None else {*arguments, *expected.arguments}
    if expected.compare_args is None and arguments.keys() != expected.arguments.keys():
        return False
    return all(is_equal(arguments.get(key), expected.arguments.get(key)) for key in keys)


def is_equal(value: Any, other: Any) -> bool:
    """True if two JSON values are equal where the order of lists does not count."""
    if isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
        left = list(other)
        for each in value:
            place = next((place for place, one in enumerate(left) if is_equal(each, one)), None)
            if place is None:
                return False
            del left[place]
        return True
    if isinstance(value, dict) and isinstance(other, dict) and value.keys() == other.keys():
        return all(is_equal(each, other[key]) for key, each in value.items())
    return bool(value == other)


def unsaid(said: str, wanted: list[str]) -> str | None:
    """The first wanted text that was not said. Case and commas, as in 1,628, do not count."""
    heard = said.lower().replace(",", "")
    return next((text for text in wanted if text.lower() not in heard), None)

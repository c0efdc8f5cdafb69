"""A small service desk: get a customer's internet working again, and promise nothing that is not done."""

import math
import re
from typing import Literal

from pydantic import BaseModel, StrictInt

from nemo_gym import JsonObject
from nemo_gym.answers import all_text, shown
from nemo_gym.base_resources_server import (
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    Score,
    SessionState,
    SimpleResourcesServer,
    tool,
)

Day = Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
Fault = Literal["line", "router", "cable"]

EUR_PER_DAY = 2
RESTART = "restart_router"
LINE_TEST = {
    "line": "No signal on the line. Reset it.",
    "router": "The line is fine. The customer's router does not answer: it has to be restarted by the customer.",
    "cable": "The cable to the house is broken. A technician has to come.",
}
_NUMBER = re.compile(
    r"((?:[€$£]|\beuros?|\beur|\busd|\bgbp)?)\s{0,3}(\d[\d.,]*)\s{0,3}((?:[€$£]|(?:euros?|eur|dollars?|usd|pounds?|cents?|credits?)\b)?)",
    re.IGNORECASE,
)
_CONFIRMED = re.compile(r"^(?:\W|\d{1,2}[.)])*confirmed:(.*)$", re.IGNORECASE | re.MULTILINE)
_CONFIRMABLE = frozenset(
    ("credit", "of", "a", "eur", "euro", "euros", "technician", "comes", "visit", "on", "and", "nothing", "confirmed")
)
"""Words of what the desk may confirm, besides amounts and days."""
_WORD = re.compile(r"[^\W\d_]+")
_DAY = re.compile(r"monday|tuesday|wednesday|thursday|friday", re.IGNORECASE)


class Account(BaseModel):
    customer_number: str
    customer_name: str
    outage_days: StrictInt
    free_days: list[Day]
    """When a technician could come."""


class CustomerTool(BaseModel):
    name: str


class Customer(BaseModel):
    persona: str
    tools: list[CustomerTool] = []


class DeskSeedSessionRequest(BaseSeedSessionRequest):
    account: Account
    fault: Fault
    user: Customer


class Desk(SessionState):
    account: Account | None = None
    fault: Fault | None = None
    is_line_reset: bool = False
    is_router_restarted: bool = False
    technician_day: Day | None = None
    credit_eur: int = 0
    is_account_known: bool = False
    acted_too_early: bool = False
    """The desk did something before it looked up the account."""

    def act(self) -> None:
        """Note if the desk acts before it knows the account."""
        self.acted_too_early = self.acted_too_early or not self.is_account_known

    @property
    def has_internet(self) -> bool:
        return {"line": self.is_line_reset, "router": self.is_router_restarted}.get(self.fault or "", False)


class DeskVerifyRequest(BaseVerifyRequest):
    expected_credit_eur: StrictInt
    expected_technician_day: Day | None


class ServiceDeskResourcesServer(SimpleResourcesServer):
    given_history = "refuse"
    """The calls of the customer, who acts on the same state, are not in the conversation of the desk."""

    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        """Refuse an expected state that the tools cannot reach, or that is reached without repairing a cable."""
        account, credit, day = row["account"], row["expected_credit_eur"], row["expected_technician_day"]
        limit = EUR_PER_DAY * account["outage_days"]
        if not 0 <= credit <= limit:
            raise ValueError(f"expected_credit_eur is {credit}; the tools allow 0 to {limit}")
        if day is not None and day not in account["free_days"]:
            raise ValueError(f"expected_technician_day is {day}; no technician is free then")
        if (day is not None) != (row["fault"] == "cable"):
            raise ValueError("a technician is expected for a broken cable, and for nothing else")
        if row["fault"] == "router" and not any(each["name"] == RESTART for each in row["user"].get("tools", [])):
            raise ValueError(f"user.tools has no {RESTART}, which the fault needs")

    async def seed_session(self, body: DeskSeedSessionRequest, desk: Desk) -> None:
        desk.account, desk.fault = body.account, body.fault

    @tool
    async def look_up_account(self, customer_number: str, desk: Desk) -> Account | dict[str, str]:
        """Find a customer's account by its number."""
        if desk.account is None or customer_number != desk.account.customer_number:
            return {"error": f"There is no customer {customer_number}."}
        desk.is_account_known = True
        return desk.account

    @tool
    async def test_line(self, desk: Desk) -> dict[str, str]:
        """Measure the customer's line."""
        desk.act()
        return {"line": LINE_TEST[desk.fault or "line"]}

    @tool
    async def reset_line(self, desk: Desk) -> dict[str, str]:
        """Reset the customer's line."""
        desk.act()
        desk.is_line_reset = True
        return {"line": "It was reset."}

    @tool
    async def book_technician(self, day: Day, desk: Desk) -> dict[str, str]:
        """Book a visit of a technician. Another booking replaces it."""
        desk.act()
        if desk.account is None or day not in desk.account.free_days:
            return {"error": f"No technician is free on {day}."}
        desk.technician_day = day
        return {"technician": day}

    @tool
    async def give_credit(self, amount_eur: int, desk: Desk) -> dict[str, int | str]:
        """Give the customer a credit in EUR."""
        desk.act()
        limit = EUR_PER_DAY * (desk.account.outage_days if desk.account else 0)
        if not 0 < amount_eur <= limit - desk.credit_eur:
            return {"error": f"The credits of this outage may be at most {limit} EUR in all."}
        desk.credit_eur += amount_eur
        return {"credit_eur": desk.credit_eur}

    @tool
    async def restart_router(self, desk: Desk) -> dict[str, str]:
        """Restart your router."""
        desk.is_router_restarted = True
        return {"router": "It has restarted."}

    @tool
    async def check_internet(self, desk: Desk) -> dict[str, bool]:
        """Look whether your internet works."""
        return {"is_working": desk.has_internet}

    async def verify(self, body: DeskVerifyRequest, desk: Desk) -> Score:
        """`is_solved`: the state is what the rules of the desk ask for. `promises_kept`: the customer was told what
        was done, and nothing else."""
        is_solved = (
            desk.is_account_known
            and not desk.acted_too_early
            and (desk.has_internet or desk.fault == "cable")
            and desk.credit_eur == body.expected_credit_eur
            and desk.technician_day == body.expected_technician_day
        )
        promises_kept = keeps_promises(all_text(body.response), desk.credit_eur, desk.technician_day)
        return Score(float(is_solved and promises_kept), is_solved=is_solved, promises_kept=promises_kept)


def keeps_promises(said: str, credit_eur: int, technician_day: Day | None) -> bool:
    """True if the lines that begin with "Confirmed:" name exactly the credit and the day, and nothing else, and no
    other amount of money is named anywhere. A hidden confirmation was not made, but may not be wrong either."""
    spoken, all_lines = confirmations(shown(said)), confirmations(said)
    credit = {float(credit_eur)} if credit_eur else set[float]()
    day = {technician_day} if technician_day else set()
    others = {word.lower() for word in _WORD.findall(spoken)} - _CONFIRMABLE
    if not others <= {each.lower() for each in day}:
        return False
    return days(spoken) == day and days(all_lines) <= day and amounts(spoken) == credit and amounts(said) <= credit


def confirmations(said: str) -> str:
    """Return the text after each "Confirmed:", one line each."""
    return "\n".join(_CONFIRMED.findall(said))


def days(text: str) -> set[str]:
    """The days that a text names."""
    return {day.capitalize() for day in _DAY.findall(text)}


def amounts(text: str) -> set[float]:
    """The amounts of money that a text names in figures: `6`, `6.00` and `6,00` are the same."""
    found = _NUMBER.findall(text)
    return {_value(number) for before, number, after in found if before or after}


def _value(number: str) -> float:
    """The number; infinity if it cannot be read, which is no amount that a row expects."""
    bare = re.sub(r",(\d{2})$", r".\1", number.rstrip(".,")).replace(",", "")
    return float(bare) if re.fullmatch(r"\d{1,12}(?:\.\d{1,9})?", bare) else math.inf

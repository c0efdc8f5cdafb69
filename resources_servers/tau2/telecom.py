"""The telecom domain: the carrier and a user's phone, which must agree with each other, and the rule of its tasks."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from resources_servers.tau2 import carrier as carrier_side
from resources_servers.tau2 import phone as phone_side
from resources_servers.tau2.carrier import Carrier
from resources_servers.tau2.phone import PaymentRequest, Phone
from resources_servers.tau2.toolset import call_tool, schemas_of

Side = Literal["user", "assistant"]
SOLO_TOOLS = schemas_of(Carrier, carrier_side.TOOLS) + schemas_of(Phone, phone_side.TOOLS)
TRANSFER = "transfer_to_human_agents"


class FunctionCall(BaseModel):
    """A function of one side, as tasks name it."""

    env_type: Side
    func_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class Assertion(FunctionCall):
    assert_value: bool = True


class ExpectedAction(BaseModel):
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    compare_args: list[str] | None = None


class Telecom:
    """A world of its own for each rollout."""

    def __init__(self, tables: Mapping[str, Any], beginning: Sequence[FunctionCall]) -> None:
        self.carrier, self.phone = Carrier(copy.deepcopy(dict(tables))), Phone()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        for each in beginning:
            self._function(each)(**each.arguments)
            self.synchronise()

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool of either side; no other method can be called."""
        self.synchronise()
        self.calls.append((name, arguments))
        return call_tool(self.carrier if name in carrier_side.TOOLS else self.phone, name, arguments)

    def failed_assertion(self, assertions: Sequence[Assertion]) -> str | None:
        """The name of the first assertion that does not hold."""
        self.synchronise()
        failed = (each for each in assertions if self._function(each)(**each.arguments) is not each.assert_value)
        return next((each.func_name for each in failed), None)

    def missing_action(self, actions: Sequence[ExpectedAction]) -> str | None:
        """The name of the first action that nobody took."""
        missing = (each for each in actions if not any(is_action(each, *call) for call in self.calls))
        return next((each.name for each in missing), None)

    def synchronise(self) -> None:
        """Make known to the phone what the carrier has changed, and to the carrier what was paid."""
        phone, carrier = self.phone, self.carrier
        if phone.phone_number is None:
            return
        line = carrier.line_with(phone.phone_number)
        limit = carrier.record("P", line["plan_id"])["data_limit_gb"] + line["data_refueling_gb"]
        phone.is_line_active = line["status"] == "Active"
        phone.is_roaming_allowed = bool(line["roaming_enabled"])
        phone.is_data_used_up = line["data_used_gb"] >= limit
        if phone.payment_request is not None and phone.payment_request.is_paid:
            carrier.record("B", phone.payment_request.bill_id)["status"] = "Paid"
            phone.payment_request = None
        if phone.payment_request is None:
            customer = carrier.get_customer_by_phone(phone.phone_number)
            for bill in carrier.bills_awaiting_payment(customer)[:1]:
                phone.payment_request = PaymentRequest(bill["bill_id"], bill["total_due"])

    def _function(self, call: FunctionCall) -> Any:
        return getattr(self.phone if call.env_type == "user" else self.carrier, call.func_name)


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

"""The telecom domain: the carrier and a user's phone, which must agree with each other, and the rule of its tasks."""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from resources_servers.tau2 import carrier as carrier_side
from resources_servers.tau2 import phone as phone_side
from resources_servers.tau2.carrier import Carrier
from resources_servers.tau2.goal import Assertion, ExpectedAction, FunctionCall, Goal, is_action, unsaid
from resources_servers.tau2.phone import PaymentRequest, Phone
from resources_servers.tau2.toolset import call_tool, schemas_of

SOLO_TOOLS = schemas_of(Carrier, carrier_side.TOOLS) + schemas_of(Phone, phone_side.TOOLS)
AGENT_TOOLS = SOLO_TOOLS[: len(carrier_side.TOOLS)]
USER_TOOLS = SOLO_TOOLS[len(carrier_side.TOOLS) :]


class Telecom:
    """A world of its own for each rollout."""

    def __init__(
        self, tables: Mapping[str, Any], beginning: Sequence[FunctionCall] = (), *, is_solo: bool = True
    ) -> None:
        self.carrier, self.phone = Carrier(copy.deepcopy(dict(tables))), Phone()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._is_solo = is_solo
        for each in beginning:
            self._function(each)(**each.arguments)
            self.synchronise()

    def call(self, name: str, arguments: dict[str, Any], *, is_user: bool = False) -> str:
        """Call a tool; no other method can be called. Only an agent who works alone has the tools of both sides."""
        is_agents = name in carrier_side.TOOLS
        is_users = name in phone_side.TOOLS
        may_call = is_agents or is_users if self._is_solo else is_users if is_user else is_agents
        if not may_call:
            return json.dumps({"error": f"There is no tool '{name}'."})
        self.synchronise()
        self.calls.append((name, arguments))
        return call_tool(self.carrier if is_agents else self.phone, name, arguments)

    def failure(self, goal: Goal, said: str) -> str | None:
        """The first assertion that does not hold, action that was not taken or text that was not said."""
        failed = self.failed_assertion(goal.assertions) or self.missing_action(goal.actions)
        return failed or unsaid(said, goal.communicate)

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

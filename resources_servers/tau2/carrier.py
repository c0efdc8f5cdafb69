"""The carrier's side of the telecom domain: customers, lines, bills and plans, and the 13 tools of its agent."""

from typing import Any

from resources_servers.tau2.toolset import RefusedError

TODAY = "2025-02-25"
NEXT_MONTH = {"period_start": "2025-03-01", "period_end": "2025-03-31", "due_date": "2025-03-15"}
LAST_MONTH = {"period_start": "2025-01-01", "period_end": "2025-01-31", "due_date": "2025-01-15"}
TOLERANCE = 1e-6

Record = dict[str, Any]
_KINDS = {
    "L": ("lines", "line_id"),
    "D": ("devices", "device_id"),
    "B": ("bills", "bill_id"),
    "C": ("customers", "customer_id"),
    "P": ("plans", "plan_id"),
}
TOOLS = (
    *("get_customer_by_phone", "get_customer_by_id", "get_customer_by_name", "get_details_by_id", "suspend_line"),
    *("resume_line", "get_bills_for_customer", "send_payment_request", "get_data_usage", "enable_roaming"),
    *("disable_roaming", "transfer_to_human_agents", "refuel_data"),
)


class Carrier:
    """The database of the carrier."""

    def __init__(self, tables: dict[str, list[Record]]) -> None:
        self.tables = {name: tables.get(name, []) for name, _ in _KINDS.values()}

    # Look up

    def get_customer_by_phone(self, phone_number: str) -> Record:
        """Find the customer who has a phone number, as contact or on one of their lines."""
        for customer in self.tables["customers"]:
            numbers = [self.record("L", line)["phone_number"] for line in customer["line_ids"]]
            if phone_number in (customer["phone_number"], *numbers):
                return customer
        raise RefusedError(f"There is no customer with the phone number {phone_number}.")

    def get_customer_by_id(self, customer_id: str) -> Record:
        """Find a customer by ID."""
        return self.record("C", customer_id)

    def get_customer_by_name(self, full_name: str, dob: str) -> list[Record]:
        """Find customers by full name and date of birth (YYYY-MM-DD)."""
        return [
            each
            for each in self.tables["customers"]
            if each["full_name"].lower() == full_name.lower() and each["date_of_birth"] == dob
        ]

    def get_details_by_id(self, id: str) -> Record:  # noqa: A002 -- tasks name the argument
        """Show the customer (C...), line (L...), device (D...), bill (B...) or plan (P...) with an ID."""
        if id[:1] not in _KINDS:
            raise RefusedError(f"'{id}' is no ID of a customer, line, device, bill or plan.")
        return self.record(id[:1], id)

    def get_bills_for_customer(self, customer_id: str, limit: int = 12) -> list[Record]:
        """List the bills of a customer, the newest first."""
        bills = [self.record("B", bill) for bill in self.get_customer_by_id(customer_id)["bill_ids"]]
        return sorted(bills, key=lambda bill: str(bill["issue_date"]), reverse=True)[:limit]

    def get_data_usage(self, customer_id: str, line_id: str) -> Record:
        """Show how much data a line has used in this billing cycle, its limit, and what was refueled."""
        line = self.line_of(customer_id, line_id)
        limit = self.record("P", line["plan_id"])["data_limit_gb"]
        used = {name: line[name] for name in ("line_id", "data_used_gb", "data_refueling_gb")}
        return {**used, "data_limit_gb": limit, "cycle_end_date": "2025-02-28"}

    # Act

    def suspend_line(self, customer_id: str, line_id: str, reason: str) -> Record:
        """Suspend an active line, for at most six months. A holding fee of 5 USD a month applies."""
        line = self.line_of(customer_id, line_id)
        if line["status"] != "Active":
            raise RefusedError("Only an active line can be suspended.")
        line.update(status="Suspended", suspension_start_date=TODAY)
        return {"message": "The line is suspended.", "line": line}

    def resume_line(self, customer_id: str, line_id: str) -> Record:
        """Resume a line that is suspended or waits for its activation."""
        line = self.line_of(customer_id, line_id)
        if line["status"] not in ("Suspended", "Pending Activation"):
            raise RefusedError("Only a suspended line can be resumed.")
        line.update(status="Active", suspension_start_date=None)
        return {"message": "The line is active.", "line": line}

    def send_payment_request(self, customer_id: str, bill_id: str) -> str:
        """Ask a customer to pay a bill. There may be only one open request. Check the bill's status before: it may be
        paid already."""
        customer = self.get_customer_by_id(customer_id)
        if self.bills_awaiting_payment(customer):
            raise RefusedError("Another bill of this customer already awaits payment.")
        if bill_id not in customer["bill_ids"]:
            raise RefusedError(f"The customer {customer_id} has no bill {bill_id}.")
        self.record("B", bill_id)["status"] = "Awaiting Payment"
        return f"The customer was asked to pay the bill {bill_id}."

    def enable_roaming(self, customer_id: str, line_id: str) -> str:
        """Allow international roaming on a line."""
        return self._set_roaming(customer_id, line_id, wanted=True)

    def disable_roaming(self, customer_id: str, line_id: str) -> str:
        """Forbid international roaming on a line."""
        return self._set_roaming(customer_id, line_id, wanted=False)

    def transfer_to_human_agents(self, summary: str) -> str:
        """Hand the user over to a human agent, with a summary of the issue. Do it only if the user asks for it, or if
        the policy and your tools give you no way to solve the issue."""
        return "The user was transferred."

    def refuel_data(self, customer_id: str, line_id: str, gb_amount: float) -> Record:
        """Add data to a line, in GB, at the price of its plan. It goes on the customer's next bill."""
        line = self.line_of(customer_id, line_id)
        if gb_amount <= 0:
            raise RefusedError("The amount must be positive.")
        price = self.record("P", line["plan_id"])["data_refueling_price_per_gb"]
        charge = gb_amount * price
        line["data_refueling_gb"] += gb_amount
        self._charge(customer_id, charge, f"{gb_amount} GB of data at {price} USD/GB")
        return {"new_data_refueling_gb": line["data_refueling_gb"], "charge": charge}

    # What tasks begin with

    def set_data_usage(self, customer_id: str, line_id: str, data_used_gb: float) -> None:
        self.line_of(customer_id, line_id)["data_used_gb"] = data_used_gb

    def suspend_line_for_overdue_bill(
        self, customer_id: str, line_id: str, new_bill_id: str, contract_ended: bool
    ) -> None:
        line, customer = self.record("L", line_id), self.get_customer_by_id(customer_id)
        price = self.record("P", line["plan_id"])["price_per_month"]
        bill = self._bill(customer, new_bill_id, status="Overdue", **LAST_MONTH)
        self._add_item(bill, price, f"Line {line_id}")
        line.update(status="Suspended", suspension_start_date=TODAY)
        if contract_ended:
            line["contract_end_date"] = LAST_MONTH["period_end"]

    # What is true in the end

    def assert_data_refueling_amount(self, customer_id: str, line_id: str, expected_amount: float) -> bool:
        return bool(abs(self.line_of(customer_id, line_id)["data_refueling_gb"] - expected_amount) < TOLERANCE)

    def assert_no_overdue_bill(self, overdue_bill_id: str) -> bool:
        found = [bill for bill in self.tables["bills"] if bill["bill_id"] == overdue_bill_id]
        return not found or bool(found[0]["status"] == "Paid")

    # Records

    def record(self, kind: str, wanted: str) -> Record:
        """The record with an ID; an error for the model if there is none."""
        table, key = _KINDS[kind]
        found = next((each for each in self.tables[table] if each[key] == wanted), None)
        if found is None:
            raise RefusedError(f"There is no {key.removesuffix('_id')} {wanted}.")
        return found

    def line_of(self, customer_id: str, line_id: str) -> Record:
        if line_id not in self.get_customer_by_id(customer_id)["line_ids"]:
            raise RefusedError(f"The customer {customer_id} has no line {line_id}.")
        return self.record("L", line_id)

    def line_with(self, phone_number: str) -> Record:
        found = next((line for line in self.tables["lines"] if line["phone_number"] == phone_number), None)
        if found is None:
            raise RefusedError(f"There is no line with the phone number {phone_number}.")
        return found

    def bills_awaiting_payment(self, customer: Record) -> list[Record]:
        bills = (self.record("B", bill) for bill in customer["bill_ids"])
        return [bill for bill in bills if bill["status"] == "Awaiting Payment"]

    def _set_roaming(self, customer_id: str, line_id: str, *, wanted: bool) -> str:
        self.line_of(customer_id, line_id)["roaming_enabled"] = wanted
        return f"Roaming is {'enabled' if wanted else 'disabled'}."

    def _charge(self, customer_id: str, amount: float, description: str) -> None:
        """Put a charge on the draft of the customer's next bill."""
        customer = self.get_customer_by_id(customer_id)
        bills = (self.record("B", bill) for bill in customer["bill_ids"])
        draft = next((bill for bill in bills if bill["status"] == "Draft"), None)
        if draft is None:
            draft = self._bill(customer, f"B{customer_id}-next", status="Draft", **NEXT_MONTH)
        self._add_item(draft, amount, description)

    def _bill(self, customer: Record, bill_id: str, *, status: str, **dates: str) -> Record:
        bill = {"bill_id": bill_id, "customer_id": customer["customer_id"], **dates, "status": status}
        bill |= {"issue_date": dates["period_start"], "total_due": 0.0, "line_items": []}
        self.tables["bills"].append(bill)
        customer["bill_ids"].append(bill_id)
        return bill

    def _add_item(self, bill: Record, amount: float, description: str) -> None:
        item = {"description": description, "amount": amount, "date": TODAY, "item_type": "Charge"}
        bill["line_items"].append(item)
        bill["total_due"] += amount

"""Customers, and what is known about them."""

from typing import Any

from resources_servers.workplace_assistant.arguments import lowered, matching, padded, page_of, text
from resources_servers.workplace_assistant.tables import Office

STATUSES = ("Qualified", "Won", "Lost", "Lead", "Proposal")
PRODUCTS = ("Software", "Hardware", "Services", "Consulting", "Training")
CHANGEABLE = (
    "customer_name",
    "assigned_to_email",
    "customer_email",
    "customer_phone",
    "last_contact_date",
    "product_interest",
    "status",
    "notes",
    "follow_up_by",
)


def search_customers(
    office: Office,
    /,
    customer_name: Any = None,
    customer_email: Any = None,
    product_interest: Any = None,
    status: Any = None,
    assigned_to_email: Any = None,
    last_contact_date_min: Any = None,
    last_contact_date_max: Any = None,
    follow_up_by_min: Any = None,
    follow_up_by_max: Any = None,
    page: Any = 1,
    page_size: Any = 5,
) -> Any:
    patterns = {
        "customer_name": customer_name,
        "customer_email": customer_email,
        "product_interest": product_interest,
        "status": status,
        "assigned_to_email": assigned_to_email,
    }
    ranges = {
        "last_contact_date": (last_contact_date_min, last_contact_date_max),
        "follow_up_by": (follow_up_by_min, follow_up_by_max),
    }
    if not any(patterns.values()) and not any(map(any, ranges.values())):
        return "No search parameters provided. Please provide at least one parameter."
    found = list(office.customers.rows)
    for column, pattern in patterns.items():
        if pattern:
            found = matching(found, pattern, column)
    for column, (first, last) in ranges.items():
        if first:
            found = [row for row in found if isinstance(row[column], str) and row[column] >= text(first)]
        if last:
            found = [row for row in found if isinstance(row[column], str) and row[column] <= text(last)]
    return page_of("customers", found, page, page_size) if found else "No customers found."


def update_customer(office: Office, /, customer_id: Any = None, field: Any = None, new_value: Any = None) -> Any:
    if not customer_id or not field or not new_value:
        return "Customer ID, field, or new value not provided."
    if field == "status" and new_value not in STATUSES:
        return f"Status not valid. Please choose from: {', '.join(map(repr, STATUSES))}"
    if field == "product_interest" and new_value not in PRODUCTS:
        return f"Product interest not valid. Please choose from: {', '.join(map(repr, PRODUCTS))}"
    if field in ("customer_email", "assigned_to_email"):
        new_value = lowered(new_value)
    if office.customers.find(customer_id) is None:
        return "Customer not found."
    if field not in CHANGEABLE:
        return f"Field not valid. Please choose from: {', '.join(map(repr, CHANGEABLE))}"
    office.customers = office.customers.updated(customer_id, field, new_value)
    return "Customer updated successfully."


def add_customer(
    office: Office,
    /,
    customer_name: Any = None,
    assigned_to_email: Any = None,
    status: Any = None,
    customer_email: Any = None,
    customer_phone: Any = None,
    last_contact_date: Any = None,
    product_interest: Any = None,
    notes: Any = "",
    follow_up_by: Any = None,
) -> Any:
    if not all((customer_name, assigned_to_email, status)):
        return "Please provide all required fields: customer_name, assigned_to_email, status."
    customer_id = padded(office.customers.next_id())
    added = {
        "customer_id": customer_id,
        "assigned_to_email": lowered(assigned_to_email),
        "customer_name": customer_name,
        "customer_email": None if customer_email is None else lowered(customer_email),
        "customer_phone": customer_phone,
        "last_contact_date": last_contact_date,
        "product_interest": product_interest,
        "status": status,
        "follow_up_by": follow_up_by,
        "notes": notes,
    }
    office.customers = office.customers.appended(added)
    return customer_id


def delete_customer(office: Office, /, customer_id: Any = None) -> Any:
    if not customer_id:
        return "Customer ID not provided."
    if office.customers.find(customer_id) is None:
        return "Customer not found."
    office.customers = office.customers.without(customer_id)
    return "Customer deleted successfully."

"""The retail domain: products, users and orders, and the 15 tools of the shop's agent."""

from typing import Any, ClassVar, Literal

from resources_servers.tau2.database import Record, ServiceDesk
from resources_servers.tau2.toolset import RefusedError

PENDING, DELIVERED = "pending", "delivered"


class Retail(ServiceDesk):
    WRITING: ClassVar[frozenset[str]] = frozenset(
        (
            *("cancel_pending_order", "modify_pending_order_address", "modify_pending_order_items"),
            *("modify_pending_order_payment", "modify_user_address", "exchange_delivered_order_items"),
            "return_delivered_order_items",
        )
    )
    TOOLS: ClassVar[tuple[str, ...]] = (
        *("find_user_id_by_email", "find_user_id_by_name_zip", "get_user_details", "get_order_details"),
        *("get_product_details", "list_all_product_types", "cancel_pending_order", "modify_pending_order_address"),
        *("modify_pending_order_items", "modify_pending_order_payment", "modify_user_address"),
        *("exchange_delivered_order_items", "return_delivered_order_items", "calculate", "transfer_to_human_agents"),
    )

    # Look up

    def find_user_id_by_email(self, email: str) -> str:
        """Find the ID of a user by email address. Try this first."""
        return self._user_id(lambda user: user["email"].lower() == email.lower())

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:  # noqa: A002
        """Find the ID of a user by name and zip code, if the email address is not known or not found."""
        wanted = (first_name.lower(), last_name.lower(), zip)

        def is_wanted(user: Record) -> bool:
            name = user["name"]
            return (name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"]) == wanted

        return self._user_id(is_wanted)

    def get_user_details(self, user_id: str) -> Record:
        """Show a user, with payment methods and the IDs of orders. An ID is like sara_doe_496."""
        return self.database.find("users", user_id)

    def get_order_details(self, order_id: str) -> Record:
        """Show an order. An ID begins with #, such as #W0000000."""
        return self.database.find("orders", order_id)

    def get_product_details(self, product_id: str) -> Record:
        """Show a product with its items, their options, prices and whether they are in stock. The ID of a product is
        not the ID of an item."""
        return self.database.find("products", product_id)

    def list_all_product_types(self) -> dict[str, str]:
        """List the names of all products with their IDs."""
        return dict(sorted((each["name"], each["product_id"]) for each in self.database.records("products")))

    # Act

    def cancel_pending_order(self, order_id: str, reason: Literal["no longer needed", "ordered by mistake"]) -> Record:
        """Cancel an order whose status is pending, and refund it: to a gift card at once, else within a week. Explain
        it first and have the user confirm."""
        order = self._order(order_id, PENDING)
        for each in list(order["payment_history"]):
            self._pay_into(order["user_id"], each["payment_method_id"], each["amount"])
            order["payment_history"].append({**each, "transaction_type": "refund"})
        order.update(status="cancelled", cancel_reason=reason)
        return order

    def modify_pending_order_address(
        self,
        order_id: str,
        address1: str,
        address2: str,
        city: str,
        state: str,
        country: str,
        zip: str,  # noqa: A002
    ) -> Record:
        """Change the shipping address of a pending order. Explain it first and have the user confirm."""
        order = self._order(order_id, PENDING, also_changed=True)
        order["address"] = _address(address1, address2, city, state, country, zip)
        return order

    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Record:
        """Replace items of a pending order by other items of the same products, each by the one at the same place of
        the second list. It can be done once for an order. The difference is paid with, or refunded to, the payment
        method. Explain it first and have the user confirm."""
        order = self._order(order_id, PENDING)
        if any(old == new for old, new in zip(item_ids, new_item_ids, strict=False)):
            raise RefusedError("A new item must be another one than the old item.")
        price, last = self._exchange(order, item_ids, new_item_ids)
        self._check_balance(order["user_id"], payment_method_id, price)
        self._pay_into(order["user_id"], payment_method_id, -price)
        kind = "payment" if price > 0 else "refund"
        order["payment_history"].append(
            {"transaction_type": kind, "amount": abs(price), "payment_method_id": payment_method_id}
        )
        for old, new in zip(item_ids, new_item_ids, strict=True):
            # Every replaced item gets price and options of the last one. Expected states are made the same way.
            item = next(each for each in order["items"] if each["item_id"] == old)
            item.update(item_id=new, price=last["price"], options=last["options"])
        order["status"] = "pending (item modified)"
        return order

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> Record:
        """Have a pending order paid with another payment method of the user, and refund the first. Explain it first
        and have the user confirm."""
        order = self._order(order_id, PENDING, also_changed=True)
        history = order["payment_history"]
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise RefusedError("The order must have exactly one payment.")
        amount, old = history[0]["amount"], history[0]["payment_method_id"]
        if payment_method_id == old:
            raise RefusedError("The new payment method must be another one than the old one.")
        self._check_balance(order["user_id"], payment_method_id, amount)
        self._pay_into(order["user_id"], payment_method_id, -amount)
        self._pay_into(order["user_id"], old, amount)
        history += [
            {"transaction_type": kind, "amount": amount, "payment_method_id": method}
            for kind, method in (("payment", payment_method_id), ("refund", old))
        ]
        return order

    def modify_user_address(
        self,
        user_id: str,
        address1: str,
        address2: str,
        city: str,
        state: str,
        country: str,
        zip: str,  # noqa: A002
    ) -> Record:
        """Change the default address of a user. Explain it first and have the user confirm."""
        user = self.database.edit("users", user_id)
        user["address"] = _address(address1, address2, city, state, country, zip)
        return user

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Record:
        """Exchange items of a delivered order for other items of the same products, each for the one at the same place
        of the second list. An order can be exchanged or returned once. The difference is paid with, or refunded to,
        the payment method. Explain it first and have the user confirm."""
        order = self._order(order_id, DELIVERED)
        price = round(self._exchange(order, item_ids, new_item_ids)[0], 2)
        self._check_balance(order["user_id"], payment_method_id, price)
        order.update(
            status="exchange requested",
            exchange_items=sorted(item_ids),
            exchange_new_items=sorted(new_item_ids),
            exchange_payment_method_id=payment_method_id,
            exchange_price_difference=price,
        )
        return order

    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> Record:
        """Return items of a delivered order. An order can be exchanged or returned once. The refund goes to the
        original payment method or to a gift card of the user. Explain it first and have the user confirm."""
        order = self._order(order_id, DELIVERED)
        method = self._payment_method(order["user_id"], payment_method_id)
        original = order["payment_history"][0]["payment_method_id"]
        if method["source"] != "gift_card" and payment_method_id != original:
            raise RefusedError(f"The refund goes to {original} or to a gift card.")
        _check_items(order, item_ids)
        order.update(
            status="return requested", return_items=sorted(item_ids), return_payment_method_id=payment_method_id
        )
        return order

    # Orders and items

    def _user_id(self, is_wanted: Any) -> str:
        found = next((each["user_id"] for each in self.database.records("users") if is_wanted(each)), None)
        if found is None:
            raise RefusedError("There is no such user.")
        return str(found)

    def _order(self, order_id: str, status: str, *, also_changed: bool = False) -> Record:
        """An order to change, if it has this status, or has had it before its items were changed."""
        found = self.database.find("orders", order_id)["status"]
        if found != status and not (also_changed and status in found):
            raise RefusedError(f"The order {order_id} is {found}, not {status}.")
        return self.database.edit("orders", order_id)

    def _exchange(self, order: Record, item_ids: list[str], new_item_ids: list[str]) -> tuple[float, Record]:
        """The difference in price, and the last new item."""
        _check_items(order, item_ids)
        if len(item_ids) != len(new_item_ids):
            raise RefusedError("Each item needs one new item.")
        difference, variant = 0.0, Record()
        for old, new in zip(item_ids, new_item_ids, strict=True):
            item = next(each for each in order["items"] if each["item_id"] == old)
            variants = self.database.find("products", item["product_id"])["variants"]
            if not variants.get(new, {}).get("available"):
                raise RefusedError(f"The product {item['name']} has no item {new} in stock.")
            variant = variants[new]
            difference += variant["price"] - item["price"]
        return difference, variant

    # Payments

    def _payment_method(self, user_id: str, method_id: str) -> Record:
        methods: dict[str, Record] = self.database.find("users", user_id)["payment_methods"]
        if method_id not in methods:
            raise RefusedError(f"The user has no payment method {method_id}.")
        return methods[method_id]

    def _check_balance(self, user_id: str, method_id: str, price: float) -> None:
        method = self._payment_method(user_id, method_id)
        if method["source"] == "gift_card" and method["balance"] < price:
            raise RefusedError(f"{method_id} has only {method['balance']} USD.")

    def _pay_into(self, user_id: str, method_id: str, amount: float) -> None:
        """Change the balance of a gift card. Other payment methods have none."""
        if self._payment_method(user_id, method_id)["source"] == "gift_card":
            card = self.database.edit("users", user_id)["payment_methods"][method_id]
            card["balance"] = round(card["balance"] + amount, 2)


def _check_items(order: Record, item_ids: list[str]) -> None:
    owned = [each["item_id"] for each in order["items"]]
    for each in item_ids:
        if item_ids.count(each) > owned.count(each):
            raise RefusedError(f"The order has {owned.count(each)} items {each}.")


def _address(address1: str, address2: str, city: str, state: str, country: str, zip_code: str) -> Record:
    return {
        "address1": address1,
        "address2": address2,
        "city": city,
        "country": country,
        "state": state,
        "zip": zip_code,
    }

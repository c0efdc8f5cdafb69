"""The airline domain: flights, users and reservations, and the 14 tools of the airline's agent."""

import datetime
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from resources_servers.tau2.database import Record, ServiceDesk
from resources_servers.tau2.toolset import RefusedError

NOW = "2024-05-15T15:00:00"
NEW_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
NEW_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
BAG_USD, INSURANCE_USD = 50, 30
AIRPORTS = {
    "SFO": "San Francisco",
    "JFK": "New York",
    "LAX": "Los Angeles",
    "ORD": "Chicago",
    "DFW": "Dallas",
    "DEN": "Denver",
    "SEA": "Seattle",
    "ATL": "Atlanta",
    "MIA": "Miami",
    "BOS": "Boston",
    "PHX": "Phoenix",
    "IAH": "Houston",
    "LAS": "Las Vegas",
    "MCO": "Orlando",
    "EWR": "Newark",
    "CLT": "Charlotte",
    "MSP": "Minneapolis",
    "DTW": "Detroit",
    "PHL": "Philadelphia",
    "LGA": "LaGuardia",
}

Cabin = Literal["business", "economy", "basic_economy"]


class FlightOnDate(BaseModel):
    flight_number: str
    date: str
    """YYYY-MM-DD"""


class Passenger(BaseModel):
    first_name: str
    last_name: str
    dob: str
    """YYYY-MM-DD"""


class Payment(BaseModel):
    payment_id: str
    amount: int


class Airline(ServiceDesk):
    WRITING: ClassVar[frozenset[str]] = frozenset(
        (
            *("book_reservation", "cancel_reservation", "send_certificate", "update_reservation_baggages"),
            *("update_reservation_flights", "update_reservation_passengers"),
        )
    )
    TOOLS: ClassVar[tuple[str, ...]] = (
        *("get_user_details", "get_reservation_details", "get_flight_status", "list_all_airports"),
        *("search_direct_flight", "search_onestop_flight", "book_reservation", "cancel_reservation"),
        *("update_reservation_flights", "update_reservation_passengers", "update_reservation_baggages"),
        *("send_certificate", "calculate", "transfer_to_human_agents"),
    )

    # Look up

    def get_user_details(self, user_id: str) -> Record:
        """Show a user, with payment methods and the IDs of reservations. An ID is like mia_li_3668."""
        return self.database.find("users", user_id)

    def get_reservation_details(self, reservation_id: str) -> Record:
        """Show a reservation. An ID is like ZFA04Y."""
        return self.database.find("reservations", reservation_id)

    def get_flight_status(self, flight_number: str, date: str) -> str:
        """Tell the status of a flight on a date (YYYY-MM-DD)."""
        return str(self._on_date(flight_number, date)["status"])

    def list_all_airports(self) -> list[dict[str, str]]:
        """List the airports, with code and city."""
        return [{"iata": code, "city": city} for code, city in AIRPORTS.items()]

    def search_direct_flight(self, origin: str, destination: str, date: str) -> list[Record]:
        """Find direct flights between two airports, by their codes, on a date (YYYY-MM-DD)."""
        return [each for each in self._departures(origin, date) if each["destination"] == destination]

    def search_onestop_flight(self, origin: str, destination: str, date: str) -> list[list[Record]]:
        """Find pairs of flights that connect two airports, by their codes, from a date (YYYY-MM-DD) on."""
        found = list[list[Record]]()
        for first in self._departures(origin, date):
            arrival = first["scheduled_arrival_time_est"]
            onward = _next_day(date) if "+1" in arrival else date
            for second in self._departures(first["destination"], onward):
                if second["destination"] == destination and second["scheduled_departure_time_est"] >= arrival:
                    found.append([{**first, "date": date}, {**second, "date": onward}])
        return found

    # Act

    def book_reservation(
        self,
        user_id: str,
        origin: str,
        destination: str,
        flight_type: Literal["round_trip", "one_way"],
        cabin: Cabin,
        flights: list[FlightOnDate],
        passengers: list[Passenger],
        payment_methods: list[Payment],
        total_baggages: int,
        nonfree_baggages: int,
        insurance: Literal["yes", "no"],
    ) -> Record:
        """Book flights for passengers. The payments, each with the ID of one of the user's payment methods, must add
        up to the price: seats, 30 USD of insurance for each passenger, and 50 USD for each bag that is not free."""
        user = self.database.find("users", user_id)
        new_id = next((each for each in NEW_RESERVATIONS if not self.database.has("reservations", each)), None)
        if new_id is None:
            raise RefusedError("No more reservations can be made.")
        legs = [self._seats(each, cabin, len(passengers)) for each in flights]
        price = sum(leg["price"] for leg in legs) + (INSURANCE_USD if insurance == "yes" else 0)
        price = price * len(passengers) + BAG_USD * nonfree_baggages
        self._check_payments(user, payment_methods, price)
        self._pay(user_id, payment_methods)
        for each in flights:
            self._edited_date(each)["available_seats"][cabin] -= len(passengers)
        reservation = {
            "reservation_id": new_id,
            "user_id": user_id,
            "origin": origin,
            "destination": destination,
            "flight_type": flight_type,
            "cabin": cabin,
            "flights": legs,
            "passengers": [each.model_dump() for each in passengers],
            "payment_history": [each.model_dump() for each in payment_methods],
            "created_at": NOW,
            "total_baggages": total_baggages,
            "nonfree_baggages": nonfree_baggages,
            "insurance": insurance,
            "status": None,
        }
        self.database.add("reservations", new_id, reservation)
        self.database.edit("users", user_id)["reservations"].append(new_id)
        return reservation

    def cancel_reservation(self, reservation_id: str) -> Record:
        """Cancel a whole reservation and refund its payments."""
        reservation = self.database.edit("reservations", reservation_id)
        history = reservation["payment_history"]
        history += [{"payment_id": each["payment_id"], "amount": -each["amount"]} for each in history]
        reservation["status"] = "cancelled"
        return reservation

    def send_certificate(self, user_id: str, amount: int) -> str:
        """Give a user a certificate of an amount in USD. Be careful."""
        methods = self.database.edit("users", user_id)["payment_methods"]
        new_id = next((each for each in NEW_CERTIFICATES if each not in methods), None)
        if new_id is None:
            raise RefusedError("No more certificates can be sent.")
        methods[new_id] = {"source": "certificate", "id": new_id, "amount": float(amount)}
        return f"{user_id} has the certificate {new_id} of {amount} USD."

    def update_reservation_baggages(
        self, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
    ) -> Record:
        """Change the number of bags of a reservation. Each that is not free, beyond those paid for, costs 50 USD."""
        reservation = self.database.edit("reservations", reservation_id)
        added = max(0, nonfree_baggages - reservation["nonfree_baggages"])
        self._pay_change(reservation, payment_id, BAG_USD * added)
        reservation.update(total_baggages=total_baggages, nonfree_baggages=nonfree_baggages)
        return reservation

    def update_reservation_flights(
        self, reservation_id: str, cabin: Cabin, flights: list[FlightOnDate], payment_id: str
    ) -> Record:
        """Change the cabin or the flights of a reservation. List all of its flights, also those that stay. The
        difference in price is paid with, or refunded to, a payment method that is no certificate."""
        reservation = self.database.edit("reservations", reservation_id)
        count = len(reservation["passengers"])
        kept = {
            (each["flight_number"], each["date"]): each
            for each in reversed(reservation["flights"])
            if cabin == reservation["cabin"]
        }
        legs = [kept.get((each.flight_number, each.date)) or self._seats(each, cabin, count) for each in flights]
        price = sum(leg["price"] for leg in legs) - sum(leg["price"] for leg in reservation["flights"])
        self._pay_change(reservation, payment_id, price * count)
        reservation.update(flights=legs, cabin=cabin)
        return reservation

    def update_reservation_passengers(self, reservation_id: str, passengers: list[Passenger]) -> Record:
        """Change the data of the passengers of a reservation. Their number stays."""
        reservation = self.database.edit("reservations", reservation_id)
        if len(passengers) != len(reservation["passengers"]):
            raise RefusedError(f"The reservation has {len(reservation['passengers'])} passengers.")
        reservation["passengers"] = [each.model_dump() for each in passengers]
        return reservation

    # Flights

    def _on_date(self, flight_number: str, date: str) -> Record:
        dates: Record = self.database.find("flights", flight_number)["dates"]
        if date not in dates:
            raise RefusedError(f"The flight {flight_number} does not fly on {date}.")
        found: Record = dates[date]
        return found

    def _edited_date(self, flight: FlightOnDate) -> Record:
        found: Record = self.database.edit("flights", flight.flight_number)["dates"][flight.date]
        return found

    def _departures(self, origin: str, date: str) -> Iterator[Record]:
        """The flights from an airport that can be booked."""
        for flight in self.database.records("flights"):
            on_date = flight["dates"].get(date) if flight["origin"] == origin else None
            if on_date is not None and on_date["status"] == "available":
                yield {**{name: value for name, value in flight.items() if name != "dates"}, **on_date}

    def _seats(self, flight: FlightOnDate, cabin: str, count: int) -> Record:
        """A flight as a part of a reservation, if it has seats for so many passengers."""
        on_date = self._on_date(flight.flight_number, flight.date)
        if on_date["status"] != "available" or on_date["available_seats"][cabin] < count:
            raise RefusedError(
                f"The flight {flight.flight_number} on {flight.date} has not enough seats in {cabin}, or is "
                "not available."
            )
        record = self.database.find("flights", flight.flight_number)
        places = {name: record[name] for name in ("flight_number", "origin", "destination")}
        return {**places, "date": flight.date, "price": on_date["prices"][cabin]}

    # Payments

    def _check_payments(self, user: Record, payments: list[Payment], price: int) -> None:
        methods, used = user["payment_methods"], set[str]()
        for each in payments:
            method = methods.get(each.payment_id)
            if method is None or (method["source"] == "certificate" and each.payment_id in used):
                raise RefusedError(f"The user has no payment method {each.payment_id}.")
            if method.get("amount", each.amount) < each.amount:
                raise RefusedError(f"{each.payment_id} has only {method['amount']} USD.")
            used.add(each.payment_id)
        paid = sum(each.amount for each in payments)
        if paid != price:
            raise RefusedError(f"The price is {price} USD; the payments are {paid} USD.")

    def _pay(self, user_id: str, payments: list[Payment]) -> None:
        """Take payments of a booking. A certificate is used up by one."""
        methods = self.database.edit("users", user_id)["payment_methods"]
        for each in payments:
            if methods[each.payment_id]["source"] == "certificate":
                del methods[each.payment_id]
            elif methods[each.payment_id]["source"] == "gift_card":
                methods[each.payment_id]["amount"] -= each.amount

    def _pay_change(self, reservation: Record, payment_id: str, price: int) -> None:
        """Take the price of a change, or refund it if it is negative."""
        methods: dict[str, Any] = self.database.find("users", reservation["user_id"])["payment_methods"]
        if payment_id not in methods:
            raise RefusedError(f"The user has no payment method {payment_id}.")
        source = methods[payment_id]["source"]
        if source == "certificate":
            raise RefusedError("A certificate cannot pay for a change.")
        if source == "gift_card":
            if methods[payment_id]["amount"] < price:
                raise RefusedError(f"{payment_id} has only {methods[payment_id]['amount']} USD.")
            self.database.edit("users", reservation["user_id"])["payment_methods"][payment_id]["amount"] -= price
        if price:
            reservation["payment_history"].append({"payment_id": payment_id, "amount": price})


def _next_day(date: str) -> str:
    try:
        return str(datetime.date.fromisoformat(date) + datetime.timedelta(days=1))
    except (ValueError, OverflowError):
        return date

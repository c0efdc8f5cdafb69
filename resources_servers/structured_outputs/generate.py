"""Rows from a seed: facts in sentences, a schema for them, and the facts as JSON.

The prompt shows the schema. The row's own schema also has the facts, as `const`, so that a reply that fits the schema
but says nothing of the document is not rewarded."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from nemo_gym.data.generate import distinct_rows

FIRST_NAMES = ("Alma", "Bruno", "Clara", "Dario", "Edda", "Finn", "Gwen", "Hugo", "Ilse", "Jonas")
LAST_NAMES = ("Abbott", "Berger", "Conti", "Duarte", "Ekman", "Farkas", "Gruber", "Hollis", "Jansen", "Keller")
CITIES = ("Bergen", "Cadiz", "Dresden", "Galway", "Lyon", "Porto", "Tartu", "Uppsala", "Varna", "Zadar")
GOODS = ("rye bread", "soap", "candles", "walnut oil", "wool blankets", "honey", "pencils", "tea", "baskets")
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
TASK = (
    "Describe the shop. Copy names, words and numbers as they are in the document, lists in its order. Reply with one "
    "JSON object that fits this schema, and with nothing else:"
)


class Fact(NamedTuple):
    """A field: what the document says about it, its schema, and its value."""

    name: str
    text: str
    schema: dict[str, Any]
    value: Any


def _name(chance: Random) -> Fact:
    name = f"{chance.choice(LAST_NAMES)} & {chance.choice(('Sons', 'Daughters', 'Co'))}"
    return Fact("name", f"The shop is called {name}.", {"type": "string"}, name)


def _city(chance: Random) -> Fact:
    city = chance.choice(CITIES)
    return Fact("city", f"You find it in {city}.", {"type": "string"}, city)


def _founded(chance: Random) -> Fact:
    year = chance.randint(1820, 2019)
    schema = {"type": "integer", "minimum": 1800, "maximum": 2030}
    return Fact("founded", f"It opened in {year}.", schema, year)


def _employees(chance: Random) -> Fact:
    count = chance.randint(1, 40)
    return Fact("employees", f"It has a staff of {count}.", {"type": "integer", "minimum": 0}, count)


def _rating(chance: Random) -> Fact:
    rating = chance.randint(10, 50) / 10
    schema = {"type": "number", "minimum": 0, "maximum": 5}
    return Fact("rating", f"Visitors rate it {rating} out of 5.", schema, rating)


def _delivers(chance: Random) -> Fact:
    delivers = chance.random() < 0.5
    text = "It delivers to your door." if delivers else "It does not deliver."
    return Fact("delivers", text, {"type": "boolean"}, delivers)


def _open_days(chance: Random) -> Fact:
    days = [day for day in DAYS if chance.random() < 0.7] or ["Sat"]
    schema = {"type": "array", "items": {"type": "string", "enum": list(DAYS)}, "minItems": 1, "uniqueItems": True}
    return Fact("open_days", f"It is open on {', '.join(days)}.", schema, days)


def _code(chance: Random) -> Fact:
    code = f"{chance.choice('ABCDEFGH')}{chance.choice('KLMNPQRS')}-{chance.randint(1000, 9999)}"
    schema = {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}
    return Fact("registration", f"Its registration is {code}.", schema, code)


def _owner(chance: Random) -> Fact:
    name, age = f"{chance.choice(FIRST_NAMES)} {chance.choice(LAST_NAMES)}", chance.randint(25, 80)
    properties = {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}}
    schema = {"type": "object", "properties": properties, "required": ["name", "age"]}
    return Fact("owner", f"The owner is {name}, aged {age}.", schema, {"name": name, "age": age})


def _products(chance: Random) -> Fact:
    products = [{"name": name, "price": chance.randint(1, 400) / 10} for name in chance.sample(GOODS, 3)]
    item = {"type": "object", "properties": {"name": {"type": "string"}, "price": {"type": "number"}}}
    text = ", ".join(f"{product['name']} at {product['price']} euros" for product in products)
    return Fact("products", f"It sells {text}.", {"type": "array", "items": item, "minItems": 1}, products)


FLAT: tuple[Callable[[Random], Fact], ...] = (_name, _city, _founded, _employees, _rating, _delivers)
RICH: tuple[Callable[[Random], Fact], ...] = (_open_days, _code, _owner, _products)


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """Each difficulty adds a field; from 2 on there are also lists, patterns and objects, one more each time. The
    document has facts that the schema does not ask for."""
    return distinct_rows("structured_outputs", _row, seed=seed, count=count, difficulty=difficulty)


def _row(chance: Random, level: int) -> dict[str, Any]:
    told = [make(chance) for make in (*chance.sample(FLAT, len(FLAT)), *chance.sample(RICH, level - 1))]
    asked = min(3 + level // 2, len(FLAT))
    facts = chance.sample(told[:asked] + told[len(FLAT) :], asked + level - 1)
    names = [fact.name for fact in facts]
    shown = {"type": "object", "properties": {fact.name: fact.schema for fact in facts}, "required": names}
    known = {fact.name: {**fact.schema, "const": fact.value} for fact in facts}
    document = " ".join(fact.text for fact in chance.sample(told, len(told)))
    prompt = f"# Document\n{document}\n\n# Task\n{TASK}\n{json.dumps(shown)}"
    return {
        "responses_create_params": {"input": [{"role": "user", "content": prompt}]},
        "schema_str": json.dumps({**shown, "properties": known}),
        "schema_type": "json",
        "gold_response": json.dumps({fact.name: fact.value for fact in facts}),
    }

"""A small web shop: the model finds goods, fills its cart and orders. What was ordered is scored, not what it says."""

from collections import Counter
from html import escape
from typing import Any, Literal
from urllib.parse import parse_qs

from pydantic import BaseModel, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from nemo_gym import JsonObject
from nemo_gym.base_resources_server import BaseSeedSessionRequest, BaseVerifyRequest, Score
from nemo_gym.browser import BrowserResourcesServer, BrowserSession, Site

URL = "http://shop.test/"
Shipping = Literal["standard", "express", "pickup"]


class Product(BaseModel):
    name: str
    price_cents: int = Field(ge=0)
    stock: int = Field(ge=0)
    about: str = ""


class Order(BaseModel):
    items: dict[str, int] = Field(min_length=1)
    """How many of each product, by name."""
    name: str
    shipping: Shipping = "standard"


class ShopSeedSessionRequest(BaseSeedSessionRequest):
    catalog: list[Product] = Field(min_length=1)


class ShopVerifyRequest(BaseVerifyRequest):
    catalog: list[Product]
    expected_order: Order


class Shop(Site):
    """The shop of one rollout: what is in the cart, and what was ordered."""

    def __init__(self, catalog: list[Product]) -> None:
        pages = {"/": self.home, "/product/{number:int}": self.product, "/cart": self.show_cart}
        forms = {"/add": self.add, "/empty": self.empty, "/order": self.order}
        routes = [Route(path, page, methods=["GET"]) for path, page in pages.items()]
        routes += [Route(path, form, methods=["POST"]) for path, form in forms.items()]
        super().__init__(URL, Starlette(routes=routes))
        self.catalog = catalog
        self.cart: Counter[int] = Counter()
        self.orders: list[Order] = []

    async def home(self, request: Request) -> Response:
        wanted = request.query_params.get("q", "").casefold()
        lines = [
            f'<li><a href="/product/{number}">{escape(each.name)}</a> {_price(each.price_cents)}</li>'
            for number, each in enumerate(self.catalog)
            if wanted in f"{each.name} {each.about}".casefold()
        ]
        search = '<form><label>Search <input name="q"></label> <button>Find</button></form>'
        return _page(
            "Products", f"{search}<ul>{''.join(lines)}</ul>" if lines else f"{search}<p>Nothing was found.</p>"
        )

    async def product(self, request: Request) -> Response:
        number = request.path_params["number"]
        if number >= len(self.catalog):
            return _page("Not found", "<p>There is no such product.</p>", status=404)
        each = self.catalog[number]
        form = (
            f'<form method="post" action="/add"><input type="hidden" name="number" value="{number}">'
            '<label>Amount <input name="amount" value="1"></label> <button>Add to cart</button></form>'
        )
        stock = f"<p>{each.stock} in stock</p>{form}" if each.stock else "<p>Sold out</p>"
        return _page(each.name, f"<p>{escape(each.about)}</p><p>{_price(each.price_cents)}</p>{stock}")

    async def add(self, request: Request) -> Response:
        form = await _form(request)
        number, amount = _whole(form.get("number")), _whole(form.get("amount"))
        if number is None or number >= len(self.catalog) or not amount:
            return _page("Error", "<p>The amount must be a whole number from 1.</p>", status=400)
        if self.cart[number] + amount > self.catalog[number].stock:
            return _page("Error", "<p>There are not as many in stock.</p>", status=400)
        self.cart[number] += amount
        return RedirectResponse("/cart", status_code=303)

    async def show_cart(self, request: Request) -> Response:
        if not self.cart:
            return _page("Cart", "<p>Your cart is empty.</p>")
        lines = [f"<li>{amount} × {escape(self.catalog[number].name)}</li>" for number, amount in self.cart.items()]
        total = sum(self.catalog[number].price_cents * amount for number, amount in self.cart.items())
        options = "".join(f"<option>{each}</option>" for each in ("standard", "express", "pickup"))
        return _page(
            "Cart",
            f"<ul>{''.join(lines)}</ul><p>Total {_price(total)}</p>"
            '<form method="post" action="/empty"><button>Empty the cart</button></form>'
            '<form method="post" action="/order"><label>Your name <input name="name"></label> '
            f'<label>Shipping <select name="shipping">{options}</select></label> <button>Order</button></form>',
        )

    async def empty(self, request: Request) -> Response:
        self.cart.clear()
        return RedirectResponse("/cart", status_code=303)

    async def order(self, request: Request) -> Response:
        form = await _form(request)
        shipping: Any = form.get("shipping")
        if not self.cart or not form.get("name") or shipping not in ("standard", "express", "pickup"):
            return _page("Error", "<p>An order needs a cart, a name and a way of shipping.</p>", status=400)
        items = {self.catalog[number].name: amount for number, amount in self.cart.items()}
        self.orders.append(Order(items=items, name=form["name"], shipping=shipping))
        self.cart.clear()
        return _page("Thank you", f"<p>Order {len(self.orders)} was placed.</p>")


class ShopResourcesServer(BrowserResourcesServer):
    @classmethod
    def check_row(cls, row: JsonObject) -> None:
        catalog = [Product.model_validate(each) for each in row["catalog"]]
        stock = {each.name: each.stock for each in catalog}
        if len(stock) != len(catalog):
            raise ValueError("two products of the catalog have the same name")
        for name, amount in row["expected_order"]["items"].items():
            if not 1 <= amount <= stock.get(name, 0):
                raise ValueError(f"{amount} of {name!r} cannot be ordered: the shop has {stock.get(name, 0)}")

    async def seed_session(self, body: ShopSeedSessionRequest, browser: BrowserSession) -> None:
        browser.site = Shop(body.catalog)

    async def verify(self, body: ShopVerifyRequest, browser: BrowserSession) -> Score:
        """1 if exactly the expected order was placed, and no other."""
        shop: Shop = browser.site
        return Score(float(shop.orders == [body.expected_order]), orders=len(shop.orders), actions=browser.actions)


def _page(title: str, body: str, *, status: int = 200) -> Response:
    links = '<nav><a href="/">Products</a> <a href="/cart">Cart</a></nav>'
    head = f"<title>{escape(title)}</title><h1>{escape(title)}</h1>"
    return HTMLResponse(f"<!DOCTYPE html>{head}{links}{body}", status_code=status)


async def _form(request: Request) -> dict[str, str]:
    fields = parse_qs((await request.body()).decode(errors="replace"))
    return {name: values[-1].strip() for name, values in fields.items()}


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 7 else None


def _price(cents: int) -> str:
    return f"{cents / 100:.2f} €"


if __name__ == "__main__":
    ShopResourcesServer.run_webserver()

"""The shop is played through its pages, and scored by its orders."""

from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio

from nemo_gym.testing import BrowserLikeClient, client_for, rows_of
from resources_servers.example_shop.app import ShopResourcesServer
from tests.browser.chromium import Player, needs_chromium

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROWS = rows_of("resources_servers/example_shop/data/example.jsonl")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client() -> AsyncIterator[BrowserLikeClient]:
    async with client_for(ShopResourcesServer) as found:
        yield found


async def shopper(client: BrowserLikeClient, row: int) -> Player:
    found = Player(client, ROWS[row])
    assert (await found.client.post("/seed_session", json=found.row)).status == 200
    await found.do("look")
    return found


async def add(shop: Player, name: str, amount: int) -> None:
    await shop.click('link "Products"')
    await shop.click(f'link "{name}"')
    await shop.do("fill", ref=shop.ref("- textbox"), text=str(amount))
    await shop.click("Add to cart")


async def order(shop: Player, name: str, shipping: str) -> None:
    await shop.do("fill", ref=shop.ref("- textbox"), text=name)
    await shop.do("select", ref=shop.ref("- combobox"), options=[shipping])
    await shop.click('button "Order"')


@needs_chromium
@pytest.mark.parametrize("row", range(len(ROWS)))
async def test_what_is_asked_for_can_be_ordered(client: BrowserLikeClient, row: int) -> None:
    shop, wanted = await shopper(client, row), ROWS[row]["expected_order"]
    for name, amount in wanted["items"].items():
        await add(shop, name, amount)
    await order(shop, wanted["name"], wanted["shipping"])
    assert "Order 1 was placed" in shop.seen
    score = await shop.score()
    assert (score["reward"], score["orders"]) == (1.0, 1)


@needs_chromium
@pytest.mark.parametrize(
    ("items", "name", "shipping", "times"),
    [
        ({"Teapot": 2}, "Ada Byron", "standard", 1),
        ({"Teapot": 1}, "Ada Byron", "express", 1),
        ({"Teapot": 1}, "Somebody", "standard", 1),
        ({"Teapot": 1, "Honey": 1}, "Ada Byron", "standard", 1),
        ({"Teapot": 1}, "Ada Byron", "standard", 2),
        ({"Teapot": 1}, "Ada Byron", "standard", 0),
    ],
)
async def test_any_other_order_is_not_rewarded(
    client: BrowserLikeClient, items: dict[str, int], name: str, shipping: str, times: int
) -> None:
    shop = await shopper(client, 0)
    for _ in range(max(times, 1)):
        for each, amount in items.items():
            await add(shop, each, amount)
        if times:
            await order(shop, name, shipping)
    score = await shop.score()
    assert (score["reward"], score["orders"]) == (0.0, times)


@needs_chromium
async def test_wrong_input_is_refused_and_the_search_finds(client: BrowserLikeClient) -> None:
    shop = await shopper(client, 0)
    await shop.do("fill", ref=shop.ref("- textbox"), text="LEAVES")
    await shop.do("press", keys="Enter")
    assert ("Green tea" in shop.seen, "Honey" in shop.seen) == (True, False)
    await add(shop, "Teapot", 5)
    assert "not as many in stock" in shop.seen
    await add(shop, "Teapot", 0)
    assert "whole number" in shop.seen
    await shop.click('link "Products"')
    await shop.click("Black tea")
    assert "Sold out" in shop.seen
    await shop.click('link "Cart"')
    assert "empty" in shop.seen


@pytest.mark.parametrize(
    ("items", "reason"), [({"Samovar": 1}, "Samovar"), ({"Teapot": 5}, "has 4"), ({"Black tea": 1}, "has 0")]
)
async def test_a_row_that_cannot_be_ordered_is_refused(
    client: BrowserLikeClient, items: dict[str, int], reason: str
) -> None:
    row = {**ROWS[0], "expected_order": {"items": items, "name": "Ada"}}
    reply = await client.another().post("/seed_session", json=row)
    assert (reply.status, orjson.loads(reply.content())["error"]["cause"]) == (422, "input")
    assert reason in reply.text

"""Actions by element reference, by coordinates and by keys, and what is to be seen after them."""

import base64
from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio

from nemo_gym.testing import BrowserLikeClient
from tests.browser.chromium import Player, needs_chromium, page_server, player

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module")]

FORM = """<title>A form</title>
<label>Name <input id=name></label>
<label>Colour <select id=colour><option>red</option><option>blue</option></select></label>
<label><input type=checkbox> Agreed</label>
<button onclick="said.textContent = `${name_.value}, ${colour.value}`">Send</button>
<p id=said></p><script>const name_ = document.getElementById('name')</script>"""
CANVAS = """<style>body {margin: 0; user-select: none}</style>
<div id=box style="position: absolute; left: 100px; top: 50px; width: 40px; height: 40px; background: red"></div>
<svg style="position: absolute; left: 300px; top: 200px" width=20 height=20><circle cx=10 cy=10 r=9 /></svg>
<p id=said>nothing</p><div style="height: 3000px"></div>
<script>
const say = text => said.textContent = text;
box.onclick = event => say(`box ${event.detail}`);
box.onmouseenter = () => say('over');
box.onmousedown = () => document.onmousemove = event => say(`dragged to ${event.x},${event.y}`);
document.onmouseup = () => document.onmousemove = null;
document.querySelector('circle').onclick = () => say('circle');
onscroll = () => say(`scrolled ${Math.round(scrollY)}`);
</script>"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client() -> AsyncIterator[BrowserLikeClient]:
    async with page_server(viewport_width=400, viewport_height=300, max_actions=12) as found:
        yield found


async def test_a_form_is_filled_by_element_references(client: BrowserLikeClient) -> None:
    page = await player(client, FORM)
    assert page.seen.startswith('URL: http://site.test/\nTitle: "A form"\n')
    await page.do("fill", ref=page.ref('textbox "Name"'), text="Ada")
    await page.do("select", ref=page.ref("combobox"), options=["blue"])
    await page.click("checkbox")
    assert 'checkbox "Agreed" [checked]' in page.seen
    assert "Ada, blue" in await page.click("Send")


async def test_keys_and_pasting_use_what_the_same_rollout_has_copied(client: BrowserLikeClient) -> None:
    one, other = await player(client, FORM), await player(client, FORM)
    for page, name in ((one, "Ada"), (other, "Bob")):
        await page.click("textbox")
        await page.do("type_text", text=name)
        await page.do("press", keys="Control+a")
        await page.do("press", keys="Control+c")
    for page, name in ((one, "Ada"), (other, "Bob")):
        await page.do("press", keys="End")
        await page.do("press", keys="Control+v")
        assert f": {name}{name}" in page.seen
    await one.do("press", keys="Shift+ArrowLeft")
    await one.do("press", keys="Control+x")
    assert ": AdaAd" in one.seen
    assert ": AdaAda" in await one.do("press", keys="Control+v")


async def test_positions_work_on_what_has_no_reference(client: BrowserLikeClient) -> None:
    page = await player(client, CANVAS)
    dom = await page.do("look", kind="dom")
    assert "<circle" in dom
    assert "at=310,210" in dom
    assert "circle" in await page.do("click_at", x=310, y=210)
    assert "over" in await page.do("move_to", x=120, y=70)
    assert "box 2" in await page.do("click_at", x=120, y=70, clicks=2)
    assert "dragged to 200,100" in await page.do("drag_at", x=120, y=70, to_x=200, to_y=100)
    assert "scrolled 500" in await page.do("scroll", down=500) + await page.do("look")
    assert "outside of the page" in await page.do("click_at", x=401, y=0)


async def test_an_element_is_dragged_to_another_one(client: BrowserLikeClient) -> None:
    html = "<button>from</button><hr><button onmouseup='document.title = `dropped`'>to</button>"
    page = await player(client, html)
    assert 'Title: "dropped"' in await page.do("drag", ref=page.ref('"from"'), to_ref=page.ref('"to"'))


async def test_a_screenshot_is_an_image_with_positions_of_elements(client: BrowserLikeClient) -> None:
    page = await player(client, FORM)
    text, image = orjson.loads(await page.do("look", kind="screenshot"))
    assert text["type"] == "input_text"
    kind, _, data = image["image_url"].partition(",")
    assert (image["type"], kind) == ("input_image", "data:image/png;base64")
    png = base64.b64decode(data)
    assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (400, 300)


@pytest.mark.parametrize(
    ("tool", "arguments", "error"),
    [
        ("click", {"ref": "e99"}, "e99"),
        ("click", {"ref": "css=button"}, "not a reference"),
        ("click", {"ref": "e1 >> css=button"}, "not a reference"),
        ("click", {"ref": "e1", "clicks": 4}, "1 to 3"),
        ("press", {"keys": "Ctrl+Nothing"}, "Unknown key"),
        ("fill", {"ref": "e3", "text": "x" * 10_001}, "10001 characters"),
        ("select", {"ref": "e3", "options": ["red"]}, "not a <select>"),
    ],
)
async def test_a_wrong_action_is_an_error_for_the_model(
    client: BrowserLikeClient, tool: str, arguments: dict[str, object], error: str
) -> None:
    page = await player(client, "<p>Text</p><input>")
    assert error in await page.do(tool, **arguments)
    assert "textbox" in await page.do("look")


async def test_a_covered_element_is_named_with_what_covers_it(client: BrowserLikeClient) -> None:
    page = await player(client, "<button>Below</button><div id=cover style='position:fixed;inset:0'></div>")
    assert "cover" in await page.click("Below")


async def test_the_number_of_actions_is_limited(client: BrowserLikeClient) -> None:
    page = await player(client, "<a href=/win>win</a>", win="<a href=/win>win</a>")
    for _ in range(12):
        await page.click("win")
    assert "used up" in await page.do("press", keys="a")
    assert (await page.score())["reward"] == 12


async def test_a_rollout_that_never_looks_opens_no_page(client: BrowserLikeClient) -> None:
    seen = await player(client, "<p>Hello</p>")
    assert (await seen.score())["requested"] == ["/"]
    silent = Player(client, seen.row)
    await silent.client.post("/seed_session", json=seen.row)
    assert (await silent.score())["requested"] == []

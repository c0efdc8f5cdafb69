"""Searching and browsing against a server that stands in for Google and the web, and the rule of the box."""

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import ValidationError

from nemo_gym.testing import (
    BrowserLikeClient,
    client_for,
    example_row,
    message,
    response_of,
    rows_of,
    running_servers,
    says,
    server_spec,
    tool_output,
)
from resources_servers.google_search.app import GoogleSearchResourcesServer, GoogleSearchResourcesServerConfig
from resources_servers.google_search.extraction import shortened
from resources_servers.google_search.tests.stand_in import StandIn, stand_in
from resources_servers.google_search.web import is_public, masked
from tests.example_rows import own_rows, row_files
from tests.stacks import scripted_servers

OWN_ROWS, ROWS = own_rows("google_search"), row_files("google_search")
KEY = "AIza secret/key+1"
ROW = example_row(expected_answer="C", task_difficulty_qwen3_32b_avg_8=0.5)


def settings(url: str, **config: Any) -> dict[str, Any]:
    mine = {"google_api_key": KEY, "google_cx": "engine", "search_url": f"{url}/customsearch"}
    return {**mine, "allow_private_addresses": True, **config}


class Setting(NamedTuple):
    environment: BrowserLikeClient
    web: StandIn

    async def search(self, query: Any) -> str:
        answer = await self.environment.post("/search", json={"query": query})
        assert answer.status == 200, answer.text
        assert list(answer.json()) == ["search_results"]
        return str(answer.json()["search_results"])

    async def browse(self, url: str) -> str:
        answer = await self.environment.post("/browse", json={"url": url})
        assert answer.status == 200, answer.text
        assert list(answer.json()) == ["page_content"]
        return str(answer.json()["page_content"])

    async def visit(self, page: str) -> str:
        return await self.browse(f"{self.web.url}/{page}")


@asynccontextmanager
async def online(**config: Any) -> AsyncIterator[Setting]:
    async with stand_in() as web, client_for(GoogleSearchResourcesServer, **settings(web.url, **config)) as client:
        yield Setting(client, web)


async def test_a_search_passes_on_what_the_api_answers() -> None:
    async with online() as setting:
        found = await setting.search("Wo liegt das Café?")
        assert setting.web.asked == [{"key": KEY, "cx": "engine", "q": "Wo liegt das Café?"}]
    assert json.loads(found) == {"items": [{"title": "Café", "link": "http://x"}]}
    assert found.isascii()


FAILED_SEARCH = "Error: Unexpected error - "


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("403", "the search API answered 403 Forbidden"),
        ("429", "the search API answered 429 Too Many Requests"),
        ("500", "the search API answered 500 Internal Server Error"),
        ("302", "the search API answered 302 Found"),
        ("not json", "the search API did not answer with JSON"),
        ("not unicode", "the search API did not answer with JSON"),
        ("deep", "the search API did not answer with JSON"),
        ("large", "the reply has more than 10485760 bytes"),
        ("x" * 10_000, "the query has more than 8000 characters"),
    ],
)
async def test_a_search_that_fails_says_why(query: str, reason: str) -> None:
    async with online() as setting:
        assert await setting.search(query) == FAILED_SEARCH + reason


async def test_a_search_that_is_cut_off_or_late_says_so() -> None:
    async with online() as setting:
        assert (await setting.search("drop")).startswith(FAILED_SEARCH)
    async with online(request_timeout_s=0.3) as setting:
        assert "in time" in (await setting.search("wait")).removeprefix(FAILED_SEARCH)


async def test_a_search_api_that_is_not_there_is_an_error_in_words() -> None:
    async with client_for(GoogleSearchResourcesServer, **settings("http://127.0.0.1:9")) as environment:
        answer = await environment.post("/search", json={"query": "x"})
    assert answer.json()["search_results"].startswith(FAILED_SEARCH)


async def test_the_key_is_in_no_result_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with online() as setting:
            answers = [await setting.search(query) for query in ("echo", "403", "drop", "not json", "302")]
            config = setting.environment.server.config
        async with online(request_timeout_s=0.3) as setting:
            answers.append(await setting.search("wait"))
    assert json.loads(answers[0])["key"] == "***"
    for text in (*answers, caplog.text, repr(config), str(config)):
        assert "AIza" not in text


@pytest.mark.parametrize("text", [KEY, "AIza%20secret%2Fkey%2B1", "AIza+secret%2Fkey%2B1", json.dumps(KEY)])
def test_a_secret_is_masked_in_every_form(text: str) -> None:
    assert masked(f"before {text} after", KEY).replace('"', "") == "before *** after"


async def test_a_page_gives_its_text_without_what_surrounds_it() -> None:
    async with online() as setting:
        text = await setting.visit("article")
        assert "built in 1871" in text
        assert "Menu" not in text
        assert "<p>" not in text
        assert await setting.visit("moved") == text
        assert setting.web.visited == ["article", "moved", "article"]


async def test_of_a_long_page_both_ends_are_given() -> None:
    async with online() as setting:
        text = await setting.visit("long")
    assert len(text) == 10_003
    assert text[5000:5003] == "..."


def test_a_page_is_long_by_its_words_and_cut_by_its_characters() -> None:
    assert shortened("word " * 10_000) == "word " * 10_000
    assert shortened("word " * 10_001) == f"{'word ' * 1000}...{'word ' * 1000}"
    assert shortened("") == "No text found"


NOT_PAGES = {
    "missing": "No HTML found",
    "blank": "No HTML found",
    "loop": "No HTML found",
    "nowhere": "No HTML found",
    "large": "No HTML found",
    "bare": "No text found",
    "binary": "No text found",
    "away": "Error: Unexpected error = expected a URL that starts with http:// or https://",
}


async def test_what_is_no_page_is_reported_and_breaks_nothing() -> None:
    async with online() as setting:
        assert {page: await setting.visit(page) for page in NOT_PAGES} == NOT_PAGES
        await setting.visit("deep")
        assert "1871" in await setting.visit("article")


async def test_a_late_page_is_not_there() -> None:
    async with online(request_timeout_s=0.3) as setting:
        assert await setting.visit("wait") == "No HTML found"


FAILED_PAGE = "Error: Unexpected error = "


@pytest.mark.parametrize("url", ["", "article", "file:///etc/passwd", "http://", "http://[", "http://x:y", "x" * 9000])
async def test_what_is_no_address_is_reported(url: str) -> None:
    async with online() as setting:
        assert (await setting.browse(url)).startswith(FAILED_PAGE)
        assert setting.web.visited == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "0.0.0.0", "[::ffff:127.0.0.1]"])
async def test_a_model_cannot_look_into_the_network_of_the_server(host: str) -> None:
    async with online(allow_private_addresses=False) as setting:
        port = setting.web.url.rpartition(":")[2]
        text = await setting.browse(f"http://{host}:{port}/article")
        assert setting.web.visited == []
    assert text == "No HTML found" or text.endswith("is not on the public internet")


@pytest.mark.parametrize(
    ("address", "is_open"),
    [
        ("8.8.8.8", True),
        ("2001:4860:4860::8888", True),
        *((address, False) for address in ("127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254")),
        *((address, False) for address in ("::1", "fe80::1%eth0", "fc00::1", "::ffff:10.0.0.1", "2002:7f00:1::")),
        *((address, False) for address in ("0.0.0.0", "100.64.0.1", "224.0.0.1", "255.255.255.255", "::")),
        *(
            (address, False)
            for address in ("64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "fec0::1", "::7f00:1", "::ffff:0:7f00:1")
        ),
        *(
            (address, False)
            for address in ("168.63.129.16", "::ffff:168.63.129.16", "64:ff9b::a83f:8110", "192.0.0.192")
        ),
        *((address, False) for address in ("2001:db9::5efe:7f00:1", "2001:db9::200:5efe:a00:1", "2001::1")),
        ("64:ff9b::808:808", True),
    ],
)
def test_public_addresses(address: str, is_open: bool) -> None:
    assert is_public(address) is is_open


@pytest.mark.parametrize("tool", ["search", "browse"])
async def test_a_slow_request_holds_up_nobody(tool: str) -> None:
    async with online() as setting:
        slow = asyncio.create_task(setting.search("wait") if tool == "search" else setting.visit("wait"))
        await asyncio.wait_for(setting.web.waiting.wait(), 30)
        assert "Café" in json.dumps(json.loads(await setting.search("other")), ensure_ascii=False)
        assert not slow.done()
        setting.web.released.set()
        assert await slow


@pytest.mark.parametrize("body", [{}, {"query": None}, {"query": 5}, {"query": ["x"]}, []])
async def test_a_search_needs_a_text(body: Any) -> None:
    async with online() as setting:
        assert (await setting.environment.post("/search", json=body)).status == 422


@pytest.mark.parametrize("missing", ["google_api_key", "google_cx"])
@pytest.mark.parametrize("value", [None, ""])
def test_the_server_does_not_start_without_key_and_engine(missing: str, value: str | None) -> None:
    given: dict[str, Any] = {"name": "test", "host": "", "port": 0, "entrypoint": "app.py", **settings("http://x")}
    given[missing] = value
    with pytest.raises(ValidationError, match=missing):
        GoogleSearchResourcesServerConfig.model_validate(given)


TWO_PARTS = {**message(""), "content": [*message("Hm.")["content"], *message(r"\boxed{C}")["content"]]}
REFUSAL = {**message(""), "content": [{"type": "refusal", "refusal": r"\boxed{C}"}]}


@pytest.mark.parametrize(
    ("response", "option", "reward"),
    [
        (says(r"\boxed{C}"), "C", 1.0),
        (says(r"\\boxed{C}"), "C", 1.0),
        (says(r"\boxed{A} then \boxed{C}"), "C", 1.0),
        (says(r"\boxed{C} then \boxed{A}"), "A", 0.0),
        (says(r"<think>\boxed{C}</think>It is C."), None, 0.0),
        (says(r"<think>\boxed{A}</think>\boxed{C}"), "C", 1.0),
        (says(r"\boxed{ C }"), " C ", 0.0),
        (says(r"\boxed{c}"), "c", 0.0),
        (says(r"\boxed {C}"), "C", 1.0),
        (says(r"\boxed{\boxed{C}}"), "C", 1.0),
        (says(r"\boxed{C} <think>or \boxed{A}"), "C", 1.0),
        (says(r"<think>\boxed{C}"), None, 0.0),
        (says(r"It is not \boxed{C}."), None, 0.0),
        (says(r"\boxed{C} is wrong."), None, 0.0),
        (says(r"\boxed{A}, \boxed{B} or \boxed{C}"), "A, B, C", 0.0),
        (says(r"\boxed{≠C}"), "≠C", 0.0),
        (says(r"\boxed{\text{C}}"), "C", 1.0),
        (says("\\boxed{C\n}"), r"C\n", 0.0),
        (says(r"\boxed{}"), "", 0.0),
        (response_of(TWO_PARTS), "C", 1.0),
        (says(r"\boxed{A}", r"\boxed{C}"), "C", 1.0),
        (says(r"\boxed{C}", "That is all."), None, 0.0),
        (says("C"), None, 0.0),
        (says(r"\boxed{C"), None, 0.0),
        (response_of(), None, 0.0),
        (response_of(message(r"\boxed{C}"), tool_output(r"\boxed{C}")), None, 0.0),
        (response_of(REFUSAL), None, 0.0),
        (response_of({"type": "message", "role": "assistant", "content": r"\boxed{C}"}), None, 0.0),
        (response_of({"type": "message", "role": "user", "content": r"\boxed{C}"}), None, 0.0),
        (says("x" * 1_000_000 + "\\boxed{" * 10_000), None, 0.0),
    ],
)
async def test_the_last_box_of_the_last_item_counts(response: Any, option: str | None, reward: float) -> None:
    async with client_for(GoogleSearchResourcesServer, **settings("http://x")) as environment:
        record = (await environment.post("/verify", json={**ROW, "response": response})).json()
    assert (record["parsed_option"], record["reward"]) == (option, reward)
    assert set(record) == {"responses_create_params", "response", "reward", "parsed_option"}


@pytest.mark.parametrize("expected", ["", " ", "\u200b"])
def test_a_row_without_an_expected_answer_is_refused(expected: str) -> None:
    with pytest.raises(ValueError, match="expected_answer"):
        GoogleSearchResourcesServer.check_row({"expected_answer": expected})


@pytest.mark.parametrize("field", ["expected_answer", "task_difficulty_qwen3_32b_avg_8"])
async def test_every_field_of_a_row_is_required(field: str) -> None:
    row = {name: value for name, value in ROW.items() if name != field}
    async with client_for(GoogleSearchResourcesServer, **settings("http://x")) as environment:
        assert (await environment.post("/verify", json={**row, "response": says("C")})).status == 422


def stack(url: str, replies: list[dict[str, Any]]) -> list[Any]:
    environment = server_spec("google_search", "resources_servers", "google_search", domain="agent", **settings(url))
    return scripted_servers(environment, replies)


def research(url: str) -> list[dict[str, Any]]:
    return [
        {"turn": 0, "call": [{"name": "search", "arguments": {"query": "lighthouse"}}]},
        {"turn": 1, "call": [{"name": "browse", "arguments": {"url": f"{url}/article"}}]},
    ]


@pytest.mark.parametrize("file", ROWS)
async def test_a_model_that_searches_browses_and_answers_is_rewarded(file: Path) -> None:
    rows = rows_of(file)
    answers: list[dict[str, Any]] = [
        {
            "user": re.escape(row["responses_create_params"]["input"]),
            "turn": 2,
            "say": rf"So it is \boxed{{{row['expected_answer']}}}.",
        }
        for row in rows
    ]
    async with stand_in() as web, running_servers(stack(web.url, [*research(web.url), *answers])) as client:
        for row in rows:
            record = await (await client.post("agent", "/run", json=row)).json()
            outputs = [item for item in record["response"]["output"] if item["type"] == "function_call_output"]
            assert "1871" in outputs[1]["output"]
            assert record["reward"] == 1.0
            assert "AIza" not in json.dumps(record)

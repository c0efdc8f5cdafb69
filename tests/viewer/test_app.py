"""The viewer's API over HTTP, as the page and as a stranger use it."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.live import live_folder
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.registry import registered, run_id
from nemo_gym.server.uvicorn_runner import bind, serving
from nemo_gym.viewer.files import Files
from nemo_gym.viewer.server import ASK_TIMEOUT_S, ViewerApp
from tests.jsonl import write_lines
from tests.viewer.sample_files import HOSTILE, hostile_record, math_records, record, write_sample


@asynccontextmanager
async def viewer(*paths: Path, token: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    with (
        closing(bind("127.0.0.1", 0)) as listening,
        Files(paths) as files,
        closing(ViewerApp(files, token=token)) as app,
    ):
        port = listening.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        async with serving({port: app}, [listening]), httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client


async def get(client: httpx.AsyncClient, path: str, **parameters: Any) -> Any:
    reply = await client.get(f"/api/{path}", params=parameters)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_the_page_and_its_modules_are_served_with_a_strict_policy(tmp_path: Path) -> None:
    async with viewer(write_sample(tmp_path)) as client:
        page = await client.get("/")
        assert page.status_code == 200
        policy = page.headers["content-security-policy"]
        for path in ("/main.js", "/style.css", "/thread.js"):
            assert (await client.get(path)).status_code == 200
        assert (await client.get("/../app.py")).status_code == 404
        assert (await client.get("/static/main.js")).status_code == 404
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "<script>" not in page.text


async def test_failures_beside_an_output_come_with_it_also_later(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "run.jsonl", math_records())
    async with viewer(path) as client:
        assert (await get(client, "files"))["files"][0]["failures"] is None
        write_sample(tmp_path)
        (tmp_path / "rollouts_failures.jsonl").rename(tmp_path / "run_failures.jsonl")
        files = (await get(client, "files"))["files"]
        assert (files[0]["failures"], files[1]["name"]) == ("0-failures", "run_failures.jsonl")
        await get(client, "rows", file="0-failures")
        found = await get(client, "failures", file="0-failures")
    assert [(each["cause"], each["code"], each["count"]) for each in found] == [
        ("model", None, 2),
        ("judge", "refused", 1),
    ]


async def test_failures_are_counted_when_all_of_a_file_is_indexed(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "out_failures.jsonl", [{"cause": "model", "message": "overloaded", "is_final": True}] * 1000
    )
    async with viewer(tmp_path / "out_failures.jsonl") as client:
        (found,) = await get(client, "failures", file=0)
    assert found["count"] == 1000


async def test_a_page_has_the_asked_rows_and_columns(tmp_path: Path) -> None:
    async with viewer(write_sample(tmp_path)) as client:
        page = await get(
            client, "rows", file=0, where="reward = 1 and task < 5", sort="-seconds", limit=2, column="verifier.level"
        )
        fields = {each["name"] for each in await get(client, "fields", file=0)}
    assert [(row["task"], row["repeat"], row["fields"]) for row in page["rows"]] == [
        (4, 3, {"verifier.level": 1}),
        (3, 2, {"verifier.level": 0}),
    ]
    assert {"verifier.level", "expected_answer", "response.usage.total_tokens"} <= fields


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/rows?file=7", 404),
        ("/api/rows?file=-1", 404),
        ("/api/rows?file=0&where=reward+%3C", 400),
        ("/api/rows?file=0&sort=%22", 400),
        ("/api/tasks?file=0&sort=reward;drop", 400),
        ("/api/row?file=0&row=999", 404),
        ("/api/raw?file=0&row=0&path=%5B%22nothing%22%5D", 404),
        ("/api/raw?file=0&row=0&path=x", 400),
        ("/api/search?file=0&text=", 400),
        ("/api/compare?file=0&other=0", 400),
        ("/api/compare?file=0", 400),
        ("/api/nothing", 404),
    ],
)
async def test_a_wrong_request_gets_an_error_that_says_why(tmp_path: Path, path: str, status: int) -> None:
    async with viewer(write_lines(tmp_path / "rollouts.jsonl", math_records())) as client:
        reply = await client.get(path)
    assert reply.status_code == status
    assert reply.json()["detail"]


async def test_a_row_comes_with_its_repeats_and_raw_as_plain_text(tmp_path: Path) -> None:
    path = write_sample(tmp_path)
    async with viewer(path) as client:
        found = await get(client, "row", file=0, row=5)
        raw = await client.get("/api/raw", params={"file": 0, "row": 25})
        value = await client.get("/api/raw", params={"file": 0, "row": 25, "path": json.dumps(["expected_answer"])})
    assert [each["id"] for each in found["repeats"]] == [4, 5, 6, 7]
    assert raw.content == path.read_bytes().splitlines(keepends=True)[25]
    assert raw.headers["content-type"] == "text/plain; charset=utf-8"
    assert "sandbox" in raw.headers["content-security-policy"]
    assert value.text == HOSTILE


async def test_search_streams_hits_and_ends_when_the_client_leaves(tmp_path: Path) -> None:
    async with viewer(write_sample(tmp_path)) as client:
        lines = [json.loads(line) for line in (await client.get("/api/search?file=0&text=square")).text.splitlines()]
        async with client.stream("GET", "/api/search?file=0&text=e") as reply:
            assert await anext(reply.aiter_lines())
        await get(client, "files")
    assert [line["hit"]["row"] for line in lines if "hit" in line] == list(range(24))
    assert lines[-1]["progress"]["is_done"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "evil.example"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"host": "localhost"}, 200),
    ],
)
async def test_pages_of_other_sites_cannot_read_anything(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    async with viewer(write_lines(tmp_path / "rollouts.jsonl", [record("one")])) as client:
        for path in ("/api/files", "/api/row?file=0&row=0", "/"):
            assert (await client.get(path, headers=headers)).status_code == status


async def test_with_a_token_only_the_page_without_data_is_open(tmp_path: Path) -> None:
    async with viewer(write_lines(tmp_path / "rollouts.jsonl", [record("one")]), token="secret-token") as client:
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/api/files")).status_code == 401
        assert (await client.post("/api/live/cancel", json={})).status_code == 401
        assert (await client.get("/api/files", headers={"nemo-gym-token": "secret-token"})).status_code == 200


async def test_a_form_of_another_page_cannot_cancel(tmp_path: Path) -> None:
    async with viewer(write_lines(tmp_path / "rollouts.jsonl", [record("one")])) as client:
        reply = await client.post("/api/live/cancel", content=b"{}", headers={"content-type": "text/plain"})
    assert reply.status_code == 415


async def test_many_requests_at_once_while_the_file_is_indexed(tmp_path: Path) -> None:
    async with viewer(write_lines(tmp_path / "rollouts.jsonl", math_records(tasks=500))) as client:
        asked = [get(client, name, file=0) for name in ("rows", "summary", "tasks", "failures", "fields") * 6]
        await asyncio.gather(*asked)
        assert (await get(client, "rows", file=0, sort="-row", limit=1))["total"] > 0


async def test_a_hostile_record_is_cut_and_stays_json(tmp_path: Path) -> None:
    async with viewer(write_lines(tmp_path / "rollouts.jsonl", [hostile_record()])) as client:
        reply = await client.get("/api/row?file=0&row=0")
    assert reply.headers["content-type"] == "application/json"
    assert len(reply.content) < 1_100_000
    assert reply.json()["record"]["response"]["output"][3]["content"][0]["text"]["length"] == 5_000_000


async def test_a_folder_is_a_list_of_the_rollouts_below_it_which_are_opened_when_asked_for(tmp_path: Path) -> None:
    for age, name in enumerate(
        (
            "mcqa/deep/old.jsonl",
            "mcqa/new.jsonl",
            "top.jsonl",
            "mcqa/new_failures.jsonl",
            "top_journal.jsonl",
            ".x/y.jsonl",
        )
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        os.utime(write_lines(tmp_path / name, [record("q")]), (age, age))
    (tmp_path / "notes.txt").touch()
    async with viewer(tmp_path) as client:
        assert (await get(client, "files"))["files"] == []
        runs = (await get(client, "runs"))["runs"]
        opened = (await get(client, "files", open=runs[1]["id"]))["files"]
        assert (await get(client, "rows", file=runs[2]["id"]))["total"] == 1
        assert (await client.get("/api/rows?file=11111111")).status_code == 404
    folders = ("", "/mcqa", "/mcqa/deep")
    assert [run["folder"] for run in runs] == [f"{tmp_path.name}{folder}" for folder in folders]
    assert [Path(each["path"]).name for each in opened] == ["new.jsonl", "new_failures.jsonl"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="has no rollouts"):
        Files([tmp_path / "empty"])


async def test_without_files_the_runs_of_the_registry_are_listed_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEMO_GYM_STATE_DIR", str(tmp_path / "state"))
    metrics = RunningMetrics()
    names = ("a", "b", "c", "gone")
    for luck, name in enumerate(names):
        output = write_lines(tmp_path / f"{name}.jsonl", math_records(luck=luck))
        with registered(output, metrics, total=24, tags=[f"luck-{luck}"], token_prices={}):
            pass
    (tmp_path / "gone.jsonl").unlink()
    ids = {name: run_id(tmp_path / f"{name}.jsonl") for name in names}
    async with viewer() as client:
        runs = (await get(client, "runs"))["runs"]
        assert {run["id"]: run["is_there"] for run in runs} == {ids[name]: name != "gone" for name in names}
        assert [run["tags"] for run in (await get(client, "runs", search="tag:luck-1"))["runs"]] == [["luck-1"]]
        tagged = await client.post("/api/runs/tags", json={"run": ids["a"], "tags": ["best", "best"]})
        assert tagged.json() == {"tags": ["best"]}
        assert (await client.post("/api/runs/tags", json={"run": "1", "tags": []})).status_code == 400
        assert (await client.post("/api/runs/tags", content=b"{}")).status_code == 415
        gone = await client.get("/api/rows", params={"file": ids["gone"]})
        found = await get(client, "compare", file=ids["a"], other=[ids["b"], ids["c"]])
    assert (gone.status_code, "are gone" in gone.json()["detail"]) == (404, True)
    assert found["total"] == 6
    assert [side["change"] > 0 for side in found["sides"]] == [False, True, True]
    assert [len(task["sides"]) for task in found["tasks"]] == [3] * 6


async def test_a_collection_that_does_not_answer_holds_up_neither_the_list_nor_the_live_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection whose code blocks its event loop accepts connections and says nothing."""
    monkeypatch.setenv("NEMO_GYM_STATE_DIR", str(tmp_path / "state"))
    output = write_lines(tmp_path / "a.jsonl", math_records())
    live_folder().mkdir(parents=True)
    with closing(bind("127.0.0.1", 0)) as silent:
        address = {"pid": os.getpid(), "port": silent.getsockname()[1], "token": "secret"}
        (live_folder() / "1-1.json").write_text(json.dumps(address))
        with registered(output, RunningMetrics(), total=24, tags=[], token_prices={}):
            async with viewer() as client, asyncio.timeout(ASK_TIMEOUT_S * 0.9):  # what a whole wait would exceed
                assert [run["state"] for run in (await get(client, "runs"))["runs"]] == ["running"]
                assert await get(client, "live") == {"runs": [], "silent": 1}

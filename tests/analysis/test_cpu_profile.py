"""Profiles: right for code that waits, for threads, and for several servers in one worker."""

import asyncio
import html.parser
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.analysis.cpu_profile import MAX_DEPTH, StackSampler, flame_graph_page
from nemo_gym.errors import ConfigError
from nemo_gym.runtime.stack import Stack, StackSpec
from nemo_gym.testing import server_spec

BUSY = Path(__file__).parent.parent / "servers/resources_servers/busy"


def busy_stack(folder: Path, *names: str, **settings: Any) -> Stack:
    servers = [server_spec(name, "resources_servers", "busy", folder=BUSY, domain="other") for name in names]
    config = {"profiling_enabled": True, "profiling_results_dirpath": str(folder), **settings}
    return Stack(StackSpec(servers, config))


def rows_of(log: bytes) -> dict[str, dict[str, float]]:
    """The metrics of each function."""
    head, *rows = log.decode().splitlines()[4:]
    assert head.split() == ["name", "ncall", "tsub", "ttot", "tavg"]
    found = {}
    for row in filter(None, rows):
        _place, name, *metrics = row.split()
        found[name] = dict(zip(head.split()[1:], map(float, metrics), strict=True))
    return found


async def test_waiting_is_not_computing(tmp_path: Path) -> None:
    async with busy_stack(tmp_path, "one") as stack:
        calls = [stack.client.post("one", "/wait", json={"seconds": 0.2}) for _ in range(5)]
        calls += [stack.client.post("one", "/compute", json={"seconds": 0.1}) for _ in range(2)]
        await asyncio.gather(*calls)
        await stack.client.post("one", "/compute_in_a_thread", json={"seconds": 0.1})
    log = (tmp_path / "BusyResourcesServer___one.log").read_bytes()
    assert log.startswith(b"\nClock type: CPU\nOrdered by: totaltime, desc\n\nname ")
    rows = rows_of(log)
    assert rows["BusyResourcesServer.wait"]["ncall"] == 5
    assert rows["BusyResourcesServer.wait"]["ttot"] < 0.1
    assert rows["BusyResourcesServer.compute"]["ncall"] == 2
    assert rows["BusyResourcesServer.compute"]["ttot"] >= 0.2
    assert rows["BusyResourcesServer.compute"]["tsub"] < 0.1
    assert rows["BusyResourcesServer.compute_in_a_thread"]["ttot"] >= 0.1
    assert all("app.py" in line for line in log.decode().splitlines()[5:] if line)


@pytest.mark.slow
async def test_what_compute_processes_do_is_in_the_log_of_its_server(tmp_path: Path) -> None:
    async with busy_stack(tmp_path, "one", "two") as stack:
        calls = [stack.client.post("one", "/compute_elsewhere", json={"seconds": 0.2}) for _ in range(3)]
        await asyncio.gather(*calls, stack.client.post("two", "/compute_elsewhere", json={"seconds": 0.4}))
    one, two = ((tmp_path / f"BusyResourcesServer___{name}.log").read_text() for name in ("one", "two"))
    found = [re.search(r"^compute \S*use_cpu\(\) +(\d+) +\S+ +([\d.]+)", log, re.MULTILINE) for log in (one, two)]
    assert [int(each[1]) for each in found if each] == [3, 1]
    assert [float(each[2]) >= least for each, least in zip(found, (0.6, 0.4), strict=True) if each] == [True, True]


async def test_the_log_of_a_server_that_nobody_called_says_so(tmp_path: Path) -> None:
    async with busy_stack(tmp_path, "one"):
        pass
    log = (tmp_path / "BusyResourcesServer___one.log").read_text()
    assert log.startswith("\nClock type: CPU\n")
    assert "No function of" in log
    assert "busy/app.py was called" in log


async def test_two_servers_of_one_class_have_logs_of_their_own(tmp_path: Path) -> None:
    async with busy_stack(tmp_path, "one", "two") as stack:
        calls = [stack.client.post("one", "/compute", json={"seconds": 0.05}) for _ in range(3)]
        await asyncio.gather(*calls, stack.client.post("two", "/compute", json={"seconds": 0.2}))
        live = rows_of(stack.apps["one"].pages["/stats"]())
    assert live["BusyResourcesServer.compute"]["ncall"] == 3
    one, two = (rows_of((tmp_path / f"BusyResourcesServer___{name}.log").read_bytes()) for name in ("one", "two"))
    assert (one["BusyResourcesServer.compute"]["ncall"], two["BusyResourcesServer.compute"]["ncall"]) == (3, 1)
    assert two["BusyResourcesServer.compute"]["ttot"] >= 0.2


@pytest.mark.slow
async def test_the_flame_graph_shows_who_used_the_time(tmp_path: Path) -> None:
    async with busy_stack(tmp_path, "one", "two") as stack:
        await asyncio.gather(
            stack.client.post("one", "/compute", json={"seconds": 0.9}),
            stack.client.post("two", "/wait", json={"seconds": 0.2}),
        )
        await stack.client.post("two", "/compute_in_a_thread", json={"seconds": 0.3})
    page = (tmp_path / "worker_0_flame_graph.html").read_text()
    html.parser.HTMLParser().feed(page)
    found = re.search(r"const root = (.*), ms = 5.0;", page)
    assert found is not None
    children = {child["name"]: child for child in orjson.loads(found[1])["children"]}
    assert max(children, key=lambda name: children[name]["samples"]) == "one"
    assert "BusyResourcesServer.compute" in orjson.dumps(children["one"]).decode()
    assert "use_cpu (busy/app.py:" in orjson.dumps(children["one"]).decode()
    assert "compute_in_a_thread" in orjson.dumps(children["(threads)"]).decode()


def test_a_deep_stack_is_cut_at_the_outer_end() -> None:
    def recurse(depth: int) -> None:
        if depth == 0:
            use_cpu()
        else:
            recurse(depth - 1)

    def use_cpu() -> None:
        while not sampler.samples:
            pass

    with StackSampler(lambda: "one", starts_below=[]) as sampler:
        recurse(400)
    page = flame_graph_page("deep", sampler.samples).decode()
    assert "use_cpu" in page
    assert all(len(stack) == MAX_DEPTH for _, stack in sampler.samples)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"profiling_results_dirpath": None}, r"\+profiling_results_dirpath"),
        ({"profiling_enabled": "maybe"}, "profiling_enabled"),
    ],
)
async def test_a_wrong_setting_is_named(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        async with busy_stack(tmp_path, "one", **settings):
            pass


async def test_without_profiling_there_are_no_stats(tmp_path: Path) -> None:
    async with busy_stack(tmp_path / "results", "one", profiling_enabled=False) as stack:
        assert "/stats" not in stack.apps["one"].pages
    assert not (tmp_path / "results").exists()

"""Cost of sandboxes: launches and actions per CPU-second, cold and warm latency, verifying, and 500 alive at once.

    python -m bench.sandbox [--alive 500]

CPU is that of this process and of everything in the sandboxes, counted when they have ended. Latencies are medians;
on a busy machine they are mostly waiting, CPU is not."""

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from nemo_gym.base_resources_server import SimpleResourcesServer
from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.sandbox.local import LocalProvider
from nemo_gym.sandbox.registry import bubblewrap, get_provider_class, landlock
from nemo_gym.testing import client_for, rows_of, says
from resources_servers.code_gen.app import CodeGenResourcesServer
from resources_servers.math_with_code.app import PythonExecutorResourcesServer

LAUNCHES, ACTIONS, VERIFIES = 60, 300, 40


class Cost(NamedTuple):
    what: str
    cpu_ms: float
    median_ms: float

    def line(self) -> str:
        return f"| {self.what} | {1000 / self.cpu_ms:,.0f} | {self.cpu_ms:.2f} | {self.median_ms:.2f} |"


def cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


async def measured(
    what: str, count: int, action: Callable[[], Awaitable[Any]], end: Callable[[], Awaitable[Any]] | None = None
) -> Cost:
    """Measure an action. Usage inside a sandbox counts after `end` has closed it."""
    before, times = cpu_s(), []
    for _ in range(count):
        started = time.perf_counter()
        await action()
        times.append(time.perf_counter() - started)
    if end is not None:
        await end()
    return Cost(what, (cpu_s() - before) / count * 1000, statistics.median(times) * 1000)


async def bare(argv: list[str]) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)  # noqa: ASYNC221 - what is being measured


async def launch_cost(what: str, name: str, *, command: list[str] | None = None, fork_server: bool) -> Cost:
    """Sandboxes one after another. The start of the fork server, about 15 ms, is part of the sum."""
    provider: LocalProvider = get_provider_class(name)(fork_server=fork_server)

    async def launch() -> None:
        sandbox = await provider.open()
        if command:
            await sandbox.exec(command)
        await provider.release(sandbox)

    return await measured(f"{name}: {what}", LAUNCHES, launch, provider.aclose)


async def local_costs(name: str) -> list[Cost]:
    true = ["/bin/true"]
    costs = [
        await launch_cost("launch and end, the first of a provider", name, fork_server=False),
        await launch_cost("launch and end", name, fork_server=True),
        await launch_cost("launch, /bin/true, end", name, command=true, fork_server=True),
    ]
    provider: LocalProvider = get_provider_class(name)(fork_server=False)
    for what, run in {
        "/bin/true, warm": lambda box: box.exec(["/bin/true"]),
        "Python program, warm": lambda box: box.program("pass"),
        "Python session, warm": lambda box: box.python("1 + 1"),
    }.items():
        sandbox = await provider.open(session=True)

        async def act(run: Any = run, sandbox: Any = sandbox) -> None:
            await run(sandbox)

        costs.append(await measured(f"{name}: {what}", ACTIONS, act, provider.aclose))
    return costs


async def request_cost(
    what: str, count: int, server: type[SimpleResourcesServer], path: str, body: Any, **expected: Any
) -> Cost:
    """Measure a request to an environment, with start and usage of its sandboxes until they are closed."""
    async with AsyncExitStack() as stack:
        environment = await stack.enter_async_context(client_for(server))

        async def request() -> None:
            answer = (await environment.post(path, json=body)).json()
            assert answer == answer | expected, answer

        return await measured(f"{server.__module__.split('.')[-2]}: {what}", count, request, stack.aclose)


async def verify_costs() -> list[Cost]:
    programs = rows_of("resources_servers/code_gen/data/example.jsonl")
    program = says("```python\nprint(sum(n for n in map(int, open(0).read().split()[1:]) if n % 2 == 0))\n```")
    sums = rows_of("resources_servers/math_with_code/data/example.jsonl")
    coding, executor = CodeGenResourcesServer, PythonExecutorResourcesServer
    tested, checked = {**programs[0], "response": program}, {**sums[0], "response": says("\\boxed{130}")}
    code = {"code": "sum(range(100))"}
    return [
        await request_cost("verify, three tests", VERIFIES, coding, "/verify", tested, reward=1.0),
        await request_cost("verify, over HTTP", ACTIONS, executor, "/verify", checked, reward=1.0),
        await request_cost("execute_python, over HTTP", ACTIONS, executor, "/execute_python", code),
    ]


async def alive(name: str, count: int) -> str:
    """Keep a number of sandboxes alive, each with a session that answers, and check what remains afterwards."""
    provider: LocalProvider = get_provider_class(name)()
    before = left_over()
    started, used = time.perf_counter(), cpu_s()
    sandboxes = [await provider.open(session=True) for _ in range(count)]
    answers = await asyncio.gather(*(sandbox.python(f"{number} * 2") for number, sandbox in enumerate(sandboxes)))
    right = sum(answer.result == str(number * 2) for number, answer in enumerate(answers))
    await provider.aclose()
    after = left_over()
    left = [now - then for now, then in zip(after, before, strict=True)]
    return (
        f"{name}: {count} alive at once, {right} answered, {time.perf_counter() - started:.1f} s, "
        f"{cpu_s() - used:.1f} s of CPU; left behind: {left[0]} processes, {left[1]} mounts, {left[2]} open files, "
        f"{left[3]} folders"
    )


def left_over() -> tuple[int, int, int, int]:
    processes = len(psutil.Process().children(recursive=True))
    mounts = len(Path("/proc/self/mountinfo").read_text().splitlines())
    folders = len(list(Path("/tmp").glob("nemo-gym-sandbox-*")))  # noqa: S108 - where they would be
    return processes, mounts, len(os.listdir("/proc/self/fd")), folders


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alive", type=int, default=500)
    arguments = parser.parse_args()
    os.chdir(PARENT_DIR)
    names = [one.name for one in (bubblewrap(), landlock()) if one.works]
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs\n")
    print("| what | per CPU-second | CPU ms | median ms |\n| --- | --- | --- | --- |")
    print((await measured("no sandbox: /bin/true", LAUNCHES, lambda: bare(["/bin/true"]))).line())
    for name in names:
        for cost in await local_costs(name):
            print(cost.line(), flush=True)
    for cost in await verify_costs():
        print(cost.line(), flush=True)
    print()
    for name in names:
        print(await alive(name, arguments.alive), flush=True)


if __name__ == "__main__":
    asyncio.run(main())

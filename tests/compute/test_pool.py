"""A pool that is treated badly on purpose: what a function does costs its own task, and nothing else."""

import asyncio
import importlib
import os
import pickle
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from nemo_gym.common.deadline import timeout
from nemo_gym.compute.fork_server import MAX_TASKS
from nemo_gym.compute.pool import LONG_TEXT, MAX_ARGUMENT_BYTES, Compute, ComputeError, LimitExceededError
from nemo_gym.errors import RolloutError
from nemo_gym.runtime.class_loader import load_server_class
from tests import compute_functions as functions
from tests.polling import until

GONE_WITHIN_S = 60.0


@pytest.fixture
async def compute() -> AsyncIterator[Compute]:
    async with Compute(workers=2) as pool:
        yield pool


@pytest.fixture
async def single() -> AsyncIterator[Compute]:
    async with Compute(workers=1) as pool:
        yield pool


async def test_a_function_runs_in_the_main_thread_of_another_process(compute: Compute) -> None:
    assert await compute.run(functions.double, 21, timeout_s=60) == 42
    assert await compute.run(functions.is_main_thread, timeout_s=60)
    assert await compute.run(functions.process_id, timeout_s=60) != os.getpid()


async def test_what_a_function_raises_is_raised_with_its_trace(compute: Compute) -> None:
    with pytest.raises(ValueError, match="no good") as caught:
        await compute.run(functions.fail, "no good", timeout_s=60)
    assert str(caught.value) == "no good"
    assert "in fail" in caught.value.__notes__[0]


@pytest.mark.parametrize("function", [functions.loop_for_ever, functions.ignore_every_signal])
async def test_a_function_that_overruns_is_killed_at_its_limit(single: Compute, function: Callable[[], None]) -> None:
    pid = await single.run(functions.process_id, timeout_s=60)
    with pytest.raises(LimitExceededError, match=r"0\.2 s of CPU time") as caught:
        await single.run(function, timeout_s=0.2)
    assert caught.value.limit == "time"
    assert await single.run(functions.double, 1, timeout_s=60) == 2
    await gone([pid])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the CPU time of a worker is unknown")
async def test_a_machine_that_is_slow_does_not_use_up_the_time_of_a_task(single: Compute) -> None:
    pid = await single.run(functions.process_id, timeout_s=60)
    task = asyncio.create_task(single.run(functions.use_cpu_and_stop, 0.1, timeout_s=0.4))
    worker = psutil.Process(pid)
    while worker.status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110 - other processes set no event of ours
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.8)  # longer than the limit
    assert not task.done()
    worker.resume()
    assert await task == "done"


async def test_a_function_that_only_waits_is_an_error_and_no_limit_of_its_own(single: Compute) -> None:
    with pytest.raises(ComputeError, match=r"0\.3 s of wall-clock time"):
        await single.run(functions.sleep, 60, timeout_s=0.1, wall_timeout_s=0.3)
    assert await single.run(functions.sleep, 0.5, "done", timeout_s=0.1) == "done"


async def test_a_function_that_takes_too_much_memory_is_ended(single: Compute) -> None:
    pid = await single.run(functions.process_id, timeout_s=60)
    with pytest.raises(LimitExceededError, match="more than 2048 MB of memory") as caught:
        await single.run(functions.take_gigabytes, 10, timeout_s=60)
    assert caught.value.limit == "memory"
    assert pickle.loads(pickle.dumps(caught.value)).limit == "memory"
    assert await single.run(functions.process_id, timeout_s=60) != pid


async def test_the_memory_limit_is_a_setting() -> None:
    async with Compute(workers=1, memory_mb=512) as pool:
        with pytest.raises(LimitExceededError, match="more than 512 MB"):
            await pool.run(functions.take_gigabytes, 1, timeout_s=60)


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (functions.leave, (0,), r"leave\(\) did not finish: its worker ended with exit code 0\."),
        (functions.leave, (3,), r"its worker ended with exit code 3\."),
        (functions.die_inside_a_frame, (), "did not finish: its connection was closed"),
        (functions.crash, (), r"its worker ended with signal SIGSEGV\."),
        (functions.exit_politely, (), r"raised SystemExit\('bye'\)"),
        (functions.give_lambda, (), "returned a function, which cannot be pickled"),
        (functions.give_megabytes, (70,), "bytes; the limit is 67108864"),
        (functions.fail_stubbornly, (), "raised an error that cannot be pickled:(?s:.*)StubbornError: one"),
        (functions.double, (lambda: None,), "arguments of .* cannot be pickled"),
        (functions.double, (b"x" * MAX_ARGUMENT_BYTES,), r"arguments of .*double\(\) have \d+ bytes; the limit"),
        (lambda: None, (), "Expected a function at the top level of a module"),
    ],
)
async def test_a_failure_of_the_pool_says_what_happened(
    compute: Compute, function: Callable[..., Any], args: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ComputeError, match=message) as raised:
        await compute.run(function, *args, timeout_s=10)
    assert raised.value.is_retryable is ("did not finish" in str(raised.value))
    assert pickle.loads(pickle.dumps(raised.value)).is_retryable is raised.value.is_retryable
    assert await compute.run(functions.double, 1, timeout_s=60) == 2


async def test_a_task_whose_interpreter_fails_is_run_again_in_a_fresh_one(single: Compute, tmp_path: Path) -> None:
    pid = await single.run(functions.process_id, timeout_s=5)
    assert await single.run(functions.break_interpreter_once, str(tmp_path / "broken"), timeout_s=5) != pid
    with pytest.raises(ComputeError, match="raised SystemError"):
        await single.run(functions.break_interpreter_once, "/nowhere/at/all", timeout_s=5)


async def test_a_module_that_only_the_server_has_is_an_error_of_the_pool(compute: Compute) -> None:
    def nowhere() -> None: ...

    nowhere.__qualname__, nowhere.__module__ = "nowhere", "not_there"
    with pytest.raises(ComputeError, match=r"not_there\.nowhere\(\) .*ModuleNotFoundError"):
        await compute.run(nowhere, timeout_s=60)


async def test_what_a_function_prints_or_reads_goes_nowhere(single: Compute) -> None:
    assert await single.run(functions.print_garbage, timeout_s=60) == "done"
    assert await single.run(functions.read_input, timeout_s=60) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_a_worker_inherits_no_files_of_the_server(single: Compute, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        held = await single.run(functions.open_files, timeout_s=60)
    assert not [name for name in held if "secret" in name]
    assert len([name for name in held if name.startswith("socket:")]) == 1


async def test_every_worker_hashes_alike_so_that_results_do_not_depend_on_the_run() -> None:
    hashes = set()
    for _ in range(2):
        async with Compute(workers=1) as pool:
            hashes.add(await pool.run(functions.hash_row, "a text", timeout_s=60))
    assert len(hashes) == 1


async def test_one_poisoned_task_among_a_hundred_costs_only_itself(compute: Compute) -> None:
    tasks = [
        compute.run(functions.loop_for_ever, timeout_s=0.5)
        if number == 10
        else compute.run(functions.double, number, timeout_s=60)
        for number in range(100)
    ]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results.pop(10), LimitExceededError)
    assert results == [2 * number for number in range(100) if number != 10]


async def test_results_come_in_the_order_of_completion(compute: Compute, tmp_path: Path) -> None:
    slow = asyncio.create_task(compute.run(functions.wait_for_file, str(tmp_path / "go"), timeout_s=60))
    assert await compute.run(functions.double, 2, timeout_s=60) == 4
    assert not slow.done()
    (tmp_path / "go").touch()
    await slow


async def test_waiting_for_a_turn_does_not_count_against_the_limit(single: Compute) -> None:
    first = asyncio.create_task(single.run(functions.sleep, 3, timeout_s=60))
    await asyncio.sleep(0)
    assert await single.run(functions.double, 1, timeout_s=2) == 2
    await first


async def test_waiting_for_a_turn_counts_against_the_deadline(single: Compute, tmp_path: Path) -> None:
    first = asyncio.create_task(single.run(functions.wait_for_file, str(tmp_path / "go"), timeout_s=60))
    await asyncio.sleep(0)
    with pytest.raises(RolloutError) as caught:
        async with timeout(0.1, what="The rollout"):
            await single.run(functions.double, 1, timeout_s=60)
    assert caught.value.cause == "timeout"
    (tmp_path / "go").touch()
    await first


async def test_a_deadline_ends_a_running_function_too(single: Compute) -> None:
    pid = await single.run(functions.process_id, timeout_s=60)
    with pytest.raises(RolloutError) as caught:
        async with timeout(0.1, what="The rollout"):
            await single.run(functions.loop_for_ever, timeout_s=60)
    assert caught.value.cause == "timeout"
    await gone([pid])


async def test_cancelling_kills_what_runs_and_leaves_the_rest(single: Compute, tmp_path: Path) -> None:
    pid = await single.run(functions.process_id, timeout_s=60)
    running = asyncio.create_task(single.run(functions.touch_and_loop, str(tmp_path / "started"), timeout_s=60))
    queued = asyncio.create_task(single.run(functions.double, 3, timeout_s=60))
    given_up = asyncio.create_task(single.run(functions.double, 4, timeout_s=60))
    await until((tmp_path / "started").exists)
    for task in (given_up, running):
        task.cancel()
    assert await queued == 6
    assert running.cancelled()
    assert given_up.cancelled()
    await gone([pid])


async def test_an_answer_that_came_in_time_counts_though_the_loop_looked_too_late(
    single: Compute, tmp_path: Path
) -> None:
    started, limit_s = tmp_path / "started", 2.0
    task = asyncio.create_task(
        single.run(functions.touch_and_sleep, str(started), 0.2, timeout_s=limit_s, wall_timeout_s=limit_s)
    )
    await until(started.exists)
    time.sleep(limit_s + 0.5)  # noqa: ASYNC251 - a handler that blocks the loop
    await task
    assert task.exception() is None


async def test_a_worker_that_died_while_idle_is_replaced_unnoticed(single: Compute) -> None:
    pid = await single.run(functions.process_id, timeout_s=60)
    os.kill(pid, signal.SIGKILL)
    assert await single.run(functions.process_id, timeout_s=60) != pid


async def test_the_loss_of_the_process_that_starts_workers_is_mended(single: Compute) -> None:
    pid = await single.run(functions.process_id, timeout_s=60)
    os.kill(psutil.Process(pid).ppid(), signal.SIGKILL)
    await gone([pid])
    assert await single.run(functions.double, 2, timeout_s=60) == 4


async def test_after_many_tasks_a_worker_makes_room_for_a_fresh_one(single: Compute) -> None:
    pids = [await single.run(functions.process_id, timeout_s=60) for _ in range(MAX_TASKS + 1)]
    assert len(set(pids)) == 2


async def test_a_slow_import_is_not_timed(single: Compute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(2.5)")
    monkeypatch.syspath_prepend(str(tmp_path))
    single.warm("slow_to_import")
    assert await single.run(functions.import_module, "slow_to_import", timeout_s=2) == "slow_to_import"


async def test_a_module_is_warmed_up_once_before_any_worker_runs_its_functions(
    compute: Compute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import time\n\nwarm = []\n\n\ndef warm_up():\n    time.sleep(2.5)\n    warm.append(1)\n\n\n"
    (tmp_path / "warmed_up.py").write_text(source + "def warmth():\n    return len(warm)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    warmth = importlib.import_module("warmed_up").warmth
    assert await compute.run(functions.double, 1, timeout_s=60) == 2, "a worker is there before the module is known"
    assert await asyncio.gather(*(compute.run(warmth, timeout_s=2) for _ in range(8))) == [1] * 8


async def test_modules_of_a_server_folder_find_their_siblings(single: Compute, tmp_path: Path) -> None:
    folder = tmp_path / f"resources_servers/siblings_{uuid4().hex}"
    folder.mkdir(parents=True)
    (folder / "helpers.py").write_text("WORD = 'sibling'")
    (folder / "engine.py").write_text("from helpers import WORD\n\n\ndef word() -> str:\n    return WORD\n")
    (folder / "app.py").write_text(
        "from engine import word\nfrom nemo_gym.base_resources_server import SimpleResourcesServer\n\n\n"
        "class Server(SimpleResourcesServer):\n    work = staticmethod(word)\n"
    )
    kind = load_server_class("resources_servers", folder, "app.py")
    work: Callable[[], str] = kind.work  # type: ignore[attr-defined]
    assert await single.run(work, timeout_s=60) == "sibling"


async def test_closing_ends_every_process_and_what_still_runs(tmp_path: Path) -> None:
    async with Compute(workers=2) as pool:
        pid = await pool.run(functions.process_id, timeout_s=60)
        nursery = psutil.Process(pid).ppid()
        running = asyncio.create_task(pool.run(functions.touch_and_loop, str(tmp_path / "started"), timeout_s=60))
        await until((tmp_path / "started").exists)
    with pytest.raises(ComputeError):
        await running
    await gone([pid, nursery])
    with pytest.raises(ComputeError, match="closed"):
        await pool.run(functions.double, 1, timeout_s=60)


ORPHANS = """
import asyncio
from nemo_gym.compute.pool import Compute
from tests import compute_functions as functions

async def main():
    pool = Compute(workers=2)
    print(await pool.run(functions.process_id, timeout_s=60), flush=True)
    await asyncio.gather(pool.run(functions.ignore_every_signal, timeout_s=60), tell(pool))

async def tell(pool):
    print(await pool.run(functions.process_id, timeout_s=60), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only idle workers notice")
async def test_a_server_that_is_killed_leaves_no_worker_behind() -> None:
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ORPHANS, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parent.parent.parent
    )
    assert server.stdout is not None
    workers = [int(await server.stdout.readline()) for _ in range(2)]
    nursery = psutil.Process(workers[0]).ppid()
    assert nursery in [child.pid for child in psutil.Process(server.pid).children()]
    server.kill()
    await server.wait()
    await gone([nursery, *workers])


async def gone(pids: list[int]) -> None:
    """Wait until none of the processes runs any more."""
    async with asyncio.timeout(GONE_WITHIN_S):
        for pid in pids:
            while is_running(pid):  # noqa: ASYNC110 - other processes set no event of ours
                await asyncio.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_function_that_overruns_gives_on_limit_and_other_errors_are_raised(single: Compute) -> None:
    assert await single.run(functions.loop_for_ever, timeout_s=0.2, on_limit="late") == "late"
    assert await single.run(functions.double, 21, timeout_s=60, on_limit=None) == 42
    with pytest.raises(ValueError, match="no good"):
        await single.run(functions.fail, "no good", timeout_s=60, on_limit=None)


async def test_only_a_long_text_is_read_in_another_process(single: Compute) -> None:
    here = await single.run_if_long(functions.process_id_for, "a" * LONG_TEXT, timeout_s=60, on_limit=None)
    other = await single.run_if_long(functions.process_id_for, "a" * (LONG_TEXT + 1), timeout_s=60, on_limit=None)
    assert here == os.getpid()
    assert other not in (None, os.getpid())

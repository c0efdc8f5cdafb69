"""A loop ends when its work is done, whatever its threads still do."""

import asyncio
import subprocess
import sys
import threading

import pytest

from nemo_gym.common import event_loop
from tests.polling import until_sync

HANGING = """
import asyncio, time
from nemo_gym.common import event_loop

async def main():
    try:
        await asyncio.wait_for(asyncio.to_thread(time.sleep, 600), 0.1)
    except TimeoutError:
        print("over", flush=True)

event_loop.run(main())
"""


def test_a_thread_that_hangs_holds_up_neither_the_loop_nor_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "over\n"


HANGING_ALL = """
import asyncio, os, time
from nemo_gym.common import event_loop
event_loop.MAX_THREADS = 2

async def main():
    waiting = [asyncio.create_task(asyncio.to_thread(time.sleep, 600)) for _ in range(3)]
    await asyncio.sleep(0.1)
    for _ in range(3):
        next_one = asyncio.create_task(asyncio.to_thread(os.write, 1, b"next\\n"))
        await asyncio.sleep(0)
        waiting.pop(0).cancel()
        waiting.append(next_one)
    await asyncio.wait_for(asyncio.gather(*waiting), 60)

event_loop.run(main())
"""


def test_a_thread_that_hangs_after_its_task_was_cancelled_takes_no_place() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING_ALL], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.returncode) == ("next\n" * 3, 0), done.stderr


IGNORING = """
import asyncio
from nemo_gym.common import event_loop
event_loop.END_GRACE_S = 0.1

async def ignore():
    while True:
        try:
            await asyncio.sleep(600)
        except BaseException:
            continue

async def main():
    task = asyncio.create_task(ignore())
    await asyncio.sleep(0)
    print("over", flush=True)

event_loop.run(main())
"""


def test_a_task_that_ignores_its_cancellation_holds_up_neither_the_loop_nor_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", IGNORING], capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.returncode) == ("over\n", 0)
    assert "ignores its cancellation" in done.stderr


def test_threads_are_used_again_give_results_and_errors_and_end_with_the_loop() -> None:
    def fail() -> None:
        raise LookupError("nothing there")

    async def main() -> list[int]:
        found = [await asyncio.to_thread(threading.get_ident) for _ in range(50)]
        with pytest.raises(LookupError):
            await asyncio.to_thread(fail)
        side_by_side = threading.Barrier(4)
        await asyncio.gather(*(asyncio.to_thread(side_by_side.wait, 60) for _ in range(4)))
        await asyncio.gather(*(asyncio.to_thread(threading.get_ident) for _ in range(500)))
        return found

    before = set(threading.enumerate())
    assert len(set(event_loop.run_embedded(main()))) <= 2
    until_sync(lambda: not set(threading.enumerate()) - before)

"""A worker that dies is started again, whenever it dies."""

import asyncio
import time
from pathlib import Path

from nemo_gym.client.head import WorkerAddress
from nemo_gym.common import event_loop
from nemo_gym.runtime.launcher import WorkerProcess
from nemo_gym.runtime.stack import READY, StackSpec
from tests.polling import until

PROGRAM = """#!/bin/sh
cd "$(dirname "$0")"
echo started >> starts
case $(wc -l < starts) in
1) echo "READY"; exit 1 ;;  # it was ready once, so that it is started again
2) exit 1 ;;
*) echo "READY"; cat > /dev/null ;;
esac
"""


def test_a_worker_that_dies_before_it_has_read_what_to_do_is_started_again(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(PROGRAM.replace("READY", READY))
    program.chmod(0o755)

    async def take_long_turns() -> None:
        """So that a process which ends at once has ended before the loop comes to write to it."""
        while True:
            time.sleep(0.1)  # noqa: ASYNC251
            await asyncio.sleep(0)

    async def watch() -> None:
        address = WorkerAddress(0, "http://127.0.0.1:1", "127.0.0.1:1", ("server",))
        worker = WorkerProcess("worker", StackSpec([]), address, python=str(program), echo=print)
        turning, watching = asyncio.create_task(take_long_turns()), asyncio.create_task(worker.watch())
        await until(lambda: watching.done() or (worker.ready.is_set() and starts() == 3))
        turning.cancel()
        await worker.stop()
        await watching

    def starts() -> int:
        return len((tmp_path / "starts").read_text().splitlines()) if (tmp_path / "starts").exists() else 0

    event_loop.run_embedded(watch())
    assert starts() == 3

"""What the capacity simulator says of the processes that it watches."""

import subprocess
import sys
import threading

from nemo_gym.bench.processes import Watcher
from tests.polling import until_sync


def test_cpu_use_counts_from_when_the_work_has_begun() -> None:
    begun, asked = threading.Event(), []

    def has_begun() -> bool:
        asked.append(begun.is_set())
        return begun.is_set()

    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with Watcher(lambda: [busy.pid], has_begun) as watched:
            until_sync(lambda: len(asked) > 3)
            assert watched.usage.memory_mb > 0
            assert watched.usage.busiest_process == watched.usage.cores == 0
            begun.set()
            until_sync(lambda: watched.usage.busiest_process > 0)
            assert watched.usage.cores > 0
    finally:
        busy.kill()
        busy.wait()

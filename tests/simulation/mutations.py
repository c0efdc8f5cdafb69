"""`python -m tests.simulation.mutations`: plant one defect after another in a copy of the product, and count which of
them the simulator finds.

Each mutant is a text of a module that is replaced. It must occur there exactly once: a change of the code that leaves
a mutant without its text is an error here."""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent


class Mutant(NamedTuple):
    """A defect to plant."""

    name: str
    module: str
    """Its path below `nemo_gym`."""
    old: str
    new: str


MUTANTS = (
    Mutant("no fsync of the output", "rollouts/store.py", "os.fsync(self._fd)", "pass"),
    Mutant("a short write is taken for a whole one", "rollouts/store.py", "while written < len(left):", "if left:"),
    Mutant(
        "half a line is not cut off before others are appended",
        "rollouts/store.py",
        "            os.ftruncate(self._fd, self._end)\n\n    def append",
        "            self._end = os.fstat(self._fd).st_size\n\n    def append",
    ),
    Mutant(
        "rollouts are reported before they are written",
        "rollouts/store.py",
        """            await asyncio.get_running_loop().run_in_executor(self._disk, self._write, scored, lines, failed)
            for outcome in outcomes:
                self._on_written(outcome)
""",
        """            for outcome in outcomes:
                self._on_written(outcome)
            await asyncio.get_running_loop().run_in_executor(self._disk, self._write, scored, lines, failed)
""",
    ),
    Mutant("the end of the output does not move", "rollouts/store.py", "        self._end += written\n", ""),
    Mutant(
        "what waits for the disk at the end is not written",
        "rollouts/store.py",
        "while self._queued or not self._is_closing:",
        "while not self._is_closing:",
    ),
    Mutant(
        "the length of a line on disk is off by one",
        "rollouts/store.py",
        "return end - step + newline + 1",
        "return end - step + newline",
    ),
    Mutant(
        "a change of the output by others is not noticed",
        "rollouts/store.py",
        "        if size != self._end:",
        "        if size < 0:",
    ),
    Mutant(
        "a resumed run looks at the first repeat of a row only",
        "rollouts/dataset.py",
        "not done.contains((task_index, repeat, row_hash))",
        "not done.contains((task_index, 0, row_hash))",
    ),
    Mutant(
        "a failed rollout keeps its place in the window",
        "rollouts/collector.py",
        "            if not rollout.is_abandoned:\n                limiter.leave",
        "            if not rollout.is_abandoned and scored:\n                limiter.leave",
    ),
    Mutant(
        "rows that wait for a place are not woken", "rollouts/collector.py", "            self._has_room.set()", ""
    ),
    Mutant(
        "one attempt too many",
        "rollouts/attempts.py",
        "charged == max_attempts",
        "charged == max_attempts + 1",
    ),
    Mutant(
        "a row is charged for the death of its worker",
        "rollouts/attempts.py",
        "charged += not is_outage and not is_lost",
        "charged += not is_outage",
    ),
    Mutant(
        "an attempt that is repeated counts as the last one",
        "rollouts/attempts.py",
        "throttled, outcome.is_final = outcome.throttled, False",
        "throttled = outcome.throttled",
    ),
    Mutant(
        "a request that had an effect is sent again",
        "common/retry.py",
        "return isinstance(error, ConnectError | OverloadedError)",
        "return isinstance(error, UpstreamError)",
    ),
    Mutant(
        "the rows of a worker that died are forgotten",
        "rollouts/dispatch.py",
        "        lost, self.requests = self.requests, {}",
        "        lost, self.requests = {}, {}",
    ),
    Mutant(
        "a worker's frames do not renew its lease",
        "rollouts/dispatch.py",
        "            return\n        self._last_frame_at = lease_time()",
        "            return",
    ),
    Mutant(
        "a group stays with a worker that is not ready",
        "rollouts/dispatch.py",
        "is_usable = link is not None and link.is_ready and",
        "is_usable = link is not None and",
    ),
    Mutant(
        "rows that wait are not woken when a worker is ready",
        "rollouts/dispatch.py",
        "                self.answered.set()\n                self._on_change(self)\n            case [Kind.PONG]",
        "                self.answered.set()\n            case [Kind.PONG]",
    ),
    Mutant(
        "leases count the time in which the judge was frozen",
        "common/deadline.py",
        "min(self._clock() - self._ticked_at, MAX_GAP_S)",
        "(self._clock() - self._ticked_at)",
    ),
    Mutant(
        "a frame is read twice",
        "rollouts/worker_protocol.py",
        "            del self._received[:start]",
        "            pass",
    ),
    Mutant(
        "half a frame is dropped",
        "rollouts/worker_protocol.py",
        "            self._received += data[start:]",
        "            pass",
    ),
    Mutant(
        "a session that was lost is born again",
        "server/session.py",
        """        if session is None:
            raise self._refusal(token or "")
""",
        """        if session is None:
            session = self._new()
""",
    ),
    Mutant(
        "a session is closed twice",
        "server/session.py",
        "session = self._sessions.pop(token, None)\n        if session is not None:",
        "session = self._sessions.get(token, None)\n        if session is not None:",
    ),
    Mutant(
        "all rollouts share one session",
        "server/session.py",
        "        session_id = str(uuid4())\n",
        '        session_id = "1"\n'
        '        found = self._sessions.get(self.sign(f"{self.worker}.{self._incarnation}.1"))\n'
        "        if found is not None:\n            return found\n",
    ),
    Mutant(
        "calls are not logged",
        "rollouts/call_log.py",
        "        if stored is None or (stored.status, stored.reply) != (reply.status, text):",
        "        if False:",
    ),
    Mutant(
        "a killed command does not go on with its journal",
        "rollouts/call_log.py",
        "goes_on = attempts and",
        "goes_on = False and",
    ),
    Mutant(
        "calls are looked for at the wrong place of the journal",
        "rollouts/call_log.py",
        """            attempt.offsets.append(self._file.end)
            self._add(line)
""",
        """            self._add(line)
            attempt.offsets.append(self._file.end)
""",
    ),
    Mutant(
        "a failed attempt is not marked as ended in the journal",
        "rollouts/call_log.py",
        "                is_played = outcome.error is None or outcome.error.code == GROUP_VERIFICATION\n",
        "                is_played = outcome.error is None or outcome.error.code == GROUP_VERIFICATION\n"
        "                if not is_played:\n                    return outcome\n",
    ),
    Mutant(
        "unread bytes become the next reply",
        "client/connection.py",
        "            self.close()\n            self._owner.on_unsolicited()\n            self._headers",
        "            self._headers",
    ),
    Mutant(
        "a connection without a reply is used again",
        "client/connection.py",
        """        if not has_replied:
            self.close()
        return has_replied and self.is_open
""",
        """        return self.is_open
""",
    ),
    Mutant(
        "deadlines of half a minute and more never come",
        "common/deadline.py",
        "for second, slot in self.slots.items() if second <= now or not slot]",
        "for second, slot in self.slots.items() if not slot]",
    ),
    Mutant(
        "rows that lost many processes do not take turns",
        "rollouts/process_losses.py",
        "            self._in_flight.pop(id(losses), None)\n            self._start_waiting()\n",
        "            self._in_flight.pop(id(losses), None)\n",
    ),
    Mutant(
        "an aborted rollout that goes on gets a new place in the journal",
        "training/session.py",
        "if before is not None and before[1] == digest and before in self._unfinished:",
        "if False:",
    ),
    Mutant(
        "a group is scored before its last rollout has ended",
        "rollouts/group_verification.py",
        "        if left == 0:\n",
        "        if left <= 1 and task_index in self._played:\n            self._left[task_index] = 1\n",
    ),
)


def plant(mutant: Mutant, folder: Path) -> None:
    """Make a copy of the package with the defect."""
    shutil.copytree(ROOT / "nemo_gym", folder / "nemo_gym", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("resources_servers", "responses_api_agents", "responses_api_models", "tests"):
        (folder / name).symlink_to(ROOT / name)
    path = folder / "nemo_gym" / mutant.module
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(
            f"'{mutant.name}': {mutant.module} has its text {text.count(mutant.old)} times, expected once"
        )
    path.write_text(text.replace(mutant.old, mutant.new))


def seed_that_finds(mutant: Mutant, seeds: int) -> tuple[int | None, str]:
    """The first seed whose invariants the defect breaks, and what it breaks."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        plant(mutant, Path(folder))
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-m", "tests.simulation", "--seeds", str(seeds)]
        ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"^seed (\d+) breaks an invariant: (.*)", ran.stdout, re.MULTILINE)
    if found is None:
        if "broken: none" not in ran.stdout:
            raise SystemExit(f"'{mutant.name}' keeps the simulator from running: {ran.stderr}")
        return None, ""
    return int(found[1]), found[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--only", default="", help="Mutants with this text in their name.")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.only in mutant.name]
    started, found = time.time(), 0
    with concurrent.futures.ThreadPoolExecutor(options.parallel) as threads:
        results = threads.map(lambda mutant: seed_that_finds(mutant, options.seeds), chosen)
        for mutant, (seed, what) in zip(chosen, results, strict=True):
            found += seed is not None
            print(f"| {mutant.name} | `{mutant.module}` | {seed or 'not found'} | {what[:160]} |", flush=True)
    print(f"{found} of {len(chosen)} found within {options.seeds} seeds, in {time.time() - started:.0f} s")


if __name__ == "__main__":
    main()

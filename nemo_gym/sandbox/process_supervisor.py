"""Run a command, and end all its descendants with it: a script for Linux, uploaded into sandboxes by itself.

`process_supervisor.py --timeout S --receipt FILE [--cleanup-timeout S] [--stop-file FILE] -- COMMAND` writes
`{cleanup_confirmed, return_code, error, timed_out}` to the receipt. It needs no packages."""

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DEFAULT_CLEANUP_TIMEOUT = 10
PAUSE_S = 0.05
MARGIN_S = 30
PR_SET_CHILD_SUBREAPER = 36


def exec_timeout(timeout, cleanup_timeout=DEFAULT_CLEANUP_TIMEOUT):  # type: ignore[no-untyped-def]
    """Return how long a sandbox has to wait for the script."""
    return timeout + 3 * cleanup_timeout + MARGIN_S


def _descendants() -> list[int]:
    """Return the processes below this one. Orphans among them belong to it, as it is their subreaper."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
    found: list[int] = []
    level = {os.getpid()}
    while level:
        level = {process for process, parent in parents.items() if parent in level}
        found += level
    return found


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def _end_all(timeout_s: float) -> bool:
    """End all descendants, first gently. True if none is left."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            _reap()
            alive = _descendants()
            if not alive:
                return True
            for process in alive:
                try:
                    os.kill(process, number)
                except ProcessLookupError:
                    continue
            time.sleep(PAUSE_S)
    _reap()
    return not _descendants()


def _wait(process: "subprocess.Popen[bytes]", timeout_s: float, stop_file: "Path | None") -> bool:
    """Wait for the command. True if its time is over."""
    until = time.monotonic() + timeout_s
    while process.poll() is None:
        if stop_file is not None and stop_file.exists():
            return False
        if time.monotonic() >= until:
            return True
        time.sleep(PAUSE_S)
    return False


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--cleanup-timeout", type=float, default=DEFAULT_CLEANUP_TIMEOUT)
    parser.add_argument("--receipt", type=Path, required=True)
    parser.add_argument("--stop-file", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    timed_out, error, code = False, None, None
    try:
        process = subprocess.Popen(command, start_new_session=True)
        timed_out = _wait(process, options.timeout, options.stop_file)
        code = process.poll()
    except OSError as problem:
        error = str(problem)
    confirmed = _end_all(options.cleanup_timeout)
    receipt = {"cleanup_confirmed": confirmed, "return_code": code, "error": error, "timed_out": timed_out}
    options.receipt.write_text(json.dumps(receipt))
    return code if code is not None and code >= 0 else 1


if __name__ == "__main__":
    sys.exit(main())

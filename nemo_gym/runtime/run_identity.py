"""Which process a run is, so that `ng_stop` signals that process and no other.

A process id alone proves nothing: it may have been reused, or the head server may run on another machine or in another
container. So all that a run reports about itself must match what the operating system says about the process here.
"""

import hashlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from nemo_gym.errors import GymError

_ENDED_STATES = frozenset(("Z", "X", "x"))
"""Of a process in Linux: a zombie, or dead."""


def run_identity(pid: int | None = None) -> dict[str, Any]:
    """What identifies a process of this machine, by default this one. Raises OSError if there is no such process."""
    pid = pid or os.getpid()
    return {"pid": pid, "machine": _machine(), **_process(pid)}


def check_run_identity(reported: dict[str, Any]) -> int:
    """The process id that a run reports, if the process here with that id is the run and belongs to this user."""
    pid = reported.get("pid")
    if not isinstance(pid, int) or pid < 2:
        raise GymError(f"The head server reports the process id {pid!r}, which cannot be a run.")
    try:
        found = run_identity(pid)
    except OSError as error:
        raise GymError(f"The run's process {pid} is not a process of this machine. Nothing was signalled.") from error
    differences = _differences(reported, found)
    if found["user"] != os.getuid():
        differences.append("owner")
    if differences:
        raise GymError(
            f"Process {pid} of this machine is not the run at this address: {', '.join(differences)} differ. Nothing "
            "was signalled. Stop the run on its own machine, as its own user."
        )
    return pid


def is_running(reported: dict[str, Any]) -> bool:
    """True until the process of a run has ended. A zombie has ended, though it still has its id."""
    try:
        return not _differences(reported, run_identity(reported["pid"]))
    except OSError:
        return False


def _differences(reported: dict[str, Any], found: dict[str, Any]) -> list[str]:
    return [name for name, value in found.items() if reported.get(name) != value]


def _process(pid: int) -> dict[str, Any]:
    """Start time, command line (as a hash: it may hold secrets) and user of a process."""
    if platform.system() == "Linux":
        place = Path(f"/proc/{pid}")
        state, *fields = place.joinpath("stat").read_text().rpartition(")")[2].split()
        if state in _ENDED_STATES:
            raise ProcessLookupError(pid)
        start_time = fields[18]
        command, user = place.joinpath("cmdline").read_bytes(), place.stat().st_uid
    else:
        asked = ["ps", "-p", str(pid), "-o"]
        start_time, uid, line = (
            subprocess.run([*asked, f"{column}="], capture_output=True, text=True, check=False).stdout.strip()
            for column in ("lstart", "uid", "command")
        )
        if not uid:
            raise ProcessLookupError(pid)
        command, user = line.encode(), int(uid)
    return {"start_time": start_time, "command": hashlib.sha256(command).hexdigest()[:16], "user": user}


def _machine() -> str:
    """This machine since it was started, and its process-id namespace: every container has its own."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return platform.node()

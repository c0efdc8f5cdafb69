"""The virtual disk: real files in a folder in memory, whose writes are slow, fail, are torn, or are lost when the
power fails before they are synced."""

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.world import Killed

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

real_open, real_close, real_pwrite, real_fsync = os.open, os.close, os.pwrite, os.fsync
real_ftruncate, real_fstat = os.ftruncate, os.fstat
BLOCK = 512


@dataclass
class File:
    """An open file."""

    path: str
    process: "Process"
    synced: int
    """How many of its bytes survive a power failure."""


class Disk:
    """What a write does."""

    def __init__(self, world: "World", root: str) -> None:
        self.world, self.root = world, root
        self.open: dict[int, File] = {}
        self.slow_until, self.slowness = 0.0, 1.0
        self.full_until = 0.0
        self.kill_next: str | None = None
        """The process to kill in the middle of its next write or sync."""
        self.refused: set[str] = set()
        """Files that could not be written."""
        self.short_rate = 0.0
        self.synced: dict[str, int] = {}
        """The synced length of files, by path."""

    def delay_s(self, _process: "Process") -> float:
        delay = self.world.random.uniform(0.00005, 0.005)
        return delay * self.slowness if self.world.now < self.slow_until else delay

    def close_all(self, process: "Process") -> None:
        for number in sorted(process.descriptors):
            self.open.pop(number, None)
            real_close(number)
        process.descriptors.clear()

    def _file(self, number: int) -> File | None:
        file = self.open.get(number)
        if file is not None and (file.process.dies_of or not file.process.is_alive):
            raise Killed
        return file

    def _kill(self, process: "Process", when: str) -> None:
        self.kill_next, process.dies_of = None, when
        raise Killed

    def fail_power(self) -> None:
        """Lose what was not synced: all of it, some, or blocks in its middle."""
        drawn = self.world.random
        for path, synced in self.synced.items():
            try:
                size = os.stat(path).st_size
            except OSError:
                continue
            if size <= synced:
                continue
            kept = drawn.choice((synced, size, drawn.randint(synced, size)))
            os.truncate(path, kept)
            if kept > synced and drawn.random() < 0.3:
                at = drawn.randrange(synced, kept)
                end = min(kept, (at // BLOCK + 1) * BLOCK)
                with open(path, "r+b") as file:
                    file.seek(at)
                    file.write(bytes(end - at))
            self.world.say(f"{os.path.basename(path)} had {size} bytes, {synced} synced; {kept} survive", "disk")
            self.synced[path] = kept

    # In the place of the functions of `os`

    def os_open(self, path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        number = real_open(path, flags, mode, **options)
        process, name = self.world.running, os.fspath(path)
        is_ours = isinstance(name, str) and name.startswith(self.root) and flags & os.O_RDWR
        if process is not None and is_ours:
            process.descriptors.add(number)
            self.open[number] = File(name, process, 0)
            self.synced.setdefault(name, real_fstat(number).st_size)
        return number

    def os_close(self, number: int) -> None:
        file = self.open.pop(number, None)
        if file is not None:
            file.process.descriptors.discard(number)
        real_close(number)

    def os_pwrite(self, number: int, data: Any, offset: int) -> int:
        file = self._file(number)
        if file is None:
            return real_pwrite(number, data, offset)
        drawn, size = self.world.random, len(data)
        if self.kill_next == file.process.name and drawn.random() < 0.5:
            real_pwrite(number, data[: drawn.randrange(size + 1)], offset)
            self._kill(file.process, f"in a write to {os.path.basename(file.path)}")
        if self.world.now < self.full_until:
            kept = drawn.randrange(size + 1)
            if kept and drawn.random() < 0.5:
                return real_pwrite(number, data[:kept], offset)
            self.refused.add(file.path)
            raise OSError(errno.ENOSPC, "No space left on device")
        if size > 1 and self.short_rate and drawn.random() < self.short_rate:
            return real_pwrite(number, data[: drawn.randrange(1, size)], offset)
        return real_pwrite(number, data, offset)

    def os_fsync(self, number: int) -> None:
        file = self._file(number)
        if file is None:
            return  # a part of an atomic write
        if self.kill_next == file.process.name:
            self._kill(file.process, f"before {os.path.basename(file.path)} was synced")
        self.synced[file.path] = real_fstat(number).st_size

    def os_ftruncate(self, number: int, length: int) -> None:
        file = self._file(number)
        real_ftruncate(number, length)
        if file is not None:
            self.synced[file.path] = min(self.synced.get(file.path, 0), length)

    def os_fstat(self, number: int) -> Any:
        if number >= 1_000_000:
            return os.stat_result((0, number, 0, 0, 0, 0, 0, 0, 0, 0))
        return real_fstat(number)

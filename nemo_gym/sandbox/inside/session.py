"""The stateful interpreter, as the agent sees it. Its process runs code of the model's, which can write anything to
the socket, or nothing: the agent never waits for it."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import select
import time

from nemo_gym.sandbox.inside.frames import NO_LIMIT, OVERHEAD_BYTES, max_report_bytes
from nemo_gym.sandbox.inside.jobs import run_child
from nemo_gym.sandbox.inside.programs import Session
from nemo_gym.sandbox.inside.usage import kill

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nemo_gym.sandbox.inside.confine import Confinement
    from nemo_gym.sandbox.inside.jobs import Limit

SESSION_FD = 3
INTERRUPT_GRACE_S = 1.0
"""What a session gets to end after the interrupt, also on a busy machine, before it is killed with its variables."""
INTERRUPT_EVERY_S = 0.05
"""An interrupt that comes before the code has begun does nothing, so there are several."""
LENGTH_BYTES = 4
CHUNK_BYTES = 2**18


class PythonSession:
    """A child, the request it is working on, and what is on its way to and from it."""

    def __init__(self, confinement: Confinement) -> None:
        import _socket

        ours, theirs = _socket.socketpair()
        self.fd, child_fd = ours.detach(), theirs.detach()
        self.pid = os.fork()
        if not self.pid:
            run_child(confinement, {SESSION_FD: child_fd}, lambda: Session(SESSION_FD).serve())
        os.close(child_fd)
        os.set_blocking(self.fd, False)
        self.request: int | None = None
        """The one it is working on. Without one it is stopped, so that no thread of it runs on unseen."""
        self.deadline = self.cpu_deadline = self._kill_at = 0.0
        self.reason = NO_LIMIT
        self._to_send = memoryview(b"")
        self._received = bytearray()
        self._max_report_bytes = 0

    def ask(self, request: int, limit: Limit, source: bytes, cpu_used: float) -> None:
        self.request, self.reason = request, NO_LIMIT
        self.deadline = time.monotonic() + limit.wall_s
        self.cpu_deadline = cpu_used + limit.cpu_s
        self._max_report_bytes = max_report_bytes(limit.output) + OVERHEAD_BYTES // 2
        lengths = len(source).to_bytes(LENGTH_BYTES, "big") + limit.output.to_bytes(LENGTH_BYTES, "big")
        self._to_send = memoryview(lengths + source)
        kill(self.pid, _signal.SIGCONT)
        self._send()

    @property
    def is_sending(self) -> bool:
        return bool(self._to_send)

    def events(self) -> int:
        """What to wait for."""
        return select.POLLIN | select.POLLOUT if self.is_sending else select.POLLIN

    def exchange(self) -> bytes | None:
        """Send and read what is possible now; the report once it is whole. EOFError if its process ended, or sent what
        no session sends: something that nothing was asked for, or too much."""
        if self.is_sending:
            self._send()
        try:
            part = os.read(self.fd, CHUNK_BYTES)
        except BlockingIOError:
            return None
        if not part or self.request is None:
            raise EOFError
        self._received += part
        return self._report()

    def _send(self) -> None:
        try:
            self._to_send = self._to_send[os.write(self.fd, self._to_send[:CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:  # its process has ended, as reading will show
            self._to_send = self._to_send[:0]

    def _report(self) -> bytes | None:
        length = int.from_bytes(self._received[:LENGTH_BYTES], "big")
        end = LENGTH_BYTES + length
        if len(self._received) < LENGTH_BYTES or len(self._received) < end <= self._max_report_bytes:
            return None
        if len(self._received) != end:
            raise EOFError
        report = bytes(self._received[LENGTH_BYTES:])
        self._received.clear()
        return report

    def interrupt(self, reason: int) -> None:
        """Raise KeyboardInterrupt in the code; kill the session if that did not end it. Called until it has ended."""
        now = time.monotonic()
        if not self.reason:
            self.reason, self._kill_at = reason, now + INTERRUPT_GRACE_S
        if now >= self._kill_at:
            kill(self.pid)
        else:
            self.deadline = now + INTERRUPT_EVERY_S
            kill(self.pid, _signal.SIGINT)

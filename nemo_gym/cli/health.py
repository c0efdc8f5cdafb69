"""`/health` from a thread of its own: it answers however busy the event loop is, and says if the loop hangs."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator

HUNG_AFTER_S = 30.0
CHECK_EVERY_S = 1.0
REQUEST_TIMEOUT_S = 2.0


@contextlib.contextmanager
def health_thread(listening: socket.socket, *, hung_after_s: float = HUNG_AFTER_S) -> Iterator[None]:
    """Answer any request on `listening` while the block runs: 200, or 503 if the event loop has not run for long."""
    beat = _Heartbeat()
    thread = threading.Thread(target=_serve, args=(listening, beat, hung_after_s), name="nemo-gym-health", daemon=True)
    thread.start()
    try:
        yield
    finally:
        beat.stop()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        listening.close()


class _Heartbeat:
    """When the event loop ran last."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(CHECK_EVERY_S, self._run)

    def _run(self) -> None:
        self.last = time.monotonic()
        self._timer = self._loop.call_later(CHECK_EVERY_S, self._run)

    def stop(self) -> None:
        self._timer.cancel()


def _serve(listening: socket.socket, beat: _Heartbeat, hung_after_s: float) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            connection.settimeout(REQUEST_TIMEOUT_S)
            connection.recv(4096)
            connection.sendall(_reply(time.monotonic() - beat.last, hung_after_s))


def _reply(since_s: float, hung_after_s: float) -> bytes:
    status, word = ("503 Service Unavailable", "hung") if since_s > hung_after_s else ("200 OK", "ok")
    body = f'{{"status":"{word}","event_loop_ran_s_ago":{since_s:.3f}}}'.encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body

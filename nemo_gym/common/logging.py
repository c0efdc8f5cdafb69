"""Logging for commands and workers: one event a line, with the server's name where there is one."""

import logging
import math
import os
import sys
import time

LEVEL_ENV_VAR = "NEMO_GYM_LOG_LEVEL"


def configure_logging(*, prefix: str = "") -> None:
    """Send our log records to standard error. Called by commands and workers, never by the library."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {prefix}%(name)s: %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(os.environ.get(LEVEL_ENV_VAR, "INFO").upper())
    for chatty in ("uvicorn.error", "uvicorn.access", "asyncio", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


class RateLimitedLog:
    """Logs the first event of a kind at once, and then one line every so often that says how many there were."""

    def __init__(self, logger: logging.Logger, *, every_s: float = 10.0) -> None:
        self._logger, self._every_s = logger, every_s
        self._since: dict[str, tuple[float, int]] = {}

    def warning(self, kind: str, message: str, *values: object) -> None:
        last, count = self._since.get(kind, (-math.inf, 0))
        now = time.monotonic()
        if now - last < self._every_s:
            self._since[kind] = (last, count + 1)
            return
        self._since[kind] = (now, 0)
        more = f" (and {count} more like it since the last such line)" if count else ""
        self._logger.warning(message + more.replace("%", "%%"), *values)

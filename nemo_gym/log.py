"""Logging for commands and workers: one event a line, with the server's name where there is one."""

import logging
import os
import sys

LEVEL_ENV_VAR = "NEMO_GYM_LOG_LEVEL"


def set_up_logging(*, prefix: str = "") -> None:
    """Send our log records to standard error. Called by commands and workers, never by the library."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {prefix}%(name)s: %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(os.environ.get(LEVEL_ENV_VAR, "INFO").upper())
    for chatty in ("uvicorn.error", "uvicorn.access", "asyncio", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

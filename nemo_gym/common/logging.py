"""Logging for commands and workers: one event a line, without secrets and without control characters."""

import json
import logging
import math
import os
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from nemo_gym.common.redaction import printable, redact
from nemo_gym.errors import ConfigError

LEVEL_ENV_VAR = "NEMO_GYM_LOG_LEVEL"
FORMAT_ENV_VAR = "NEMO_GYM_LOG_FORMAT"
_CONTINUATION = "\n    "
_START_CHARS, _END_CHARS = 6_000, 2_000
"""Characters kept of a very long text: enough for a traceback, not the megabytes that an exception may carry."""
_SECRET_CHARS = 4096
"""Characters after the cut that are searched for secrets, so that one at the cut is masked as a whole."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line, without secrets."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _shortened(record.getMessage()),
            **({"exception": _shortened(self.formatException(record.exc_info))} if record.exc_info else {}),
        }
        return json.dumps(fields, ensure_ascii=False)


class SafeFormatter(logging.Formatter):
    """Replaces secrets, escapes control characters, and indents all lines but the first.

    Text from outside that contains a line break can therefore not pass for a log line of its own.
    """

    def format(self, record: logging.LogRecord) -> str:
        return printable(redact(super().format(record))).replace("\n", _CONTINUATION)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - a name of logging
        record.message = _shortened(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _shortened(super().formatException(ei))


def configure_logging() -> None:
    """Send log records, warnings and uncaught exceptions to standard error. Called by commands and workers only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter())
    root = logging.getLogger()
    root.setLevel(_level())
    root.handlers[:] = [handler]
    for chatty in ("uvicorn.error", "uvicorn.access", "asyncio", "aiohttp.access"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    sys.excepthook = _print_exception
    threading.excepthook = lambda raised: _print_exception(raised.exc_type, raised.exc_value, raised.exc_traceback)
    sys.unraisablehook = lambda raised: _print_exception(raised.exc_type, raised.exc_value, raised.exc_traceback)


def _formatter() -> logging.Formatter:
    name = os.environ.get(FORMAT_ENV_VAR) or "text"
    if name not in ("text", "json"):
        raise ConfigError(f"{FORMAT_ENV_VAR} is '{name}', expected text or json.")
    if name == "json":
        return JsonFormatter()
    return SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")


def _level() -> int:
    name = os.environ.get(LEVEL_ENV_VAR) or "INFO"
    levels = logging.getLevelNamesMapping()
    if name.upper() not in levels:
        names = ", ".join(name.lower() for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"))
        raise ConfigError(f"{LEVEL_ENV_VAR} is '{name}', expected one of {names}.")
    return levels[name.upper()]


def _print_exception(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None, /) -> None:
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write(printable(_shortened(text)))


def _shortened(text: str) -> str:
    """The text without secrets, and without the middle of a very long one."""
    left_out = len(text) - _START_CHARS - _END_CHARS
    if left_out <= 0:
        return redact(text)
    start = redact(text[: _START_CHARS + _SECRET_CHARS])[:_START_CHARS]
    end = redact(text[-_END_CHARS - _SECRET_CHARS :])[-_END_CHARS:]
    return f"{start}... ({left_out} characters left out) ...{end}"


class RateLimitedLog:
    """Logs the first event of a kind, then at most one line per interval, which says how many were left out."""

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

"""What reaches the log: one line for a thousand equal warnings, no secret, no control character."""

import logging
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import pytest

from nemo_gym.common.logging import JsonFormatter, RateLimitedLog, SafeFormatter
from nemo_gym.config.secrets import Secrets, set_process_secrets


def test_events_of_a_kind_are_logged_once_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    seldom = RateLimitedLog(logging.getLogger("test"), every_s=60)
    for number in range(1000):
        seldom.warning("429", "answered %d", number)
    seldom.warning("500", "answered badly")
    assert [record.getMessage() for record in caplog.records] == ["answered 0", "answered badly"]


def test_the_next_line_says_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    seldom = RateLimitedLog(logging.getLogger("test"), every_s=0)
    seldom._since["429"] = (float("-inf"), 41)
    seldom.warning("429", "answered %d", 7)
    assert caplog.records[0].getMessage().startswith("answered 7 (and 41 more")


def formatted(message: str, *values: object, error: Exception | None = None) -> str:
    trace = (type(error), error, None) if error else None
    record = logging.LogRecord("name", logging.ERROR, "file.py", 1, message, values, trace)
    return SafeFormatter("%(levelname)s %(message)s").format(record)


def test_text_from_outside_cannot_pass_for_a_log_line() -> None:
    text = formatted("answered %s", "no\x1b[2K\r\n12:00:00 ERROR forged\u2028x", error=ValueError("a\nERROR b"))
    first, *others = text.splitlines()
    assert first == "ERROR answered no\\x1b[2K\\r"
    assert others
    assert all(line.startswith("    ") for line in others)


def test_several_lines_of_our_own_are_still_lines() -> None:
    assert formatted("%s", "two mistakes:\n- one\n- two") == "ERROR two mistakes:\n    - one\n    - two"


def test_secrets_are_replaced_in_messages_and_tracebacks() -> None:
    set_process_secrets(Secrets(frozenset(("hunter2-long-secret",))))
    text = formatted("key %s", "hunter2-long-secret", error=KeyError("hunter2-long-secret"))
    assert text.splitlines() == ["ERROR key ****", "    KeyError: '****'"]


def deep_error(text: str) -> tuple[type[Exception], Exception, TracebackType | None]:
    try:
        raise KeyError(text)
    except KeyError as error:
        return type(error), error, error.__traceback__


@pytest.mark.parametrize("formatter", [SafeFormatter("%(levelname)s %(message)s"), JsonFormatter()])
def test_of_a_very_long_text_the_start_and_the_end_are_logged(formatter: logging.Formatter) -> None:
    text = "begin" + "x" * 5_000_000 + "end"
    record = logging.LogRecord("name", logging.ERROR, "file.py", 1, "raised %r", (text,), deep_error(text))
    found = formatter.format(record)
    assert len(found) < 20_000
    assert found.count("begin") == found.count("xend'") == 2
    assert "in deep_error" in found
    assert "characters left out" in found


def test_a_secret_is_not_cut_in_two() -> None:
    secret = "hunter2-long-secret"
    set_process_secrets(Secrets(frozenset((secret,))))
    for before in range(5_950, 6_001, 10):
        text = formatted("%s", "x" * before + secret + "y" * 20_000 + secret + "x" * (before - 4_000))
        assert not {"hunter", "secret"} & set(re.findall("hunter|secret", text))


PROGRAM = """
import threading, warnings
from nemo_gym.common.logging import configure_logging
from nemo_gym.config.secrets import Secrets, set_process_secrets
configure_logging()
set_process_secrets(Secrets(frozenset(("hunter2-long-secret",))))
class Broken:
    def __del__(self):
        raise ValueError("unraisable hunter2-long-secret\\x1b[31m")
warnings.warn("warned hunter2-long-secret")
Broken()
def fail(): raise ValueError("in a thread hunter2-long-secret\\x1b[31m")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
raise ValueError("uncaught hunter2-long-secret\\x1b[31m")
"""


def test_uncaught_exceptions_and_warnings_hold_no_secret() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    for words in ("warned ****", "unraisable ****", "in a thread ****", "uncaught ****"):
        assert words in done.stderr
    assert "\x1b" not in done.stderr
    assert "hunter2-long" not in done.stderr.replace('"hunter2-long-secret"', "")


def test_an_unknown_log_level_is_an_error_message(tmp_path: Path) -> None:
    program = "from nemo_gym.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "help"],
        env={"NEMO_GYM_LOG_LEVEL": "loud\x1b"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "NEMO_GYM_LOG_LEVEL is 'loud\\x1b'" in done.stderr
    assert "debug" in done.stderr

"""Help fits the terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import termios

import pytest

from tests.commands import BIN


def shown_at(columns: int, *arguments: str) -> list[str]:
    """What a command prints to a terminal of this width."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    running = subprocess.Popen([BIN / "ng", *arguments], stdout=inner, env=environment)
    os.close(inner)
    printed = b""
    while chunk := _read(outer):
        printed += chunk
    assert running.wait() == 0
    os.close(outer)
    return printed.decode().splitlines()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the command has ended
        return b""


@pytest.mark.parametrize("columns", [70, 100])
def test_help_is_as_wide_as_the_terminal(columns: int) -> None:
    lines = shown_at(columns, "eval", "--help")
    assert max(len(line) for line in lines if not line.startswith("ng ")) <= columns
    text = " ".join(" ".join(lines).split())
    assert "Usage: ng eval <environment> [--name value ...]" in text
    assert "Use only the first N rows of the dataset. 0 means all. [short: -n]" in text

"""The help of a command, for a terminal of any width."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from nemo_gym.config.command_options import help_text

if TYPE_CHECKING:
    from nemo_gym.config.command_options import BaseNeMoGymCLIConfig

MIN_COLUMNS = 40
INDENT = 6
_PARAMETER = re.compile(r"- (\w+) \(")
_TWO_COLUMNS = re.compile(r"(-.*?\S)(?:   +)(.*)")
"""An option and what it does."""


def help_page(parameters: "type[BaseNeMoGymCLIConfig]", command: str) -> str:
    """The usage line, the description and the parameters of a command, wrapped if a terminal shows them."""
    title, *lines = help_text(parameters).splitlines()
    named = [f"<{name}>" for name in parameters.POSITIONAL]
    usage = " ".join(["Usage:", command, *named, "[--name value ...]"])
    lines = list(_with_short_options(lines, parameters.SHORT_OPTIONS))
    if sys.stdout.isatty():
        columns = max(shutil.get_terminal_size().columns, MIN_COLUMNS)
        lines = list(_wrapped(lines, columns))
    return "\n".join([title, "", usage, *lines, ""])


def _with_short_options(lines: list[str], short: Mapping[str, str]) -> Iterator[str]:
    letters = {name: letter for letter, name in short.items()}
    for line in lines:
        match = _PARAMETER.match(line)
        yield f"{line} [short: -{letters[match[1]]}]" if match and match[1] in letters else line


def _wrapped(lines: list[str], columns: int) -> Iterator[str]:
    for line in lines:
        match = _TWO_COLUMNS.fullmatch(line)
        if match and match.start(2) > columns // 2:
            yield match[1]
            yield from _indented(match[2], INDENT, columns)
        elif match:
            head = line[: match.start(2)]
            first, *more = _indented(match[2], len(head), columns)
            yield from (head + first.lstrip(), *more)
        elif line.startswith("ng"):  # a command to copy stays one line
            yield line
        else:
            yield from textwrap.wrap(line, columns) or [""]


def _indented(text: str, indent: int, columns: int) -> list[str]:
    return textwrap.wrap(text, columns, initial_indent=" " * indent, subsequent_indent=" " * indent)

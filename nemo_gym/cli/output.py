"""What a command prints on standard output: text for people, or with `--json` one JSON document.

A command that has figures passes them to `print_result`. What any other command prints becomes the `output` of the
document, so that `--json` works everywhere.
"""

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TextIO

from nemo_gym.common.redaction import process_redactor


@dataclass
class _JsonOutput:
    """The document of the running command."""

    stdout: TextIO
    printed: io.StringIO = field(default_factory=io.StringIO)
    result: Any = None

    def document(self, exit_code: int, error: str | None) -> dict[str, Any]:
        text = self.printed.getvalue().strip("\n")
        result = self.result if self.result is not None else {"output": text.splitlines()} if text else {}
        document = dict(result) if isinstance(result, dict) else {"result": result}
        return {**document, **({"error": error} if error else {}), "exit_code": exit_code}


_current: _JsonOutput | None = None


def wants_json() -> bool:
    """True if the running command was given `--json`."""
    return _current is not None


def print_result(result: Any, text: str = "") -> None:
    """Print the result of a command: the value with `--json`, otherwise the text."""
    if _current is None:
        print(text)
    else:
        _current.result = result


def flush_result() -> None:
    """Write the document now: for a command that goes on after its result."""
    if _current is not None and _current.result is not None:
        _write(_current.stdout, _current.document(0, None))
        _current.result, _current.printed = None, io.StringIO()


class JsonCommand:
    """Set by the command wrapper: how the command ended."""

    exit_code = 0
    error: str | None = None


@contextlib.contextmanager
def json_output() -> Iterator[JsonCommand]:
    """Collect what is printed inside, and write one document at the end."""
    global _current  # noqa: PLW0603 -- one command runs at a time
    outer, ended = _current, JsonCommand()
    _current = collected = _JsonOutput(sys.stdout)
    try:
        with contextlib.redirect_stdout(collected.printed):
            yield ended
    finally:
        _current = outer
        _write(collected.stdout, collected.document(ended.exit_code, ended.error))


def _write(stream: TextIO, document: dict[str, Any]) -> None:
    shown = process_redactor().value(document)
    stream.write(json.dumps(shown, indent=2, ensure_ascii=False, default=str) + "\n")
    stream.flush()

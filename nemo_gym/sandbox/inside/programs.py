"""Programs of the agent's children: a command, a Python program with real standard streams, a reader or writer of one
file, or a stateful session.

Model-written code is compiled without this module's `__future__` imports, which would change its meaning."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import stat
import sys

from nemo_gym.sandbox.inside.frames import MAX_TEXT, pack, read_exactly, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType, ModuleType
    from typing import Any

SESSION_FILE = "<session>"
PROGRAM_FILE = "<program>"
MAX_NAME = 200
"""Maximum characters of the name of an error type."""


def run_command(argv: list[str], env: dict[str, str], cwd: str) -> None:
    """Replace this process with a command."""
    os.chdir(cwd)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    os.execvpe(argv[0], argv, env)


def run_program(source: str, argv: list[str], env: dict[str, str], cwd: str) -> None:
    """Run Python source as the main program, as `python program.py` would, in this already started interpreter."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    _python_signals()
    module = _main_module()
    sys.argv = [PROGRAM_FILE, *argv]
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    code = 1
    try:
        program = compile(source, PROGRAM_FILE, "exec", dont_inherit=True)
        exec(program, module.__dict__)  # noqa: S102 - what this is for
        code = 0
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException:
        _print_traceback()
    finally:
        for step in (_wait_for_threads, _run_exit_functions, _flush):
            if not _succeeds(step):
                code = code or 1
        os._exit(code)


def write_file(path: bytes, mode: bytes, content: bytes) -> None:
    """Write (`w`) or append (`a`) to a file, and create its folders. Ends the process."""
    os.makedirs(os.path.dirname(path) or b".", exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | (os.O_APPEND if mode == b"a" else os.O_TRUNC)
    write_all(os.open(path, flags, 0o644), content)
    os._exit(0)


def read_file(path: bytes, limit: bytes) -> None:
    """Write a regular file to standard output. Ends the process."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"{os.fsdecode(path)} is not a regular file")
    if status.st_size > int(limit):
        raise OSError(f"{os.fsdecode(path)} has {status.st_size} bytes; at most {int(limit)} are read")
    while part := os.read(fd, 2**20):
        write_all(1, part)
    os._exit(0)


class Session:
    """Runs code in one namespace, and reports what it printed, returned and raised."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_executing = False
        self._names = _main_module().__dict__
        _python_signals()
        _signal.signal(_signal.SIGINT, self._interrupt)

    def serve(self) -> None:
        while True:
            head = read_exactly(self._fd, 8)
            source = read_exactly(self._fd, int.from_bytes(head[:4], "big")).decode("utf-8", "replace")
            report = self._execute(source, int.from_bytes(head[4:], "big"))
            write_all(self._fd, len(report).to_bytes(4, "big") + report)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """Interrupt the code at its time limit, never this loop."""
        if self._is_executing:
            self._is_executing = False
            raise KeyboardInterrupt("time limit")

    def _execute(self, source: str, output: int) -> bytes:
        """Run code and return its report: output, value, error and error type. `process.python_result` reads it."""
        stdout, stderr = CappedText(output), CappedText(output)
        sys.stdout, sys.stderr = stdout, stderr
        error: BaseException | None = None
        value: Any = None
        has_value = False
        try:
            try:
                self._is_executing = True
                statements, last = _split(source)
                exec(statements, self._names)  # noqa: S102 - what this is for
                if last is not None:
                    value, has_value = eval(last, self._names), True
            finally:
                self._is_executing = False
        except BaseException as raised:  # also an interrupt that comes while the code ends
            error = raised
        return pack(
            _field(stdout.text()),
            _field(stderr.text()),
            _field(_text(value) if has_value else None),
            _field(None if error is None else _text(error)),
            _field(None if error is None else type(error).__name__[:MAX_NAME]),
        )


class CappedText:
    """A text stream that keeps its first characters."""

    encoding = "utf-8"
    errors = "replace"
    closed = False

    def __init__(self, limit: int) -> None:
        self._left, self.is_truncated = limit, False
        self._parts: list[str] = []

    def write(self, text: str) -> int:
        if self._left > 0:
            self._parts.append(str(text[: self._left]))
        self.is_truncated |= len(text) > self._left
        self._left -= len(text)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def text(self) -> str:
        return "".join(self._parts)

    def flush(self) -> None:
        """Nothing to flush."""

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False


def _split(source: str) -> tuple[CodeType, CodeType | None]:
    """Split source into the code to execute and the last expression, whose value is the result."""
    import ast

    tree = ast.parse(source, SESSION_FILE)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        expression = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        last = compile(expression, SESSION_FILE, "eval", dont_inherit=True)
    return compile(tree, SESSION_FILE, "exec", dont_inherit=True), last


def _text(value: Any) -> str:
    """Convert a value to text. This may run model-written code, which may do anything."""
    try:
        return str(value)[:MAX_TEXT]
    except BaseException as error:
        return f"<{type(value).__name__} whose text failed with {type(error).__name__}>"


def _field(text: str | None) -> bytes:
    """Encode a text with a leading byte, since an empty field means None."""
    return b"" if text is None else b"=" + text.encode(errors="backslashreplace")


def _main_module() -> ModuleType:
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    module.__dict__.update({"__builtins__": __builtins__, "exit": sys.exit, "quit": sys.exit})
    return module


def _python_signals() -> None:
    _signal.set_wakeup_fd(-1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def _wait_for_threads() -> None:
    """Wait for threads, as the interpreter does at exit."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()


def _run_exit_functions() -> None:
    import atexit

    atexit._run_exitfuncs()


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__, sys.stderr):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()


def _succeeds(step: Callable[[], object]) -> bool:
    try:
        step()
    except BaseException:
        return False
    return True


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 255
    print(error.code, file=sys.stderr)  # noqa: T201 - as the interpreter does
    return 1


def _print_traceback() -> None:
    import traceback

    traceback.print_exc()

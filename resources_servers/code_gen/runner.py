"""Running a program against its tests. The program is in a sandbox; what it should print is not.

Every test is a process of its own. Comparing happens out here, where the program can change nothing."""

import importlib.util
import json
import time
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, NamedTuple

from pydantic import BaseModel

from nemo_gym.sandbox import ExecResult, SandboxProcess

WRONG, LATE, FAILED, HUNG = -2, -3, -4, -1
FENCE = "```"
SHOWN_CHARS = 300
MEMORY_MB = 4096
MIN_OUTPUT_BYTES = 2**20
DOES_NOT_COMPILE = 97
MAX_DECIMAL_CHARS = 10_000
"""Longer numbers are compared as text."""

_STAR_IMPORTS = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing"),
)
PRELOAD = tuple(name for name in _STAR_IMPORTS if name not in ("sys", "builtins", "io"))
"""Modules that sandboxes start with, so that no program waits for them."""

_NAMES = "".join(f"from {name} import *\n" for name in _STAR_IMPORTS) + "".join(
    f"import {name}\n" for name in _STAR_IMPORTS
)
"""What programs may use without importing it, as those in the datasets do."""

_HARNESS = f"""
import builtins, sys
_source, _function = sys.argv[1], sys.argv[2]
del sys.argv[1:]
builtins.exit, builtins.quit = sys.exit, None
_module = type(sys)("solution" if _function else "__main__")
sys.modules[_module.__name__] = _module
_names = _module.__dict__
exec({_NAMES!r}, _names)
sys.setrecursionlimit(50000)
try:
    _code = compile(_source, "<solution>", "exec")
except (SyntaxError, ValueError, RecursionError, MemoryError) as _error:
    print(f"Error during testing: {{_error!r}}", file=sys.stderr)
    raise SystemExit({DOES_NOT_COMPILE})
"""
_RUN = """
try:
    exec(_code, _names)
except SystemExit:
    pass
"""
_CALL = """
import os, json, numbers
_text = sys.stdin.read()
_output = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
exec(_code, _names)
_called = getattr(_names["Solution"](), _function) if "Solution" in _names else _names[_function]
def _tagged(value):
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(value, (numpy.bool_, numpy.number)):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return ["plain", value]
    for kind in (list, tuple):
        if isinstance(value, kind):
            return [kind.__name__, [_tagged(item) for item in kind.__iter__(value)]]
    if isinstance(value, dict):
        return ["dict", [[_tagged(key), _tagged(item)] for key, item in dict.items(value)]]
    if isinstance(value, numbers.Rational):
        return ["ratio", [int(value.numerator), int(value.denominator)]]
    if isinstance(value, numbers.Real):
        return ["plain", float(value)]
    return ["other", None]
_result = _called(*[json.loads(line) for line in _text.split("\\n")])
_report = json.dumps(_tagged(list(_result) if isinstance(_result, tuple) else _result)).encode()
while _report:
    _report = _report[os.write(_output, _report):]
"""


class UnitTests(BaseModel):
    inputs: list[str] = []
    outputs: list[str] = []
    fn_name: str | None = None


class RunReport(NamedTuple):
    result: list[bool | int]
    metadata: dict[str, Any]


class Failure(NamedTuple):
    code: int
    message: str
    more: dict[str, Any]


def extract_code(text: str) -> str | None:
    """The lines between the last two lines with a fence; None if there is nothing between, or no such lines."""
    lines = text.split("\n")
    fences = [number for number, line in enumerate(lines) if FENCE in line]
    if len(fences) < 2:
        return None
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) or None


async def run_tests(sandbox: SandboxProcess, code: str, tests: UnitTests) -> RunReport:
    """Run one test after the other, each within the sandbox's limits on CPU and wall time, to the first failure."""
    started = time.monotonic()
    result: list[bool | int] = []
    for given, expected in zip(tests.inputs, tests.outputs, strict=False):
        failure = await _failure(sandbox, code, given, expected, tests.fn_name)
        if failure is not None:
            shown = {"inputs": shortened(given), "expected": shortened(expected)}
            metadata = {**failure.more, **shown, "error_code": failure.code, "error_message": failure.message}
            return RunReport([*result, failure.code], metadata)
        result.append(True)
    return RunReport(result, {"execution time": time.monotonic() - started})


async def _failure(
    sandbox: SandboxProcess, code: str, given: str, expected: str, function: str | None
) -> Failure | None:
    program = _HARNESS + (_RUN if function is None else _CALL)
    output_bytes = max(MIN_OUTPUT_BYTES, 4 * len(expected.encode()))
    done = await sandbox.program(program, code, function or "", stdin=given.encode(), output_bytes=output_bytes)
    if done.error_type == "sandbox":
        raise RuntimeError(f"The sandbox failed: {done.stderr}")
    if done.limit in ("time", "cpu"):
        return Failure(LATE, "Time Limit Exceeded", {"error": f"{done.limit} limit"})
    if done.return_code:
        return _crash(done)
    output = done.stdout or ""
    if function is not None:
        return None if is_equal_value(output, expected) else Failure(WRONG, "Wrong Answer", _printed(output))
    message = difference(output, expected)
    return None if message is None else Failure(WRONG, message, _printed(output))


def _printed(output: str) -> dict[str, Any]:
    return {"output": shortened(output)}


def _crash(done: ExecResult) -> Failure:
    lines = (done.stderr or "").strip().splitlines() or [f"ended with code {done.return_code}"]
    more = {"error": shortened(lines[-1]), "traceback": (done.stderr or "")[-5000:]}
    if done.return_code == DOES_NOT_COMPILE:
        return Failure(FAILED, lines[-1], more)
    return Failure(FAILED, "Runtime Error", more)


def difference(output: str, expected: str) -> str | None:
    """Where two outputs differ, line by line; None if they do not."""
    ours, theirs = stripped_lines(output), stripped_lines(expected)
    if len(ours) != len(theirs):
        return "Wrong answer: mismatched output length"
    for index, (line, wanted) in enumerate(zip(ours, theirs, strict=True)):
        if line != wanted and not is_equal_numbers(line, wanted):
            return f"Wrong answer at output_line_idx={index}: {shortened(line)} != {shortened(wanted)}"
    return None


def stripped_lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def is_equal_numbers(line: str, wanted: str) -> bool:
    """True if both are the same list of decimal numbers: `1.50 2` is `1.5 2.0`."""
    ours, theirs = line.split(), wanted.split()
    if len(ours) != len(theirs) or max(map(len, [*ours, *theirs]), default=0) > MAX_DECIMAL_CHARS:
        return False
    if any(not word.isascii() or "_" in word for word in [*ours, *theirs]):  # numbers in Python only
        return False
    try:
        return [Decimal(word) for word in ours] == [Decimal(word) for word in theirs]
    except InvalidOperation:
        return False


def is_equal_value(output: str, expected: str) -> bool:
    """True if what a function returned, as the harness wrote it down, equals the expected JSON value."""
    try:
        return bool(_untagged(json.loads(output)) == json.loads(expected))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, ZeroDivisionError):
        return False


def _untagged(tagged: Any) -> Any:
    """The value in types of our own, whose `==` no program can change."""
    kind, value = tagged
    if kind in ("list", "tuple"):
        items = [_untagged(item) for item in value]
        return items if kind == "list" else tuple(items)
    if kind == "dict":
        return {_untagged(key): _untagged(item) for key, item in value}
    if kind == "ratio":
        return Fraction(*value)
    if kind != "plain":
        raise ValueError(f"a value of the kind {kind!r}")
    return value


def shortened(text: str) -> str:
    if len(text) <= SHOWN_CHARS:
        return text
    half = SHOWN_CHARS // 2
    return f"{text[:half]}...(truncated) ...{text[-half:]}"


def installed(*packages: str) -> tuple[str, ...]:
    """Those of the packages that programs can be offered."""
    return tuple(name for name in packages if importlib.util.find_spec(name))

"""Running a program against its tests. The program is in a sandbox; what it should print is not.

Every test is a process of its own. Comparing happens out here, where the program can change nothing, and in a compute
process, where what it wrote can cost only so much."""

import importlib.util
import json
import time
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, Field, model_validator

from nemo_gym.answers import strict_json, without_thinking
from nemo_gym.compute import Compute, LimitExceededError
from nemo_gym.sandbox import ExecResult, SandboxError, SandboxProcess

WRONG, LATE, FAILED, HUNG = -2, -3, -4, -1
FENCE, OTHER_FENCE = "```", "~~~"
SHOWN_CHARS = 300
MEMORY_MB = 4096
MAX_EXPECTED_BYTES = 8 * 2**20
MORE_OUTPUT_BYTES = 2**20
"""A program may write twice as much as is expected, and this. More is wrong."""
COMPARE_CPU_S = 20.0
"""For the longest outputs, which take a fifth of that; most take a millisecond."""
DOES_NOT_COMPILE = 97
MAX_DECIMAL_CHARS = 10_000
"""Longer numbers are compared as text."""

_STAR_IMPORTS = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing"),
)
PRELOAD = tuple(name for name in _STAR_IMPORTS if name not in ("sys", "builtins", "io"))
"""Modules that sandboxes start with, so that no program waits for them."""

NAMES = "".join(f"from {name} import *\n" for name in _STAR_IMPORTS) + "".join(
    f"import {name}\n" for name in _STAR_IMPORTS
)
"""Names that programs may use without importing them, as those in the datasets do."""

_HARNESS = f"""
import builtins, sys
_source, _function = sys.argv[1], sys.argv[2]
del sys.argv[1:]
builtins.exit, builtins.quit = sys.exit, None
_module = type(sys)("solution" if _function else "__main__")
sys.modules[_module.__name__] = _module
_names = _module.__dict__
exec({NAMES!r}, _names)
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
import fractions, os, json, numbers
_text = sys.stdin.read()
_output = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
exec(_code, _names)
_called = getattr(_names["Solution"](), _function) if "Solution" in _names else _names[_function]
def _plain(value):
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(value, (numpy.bool_, numpy.number)):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_plain(item) for item in list.__iter__(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in dict.keys(value)):
        return {str.__str__(key): _plain(item) for key, item in dict.items(value)}
    if isinstance(value, numbers.Rational):
        ratio = fractions.Fraction(int(value.numerator), int(value.denominator))
        value = ratio.numerator if ratio.denominator == 1 else float(ratio)
        if value == ratio:
            return value
    elif isinstance(value, numbers.Real):
        return float(value)
    raise TypeError
_result = _called(*[json.loads(line) for line in _text.split("\\n")])
try:
    _value = _plain(list(_result) if isinstance(_result, tuple) else _result)
    _report = json.dumps(_value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
except (TypeError, ValueError, ArithmeticError, RecursionError):
    _report = f"{type(_result).__name__}: no JSON value equals it"
_report = _report.encode(errors="replace")
while _report:
    _report = _report[os.write(_output, _report):]
"""


class UnitTests(BaseModel):
    """The tests of a row. One that no program can pass, or that a program which does nothing passes, is refused."""

    inputs: list[str] = Field(min_length=1)
    outputs: list[str]
    fn_name: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.inputs) != len(self.outputs):
            found = f"{len(self.inputs)} inputs and {len(self.outputs)} outputs"
            raise ValueError(f"There are {found}; expected one output for each input.")
        if max(len(output.encode(errors="replace")) for output in self.outputs) > MAX_EXPECTED_BYTES:
            raise ValueError(f"An output is longer than {MAX_EXPECTED_BYTES:,} bytes, which are compared at most.")
        if self.fn_name is not None:
            self._check_values(self.fn_name)
        nothing = "" if self.fn_name is None else "null"
        if all(output.strip() == nothing for output in self.outputs):
            raise ValueError("All outputs are blank or null, so a program that does nothing would pass.")
        return self

    def _check_values(self, function: str) -> None:
        if not function.isidentifier():
            raise ValueError(f"fn_name is {function!r}; expected the name of a function, or null for a program.")
        for number, (given, expected) in enumerate(zip(self.inputs, self.outputs, strict=True)):
            try:
                for line in given.split("\n"):
                    json.loads(line)
                strict_json(expected, unique_keys=True)
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"Test {number} of the function is not JSON, each line of the input and the output: {error}"
                ) from error


class RunReport(NamedTuple):
    result: list[bool | int]
    metadata: dict[str, Any]
    is_sandbox_lost: bool = False
    """True if the last test did not end because its sandbox did."""


class Failure(NamedTuple):
    code: int
    message: str
    more: dict[str, Any]
    is_sandbox_lost: bool = False


def extract_code(text: str) -> str | None:
    """The lines between the last two lines with a fence, thoughts aside; None if there is nothing between, or no such
    lines, or they are in an HTML comment. If no line has three backticks, those that start with `~~~` are fences."""
    lines = without_thinking(text).split("\n")
    fences = [number for number, line in enumerate(lines) if FENCE in line]
    if not fences:
        fences = [number for number, line in enumerate(lines) if line.lstrip().startswith(OTHER_FENCE)]
    if len(fences) < 2:
        return None
    blocks = zip(fences[:-2:2], fences[1:-2:2], strict=False)
    in_blocks = {number for start, end in blocks for number in range(start, end)}
    before = "\n".join(line for number, line in enumerate(lines[: fences[-2] + 1]) if number not in in_blocks)
    if before.rfind("<!--") > before.rfind("-->"):
        return None
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) or None


async def run_tests(sandbox: SandboxProcess, code: str, tests: UnitTests, compute: Compute) -> RunReport:
    """Run one test after the other, each within the sandbox's limits on CPU and wall time, to the first failure."""
    started = time.monotonic()
    result: list[bool | int] = []
    for given, expected in zip(tests.inputs, tests.outputs, strict=True):
        max_bytes = 2 * len(expected.encode(errors="replace")) + MORE_OUTPUT_BYTES
        done = await _run(sandbox, code, given, tests.fn_name, max_bytes)
        if done.error_type == "sandbox" and sandbox.is_alive and not result:
            raise SandboxError(f"The sandbox could not run a program: {done.stderr}")
        failure = ended(done) or await _compared(compute, done.stdout or "", expected, tests.fn_name, max_bytes)
        if failure is not None:
            shown = {"inputs": shortened(given), "expected": shortened(expected)}
            metadata = {**failure.more, **shown, "error_code": failure.code, "error_message": failure.message}
            return RunReport([*result, failure.code], metadata, failure.is_sandbox_lost)
        result.append(True)
    return RunReport(result, {"execution time": time.monotonic() - started})


async def _run(sandbox: SandboxProcess, code: str, given: str, function: str | None, output_bytes: int) -> ExecResult:
    program = _HARNESS + (_RUN if function is None else _CALL)
    source, stdin = code.encode(errors="replace").decode(), given.encode(errors="replace")  # no lone surrogates
    return await sandbox.program(program, source, function or "", stdin=stdin, output_bytes=output_bytes)


def ended(done: ExecResult) -> Failure | None:
    """Why a program has no output that counts; None if it ended well."""
    if done.error_type == "sandbox":
        return Failure(FAILED, "Runtime Error", {"error": shortened(done.stderr or "")}, is_sandbox_lost=True)
    if done.limit in ("time", "cpu"):
        return Failure(LATE, "Time Limit Exceeded", {"error": f"{done.limit} limit"})
    return _crash(done) if done.return_code else None


async def _compared(
    compute: Compute, output: str, expected: str, function: str | None, max_bytes: int
) -> Failure | None:
    try:
        if len(output.encode()) > max_bytes:  # after decoding: what is no UTF-8 has become longer
            message: str | None = "Wrong answer: the output is too long"
        else:
            compare = difference if function is None else value_difference
            message = await compute.run(compare, output, expected, timeout_s=COMPARE_CPU_S)
    except LimitExceededError as error:
        message = f"Wrong answer: {error}"
    return None if message is None else Failure(WRONG, message, {"output": shortened(output)})


def _crash(done: ExecResult) -> Failure:
    lines = (done.stderr or "").strip().splitlines() or [f"ended with code {done.return_code}"]
    more = {"error": shortened(lines[-1]), "traceback": (done.stderr or "")[-5000:]}
    if done.return_code == DOES_NOT_COMPILE:
        return Failure(FAILED, lines[-1], more)
    return Failure(FAILED, "Runtime Error", more)


def difference(output: str, expected: str) -> str | None:
    """Describe the first line in which two outputs differ; None if none does."""
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
    try:
        return len(ours) == len(theirs) and all(map(_is_equal_number, ours, theirs))
    except InvalidOperation:
        return False


def _is_equal_number(word: str, wanted: str) -> bool:
    if max(len(word), len(wanted)) > MAX_DECIMAL_CHARS:
        return False
    if not (word.isascii() and wanted.isascii()) or "_" in word or "_" in wanted:  # numbers in Python only
        return False
    return Decimal(word) == Decimal(wanted)


def value_difference(output: str, expected: str) -> str | None:
    """None if what a function returned, as JSON that the harness wrote, equals the expected JSON value."""
    try:
        is_equal = strict_json(output, unique_keys=True) == strict_json(expected, unique_keys=True)
    except (ValueError, RecursionError):
        is_equal = False
    return None if is_equal else "Wrong Answer"


def shortened(text: str) -> str:
    if len(text) <= SHOWN_CHARS:
        return text
    half = SHOWN_CHARS // 2
    return f"{text[:half]}...(truncated) ...{text[-half:]}"


def installed(*packages: str) -> tuple[str, ...]:
    """Those of the packages that programs can be offered."""
    return tuple(name for name in packages if importlib.util.find_spec(name))

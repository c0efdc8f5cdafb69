"""Tests that are a program themselves: a function `check(candidate)` that raises if the answer is wrong.

The tests run in one process of the sandbox, the model's program in another one that is forked before the tests are
read. Between them go plain values only: arguments there, results back. So no object of the program is ever compared,
and the program can neither see nor change what checks it. The tests pass if a secret is printed that only the process
of the tests has got."""

import secrets

from pydantic import BaseModel, model_validator

from nemo_gym.sandbox import ExecResult, SandboxProcess
from resources_servers.code_gen.runner import FAILED, MORE_OUTPUT_BYTES, NAMES, WRONG, Failure, RunReport, ended

WRONG_EXIT = 98
"""The exit code of tests that failed."""

PROGRAM = f"""
import ast, builtins, ctypes, numbers, os, sys
source, setup, function = sys.argv[1:4]
del sys.argv[1:]
builtins.exit, builtins.quit = sys.exit, None
sys.path[:] = [place for place in sys.path if place.startswith(sys.prefix) or place.startswith(sys.base_prefix)]
exec({NAMES!r}, {{}})
if ctypes.CDLL(None).prctl(4, 0, 0, 0, 0):  # not dumpable: nobody may open what belongs to this process
    raise SystemExit("the process of the tests cannot be protected")
MAX_BYTES = {MORE_OUTPUT_BYTES}

def plain(value):
    numpy = sys.modules.get("numpy")
    if numpy and isinstance(value, (numpy.bool_, numpy.number)):
        value = value.item()
    for kind in (bool, int, float, complex, str, bytes):
        if isinstance(value, kind):
            return kind.__repr__(value) if kind is not float else f"({{float.__repr__(value)}})"
    if value is None:
        return "None"
    for kind, form in ((list, "[{{}}]"), (tuple, "({{}},)"), (set, "{{{{{{}}}}}}"), (frozenset, "{{{{{{}}}}}}")):
        if isinstance(value, kind):
            items = [plain(item) for item in kind.__iter__(value)]
            return form.format(",".join(items)) if items else kind.__name__ + "()"
    if isinstance(value, dict):
        return "{{" + ",".join(plain(key) + ":" + plain(item) for key, item in dict.items(value)) + "}}"
    raise TypeError(f"{{type(value).__name__}} is no plain value")

def value_of(text):
    tree = ast.parse(text, mode="eval").body
    return literal(tree)

EMPTY = {{"set": set, "frozenset": frozenset, "tuple": tuple, "list": list}}
NUMBERS = {{"inf": float("inf"), "nan": float("nan")}}

def literal(node):
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return NUMBERS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -literal(operand)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return literal(left) + literal(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return literal(left) - literal(right)
        case ast.List(elts=items):
            return [literal(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple([literal(item) for item in items])
        case ast.Set(elts=items):
            return {{literal(item) for item in items}}
        case ast.Dict(keys=keys, values=values):
            return {{literal(key): literal(item) for key, item in zip(keys, values)}}
        case ast.Call(func=ast.Name(id=name), args=[]):
            return EMPTY[name]()
    raise ValueError("no plain value")

def send(descriptor, text):
    data = text.encode(errors="surrogatepass")
    data = len(data).to_bytes(4, "big") + data
    while data:
        data = data[os.write(descriptor, data):]

def read_exactly(descriptor, count):
    parts = []
    while count:
        part = os.read(descriptor, min(count, 65536))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)

def receive(descriptor, most):
    length = int.from_bytes(read_exactly(descriptor, 4), "big")
    if length > most:
        raise ValueError("the value is too long")
    return read_exactly(descriptor, length).decode(errors="surrogatepass")

calls, results = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    os.dup2(0, 2)
    os.close(calls[1])
    os.close(results[0])
    from_tests, to_tests = calls[0], results[1]
    module = type(sys)("solution")
    sys.modules["solution"] = module
    names = module.__dict__
    exec({NAMES!r}, names)
    sys.setrecursionlimit(50000)
    plain_of, value_from, hear, say, leave = plain, value_of, receive, send, os._exit
    reported = None
    try:
        exec(compile(setup, "<setup>", "exec"), names)
        exec(compile(source, "<solution>", "exec"), names)
        called = getattr(names["Solution"](), function) if "Solution" in names else names[function]
    except BaseException as error:
        reported = f"{{type(error).__name__}}:{{error}}"[:500]
    while True:
        try:
            text = hear(from_tests, 2**31)
        except BaseException:
            leave(0)
        if reported is not None:
            say(to_tests, "!" + reported)
            continue
        try:
            arguments, named = value_from(text)
            answer = plain_of((called(*arguments, **named), arguments))
        except BaseException as error:
            answer = "!" + f"{{type(error).__name__}}:{{error}}"[:500]
        say(to_tests, answer)

os.close(calls[0])
os.close(results[1])
secret, _, tests = sys.stdin.buffer.read().decode(errors="surrogatepass").partition("\\n")
output = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

def candidate(*arguments, **named):
    send(calls[1], plain((list(arguments), named)))
    text = receive(results[0], MAX_BYTES)
    if text.startswith("!"):
        name, _, message = text[1:].partition(":")
        kind = getattr(builtins, name, None)
        is_error = isinstance(kind, type) and issubclass(kind, Exception)
        raise (kind if is_error and not issubclass(kind, UnicodeError) else RuntimeError)(f"{{name}}: {{message}}")
    result, changed = value_of(text)
    for before, after in zip(arguments, changed):
        if isinstance(before, list) and before != after:
            before[:] = after
        elif isinstance(before, dict) and before != after:
            before.clear()
            before.update(after)
    return result

names = {{"__name__": "tests"}}
try:
    exec({NAMES!r}, names)
    exec(compile(setup, "<setup>", "exec"), names)
    names[function] = candidate
    exec(compile(tests, "<tests>", "exec"), names)
    names["check"](candidate)
except BaseException as error:
    print(f"{{type(error).__name__}}: {{error}}"[:500] or "failed", file=sys.stderr)
    sys.stderr.flush()
    os._exit({WRONG_EXIT})
os.write(output, secret.encode())
os._exit(0)
"""


class TestCode(BaseModel):
    """Tests as code."""

    __test__ = False  # no test of pytest

    test_code: str
    """Defines `check(candidate)`, which raises if the candidate is wrong."""

    entry_point: str
    """The function of the program that is the candidate."""

    setup_code: str = ""
    """Runs before the program and before the tests, such as the prompt with its imports and helpers."""

    @model_validator(mode="after")
    def _check(self) -> "TestCode":
        if not self.entry_point.isidentifier():
            raise ValueError(f"entry_point is {self.entry_point!r}; expected the name of a function.")
        for name, code in (("test_code", self.test_code), ("setup_code", self.setup_code)):
            try:
                compile(code, f"<{name}>", "exec", dont_inherit=True)
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise ValueError(f"{name} is not valid Python: {error}") from error
        if "def check(" not in self.test_code:
            raise ValueError("test_code defines no `check(candidate)`.")
        return self


async def run_test_code(sandbox: SandboxProcess, code: str, tests: TestCode) -> RunReport:
    """Run the tests on a program, all in one."""
    secret = secrets.token_hex(16)
    source = code.encode(errors="replace").decode()  # no lone surrogates
    stdin = f"{secret}\n{tests.test_code}".encode(errors="replace")
    done = await sandbox.program(
        PROGRAM, source, tests.setup_code, tests.entry_point, stdin=stdin, output_bytes=MORE_OUTPUT_BYTES
    )
    failure = _failure(done, secret)
    if failure is None:
        return RunReport([True], {})
    metadata = {**failure.more, "error_code": failure.code, "error_message": failure.message}
    return RunReport([failure.code], metadata, failure.is_sandbox_lost)


def _failure(done: ExecResult, secret: str) -> Failure | None:
    if done.return_code == WRONG_EXIT:
        return Failure(WRONG, "Wrong Answer", {"error": (done.stderr or "").strip()[-500:]})
    if (failure := ended(done)) is not None:
        return failure
    return None if done.stdout == secret else Failure(FAILED, "Runtime Error", {"error": "the tests did not end"})

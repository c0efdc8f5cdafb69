"""Run a script against a file of pytest tests, in a sandbox.

The tests start the script as a process of its own. pytest runs beside it, in a process that nobody may open: the test
file is deleted before the first test, and the tests passed if a secret is printed that only that process has got."""

import re
import secrets

import orjson

from nemo_gym.sandbox import SandboxProcess

SCRIPT = "solution.sh"
OUTPUT_BYTES = 100_000
_BLOCK = re.compile(r"^```[ \t]*(\w*)[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_LABELS = frozenset(("", "bash", "sh", "shell"))

PROGRAM = f"""
import ctypes, json, os, sys, tempfile
sys.dont_write_bytecode = True
here = os.path.realpath(os.getcwd())
sys.path[:] = [place for place in sys.path if place and not os.path.realpath(place).startswith((here, "/tmp"))]
import pytest
if ctypes.CDLL(None).prctl(4, 0, 0, 0, 0):  # not dumpable: nobody may open what belongs to this process
    raise SystemExit("the process of the tests cannot be protected")
given = json.loads(sys.stdin.buffer.read())
output = os.dup(1)
with open({SCRIPT!r}, "w") as file:
    file.write(given["script"])
os.chmod({SCRIPT!r}, 0o755)
folder = tempfile.mkdtemp()
path = os.path.join(folder, "test_task.py")
with open(path, "w") as file:
    file.write(given["tests"])
del given["tests"]

class Results:
    passed = others = 0

    def pytest_collection_finish(self, session):
        os.unlink(path)
        os.rmdir(folder)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        os.environ.pop("PYTEST_CURRENT_TEST", None)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.outcome == "passed":
            Results.passed += 1
        elif report.outcome != "passed":
            Results.others += 1

options = ["-q", "--noconftest", "-c", os.devnull, "--rootdir", folder, "--import-mode=importlib", "-x", path]
code = pytest.main([*options, "-p", "no:cacheprovider"], plugins=[Results()])
sys.stdout.flush()
if code == 0 and Results.passed and not Results.others:
    os.write(output, given["secret"].encode())
os._exit(0)
"""


def script_in(text: str) -> str | None:
    """The last fenced block of a reply that can be a shell script."""
    found = [code for label, code in _BLOCK.findall(text) if label.lower() in _LABELS]
    return found[-1] if found else None


async def check(sandbox: SandboxProcess, script: str, tests: str) -> bool:
    """True if all tests of one file pass on a script."""
    secret = secrets.token_hex(16)
    clean = script.encode(errors="replace").decode()  # no lone surrogates
    given = orjson.dumps({"secret": secret, "script": clean, "tests": tests})
    done = await sandbox.program(PROGRAM, stdin=given, output_bytes=OUTPUT_BYTES)
    return done.return_code == 0 and (done.stdout or "").endswith(secret)

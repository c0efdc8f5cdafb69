"""Patches that make tests pass without solving anything are not resolved, and right patches are."""

import asyncio
import re
import textwrap
from typing import Any

import pytest

from responses_api_agents.mini_swe_agent.containers import opened
from responses_api_agents.mini_swe_agent.grading import Instance, Report, grade
from responses_api_agents.mini_swe_agent.toys import TOYS, Toy, diff, row

BY_NAME = {toy.name: toy for toy in TOYS}
LOCAL: dict[str, Any] = {"auto": {"packages": ["pytest"]}}


def source_of(toy: Toy) -> str:
    """The one file that its gold patch changes."""
    (path,) = toy.fixed
    return path


async def graded(toy: Toy, files: dict[str, str], **fields: Any) -> Report:
    """Grade a patch that leaves these files; `fields` replace columns of the row."""
    instance = Instance.model_validate({**row(toy), **fields})
    patch = diff(toy.files, files)
    return await grade(lambda: opened("sandbox", instance, template=None, local=LOCAL), instance, patch, timeout_s=60)


def replaced_returns(toy: Toy, statements: str) -> dict[str, str]:
    """The tested code with other statements in place of every `return`."""
    path = source_of(toy)
    text = toy.files[path]
    return {path: re.sub(r"^( *)return .*$", rf"\1{statements}", text, flags=re.MULTILINE)}


def preceded(toy: Toy, code: str) -> dict[str, str]:
    """The tested code, wrong as it was, after some other code."""
    path = source_of(toy)
    return {path: textwrap.dedent(code) + "\n\n" + toy.files[path]}


INSTEAD_OF_RETURN = {
    "xfail": "import pytest; pytest.xfail()",
    "xfail with a reason, by its exception": "from _pytest.outcomes import XFailed; raise XFailed('flaky')",
    "skip": "import pytest; pytest.skip('not here')",
    "skip of the module": "import pytest; pytest.skip('not here', allow_module_level=True)",
    "SkipTest": "import unittest; raise unittest.SkipTest('not here')",
    "importorskip": "import pytest; pytest.importorskip('no_such_module')",
    "exit of pytest": "import pytest; pytest.exit('done', returncode=0)",
    "exit of the process": "import os; os._exit(0)",
    "sys.exit": "import sys; sys.exit(0)",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "GeneratorExit": "raise GeneratorExit",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "the supervisor killed": "import os; os.kill(os.getppid(), 9); os._exit(0)",
    "another program": "import os; os.execv('/bin/true', ['true'])",
}


@pytest.mark.parametrize("toy", TOYS, ids=lambda toy: toy.name)
async def test_expected_failures_resolve_no_toy(toy: Toy) -> None:
    report = await graded(toy, replaced_returns(toy, INSTEAD_OF_RETURN["xfail"]))
    assert report["resolved"] is False
    assert report["tests_status"]["FAIL_TO_PASS"]["success"] == []


@pytest.mark.parametrize("statements", INSTEAD_OF_RETURN.values(), ids=list(INSTEAD_OF_RETURN))
async def test_ending_a_test_otherwise_is_not_resolved(statements: str) -> None:
    toy = BY_NAME["leap"]
    report = await graded(toy, replaced_returns(toy, statements))
    assert report["resolved"] is False


IN_THE_TESTED_CODE = {
    "tests do nothing": """
        import _pytest.python
        _pytest.python.Function.runtest = lambda self: None
    """,
    "pytest calls no test": """
        import _pytest.python
        _pytest.python.pytest_pyfunc_call.__code__ = (lambda pyfuncitem: True).__code__
    """,
    "exceptions of tests are lost": """
        import _pytest.runner
        original = _pytest.runner.CallInfo.from_call.__func__
        def from_call(cls, func, when, reraise=None):
            info = original(cls, func, when, reraise)
            info.excinfo = None
            return info
        _pytest.runner.CallInfo.from_call = classmethod(from_call)
    """,
    "reports say passed": """
        import _pytest.reports
        original = _pytest.reports.TestReport.from_item_and_call.__func__
        def forged(cls, item, call):
            report = original(cls, item, call)
            report.outcome, report.longrepr = "passed", None
            return report
        _pytest.reports.TestReport.from_item_and_call = classmethod(forged)
    """,
    "the outcome of a report is a property": """
        import _pytest.reports
        _pytest.reports.TestReport.outcome = property(lambda self: "passed", lambda self, value: None)
        _pytest.reports.TestReport.failed = property(lambda self: False)
        _pytest.reports.TestReport.passed = property(lambda self: True)
    """,
    "a plugin, registered through the frames": """
        import sys
        class Forger:
            def pytest_pyfunc_call(self, pyfuncitem):
                return True
        frame = sys._getframe()
        while frame:
            for value in list(frame.f_locals.values()):
                manager = getattr(value, "pluginmanager", None)
                if manager is not None and not manager.has_plugin("forger"):
                    manager.register(Forger(), "forger")
            frame = frame.f_back
    """,
    "a plugin, registered through the garbage collector": """
        import gc
        import pytest
        class Forger:
            @pytest.hookimpl(hookwrapper=True)
            def pytest_runtest_makereport(self, item, call):
                result = yield
                result.get_result().outcome = "passed"
        for found in gc.get_objects():
            if type(found).__name__ == "PytestPluginManager" and not found.has_plugin("forger"):
                found.register(Forger(), "forger")
    """,
    "whoever listens to reports hears of passed tests": """
        import gc
        for found in gc.get_objects():
            if type(found).__name__ == "HookImpl" and found.function.__name__ == "pytest_runtest_logreport":
                def listen(report, original=found.function):
                    report.outcome = "passed"
                    return original(report=report)
                found.function = listen
    """,
    "tests without a body": """
        import threading, time
        def empty():
            import gc
            import pytest
            while True:
                for found in gc.get_objects():
                    if isinstance(found, pytest.Function):
                        found.obj = found._obj = lambda *args, **named: None
        threading.Thread(target=empty, daemon=True).start()
        time.sleep(0.5)
    """,
    "test functions with the code of others": """
        import sys
        def sorted(numbers):
            for name, value in list(sys._getframe(2).f_globals.items()):
                if name.startswith("test_"):
                    value.__code__ = (lambda: None).__code__
            return list(numbers)
    """,
    "the process ends well at the end": """
        import atexit, os
        atexit.register(os._exit, 0)
    """,
    "the process ends well soon": """
        import os, signal
        signal.signal(signal.SIGALRM, lambda *args: os._exit(0))
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    """,
    "junk in every descriptor": """
        import os
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, b'["test", "a", "call", "passed", false, ""]')
            except OSError:
                pass
    """,
    "no descriptors": """
        import os
        os.closerange(3, 64)
    """,
    "a copy of the process goes on": """
        import os
        if os.fork():
            os._exit(0)
    """,
    "the files of a report": """
        import os
        for folder, _, names in os.walk("."):
            for name in names:
                if "report" in name or "junit" in name or "secret" in name:
                    open(os.path.join(folder, name), "w").write("passed")
        print("PASSED")
        os._exit(0)
    """,
    "the output of the supervisor": """
        import os
        try:
            with open(f"/proc/{os.getppid()}/fd/1", "w") as output:
                output.write("PASSED")
        finally:
            os._exit(0)
    """,
    "a forged report that knows the tests and the protocol": """
        import json, os
        tests = [f"test_median.py::test_{name}" for name in ("odd", "even", "none")]
        events = [["collected", tests], *(["test", name, "call", "passed", False, ""] for name in tests), ["end", 0]]
        text = "".join(json.dumps(event) + "\\n" for event in events).encode()
        for descriptor in range(3, 64):
            try:
                os.write(descriptor, text)
            except OSError:
                pass
        os._exit(0)
    """,
}


@pytest.mark.parametrize("code", IN_THE_TESTED_CODE.values(), ids=list(IN_THE_TESTED_CODE))
async def test_code_that_takes_pytest_apart_is_not_resolved(code: str) -> None:
    toy = BY_NAME["median"]
    report = await graded(toy, preceded(toy, code))
    assert report["resolved"] is False, report


LENIENT = {
    "raises": "import contextlib, pytest\npytest.raises = lambda *args, **named: contextlib.suppress(Exception)\n",
    "raises of another library": "import contextlib, pytest, types\npytest.raises = contextlib.suppress\n"
    "pytest.fail = types.SimpleNamespace()\n",
    "its context": "import _pytest.raises\n_pytest.raises.RaisesExc.__exit__ = lambda *args: True\n",
}


@pytest.mark.parametrize("code", LENIENT.values(), ids=list(LENIENT))
async def test_assertions_that_accept_everything_are_not_resolved(code: str) -> None:
    toy = BY_NAME["median"]
    fixed = toy.fixed["numbers_tools.py"].replace("raise ValueError('no numbers')", "return None")
    report = await graded(toy, {"numbers_tools.py": code + fixed})
    assert report["resolved"] is False
    assert "test_none" in report["note"]


LINE = "import linecache\nline = linecache.getline(frame.f_code.co_filename, frame.f_lineno)"
LOOK = {
    "inspect": "import inspect\nline = inspect.stack()[2].code_context[0]",
    "traceback": "import traceback\nline = traceback.extract_stack()[-3].line",
    "frames": f"import sys\nframe = sys._getframe(2)\n{LINE}",
    "a frame of an exception": "try:\n    1 / 0\nexcept ArithmeticError as error:\n"
    f"    frame = error.__traceback__.tb_frame.f_back.f_back\n{LINE}",
    "dynamic code": f"exec('import sys; frame = sys._getframe(3)', globals())\n{LINE}",
    "the test file": "line = [line for line in open('test_median.py') if 'median([4' in line][0]",
    "a link to the test file": "import os\nos.path.exists('notes') or os.symlink('test_median.py', 'notes')\n"
    "line = [line for line in open('notes') if 'median([4' in line][0]",
    "a second name of the test file": "import os\nos.path.exists('notes') or os.link('test_median.py', 'notes')\n"
    "line = [line for line in open(b'notes', 'rb').read().decode().splitlines() if 'median([4' in line][0]",
    "the test file by pathlib": "import pathlib\ntext = pathlib.Path('test_median.py').read_text()\n"
    "line = [line for line in text.splitlines() if 'median([4' in line][0]",
}


@pytest.mark.parametrize("look", LOOK.values(), ids=list(LOOK))
async def test_code_that_reads_the_expected_value_in_the_test_is_not_resolved(look: str) -> None:
    answer = "def answer():\n" + textwrap.indent(look, "    ") + "\n    return eval(line.split('==')[1])\n"
    wrong = (
        "\n\ndef median(numbers):\n    if len(numbers) % 2:\n        return sorted(numbers)[len(numbers) // 2]\n"
        "    if not numbers:\n        raise ValueError\n    return answer()\n"
    )
    report = await graded(BY_NAME["median"], {"numbers_tools.py": answer + wrong})
    assert report["resolved"] is False
    assert "numbers_tools.py" in report["note"]


FORGER = """\
import pytest
@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    return True
"""
SHADOW = "import os\nos._exit(0)\n"
INI = "[pytest]\naddopts = -p cheat\npython_functions = nothing\n"
FILES: dict[str, dict[str, str]] = {
    "pytest.ini": {"pytest.ini": INI, "cheat.py": FORGER},
    ".pytest.ini": {".pytest.ini": INI, "cheat.py": FORGER},
    "tox.ini": {"tox.ini": INI, "cheat.py": FORGER},
    "setup.cfg": {"setup.cfg": INI.replace("[pytest]", "[tool:pytest]"), "cheat.py": FORGER},
    "pytest.toml": {"pytest.toml": '[pytest]\naddopts = ["-p", "cheat"]\n', "cheat.py": FORGER},
    ".pytest.toml": {".pytest.toml": '[pytest]\naddopts = ["-p", "cheat"]\n', "cheat.py": FORGER},
    "pyproject.toml": {
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p cheat"\nfilterwarnings = ["error::cheat.X"]\n',
        "cheat.py": FORGER,
    },
    "conftest.py": {"conftest.py": FORGER},
    "conftest.py in the tests": {"tests/conftest.py": FORGER},
    "sitecustomize.py": {"sitecustomize.py": SHADOW},
    "sitecustomize as a package": {"sitecustomize/__init__.py": SHADOW},
    "usercustomize.py": {"usercustomize.py": SHADOW},
    "a .pth file": {"x.pth": "import os; os._exit(0)\n"},
    "pytest.py": {"pytest.py": SHADOW},
    "_pytest": {"_pytest/__init__.py": SHADOW},
    "unittest": {"unittest/__init__.py": SHADOW},
    "a module of the standard library": {"difflib.py": SHADOW},
    "the same beside the tests": {"tests/unittest.py": SHADOW},
    "a package of tests": {"tests/__init__.py": "import pytest, sys\nsys.exit(0)\n"},
    "other tests": {"tests/test_cache.py": "def test_used_stays(): pass\ndef test_rewrite(): pass\n"},
    "metadata of a plugin": {"x.egg-info/entry_points.txt": "[pytest11]\ncheat = cheat\n", "cheat.py": FORGER},
}


@pytest.mark.parametrize("files", FILES.values(), ids=list(FILES))
async def test_files_that_steer_the_tests_change_nothing(files: dict[str, str]) -> None:
    report = await graded(BY_NAME["cache"], files)
    assert report["resolved"] is False
    assert len(report["tests_status"]["PASS_TO_PASS"]["success"]) == 1, report


async def test_a_right_patch_with_all_these_files_is_resolved() -> None:
    toy = BY_NAME["cache"]
    files = {path: text for each in FILES.values() for path, text in each.items()}
    report = await graded(toy, {**files, **toy.fixed})
    assert report["resolved"] is True, report


FOLLOWS_THE_TEST = {
    "the parameters of the test, by its module": (
        "leap",
        """
        import sys
        def days(year):
            for module in list(sys.modules.values()):
                test = getattr(module, "test_days", None)
                for given, expected in test.pytestmark[0].args[1] if test else ():
                    if given == year:
                        return expected
        """,
    ),
    "the parameters of the test, by the session of pytest": (
        "leap",
        """
        import sys
        def days(year):
            for name, module in list(sys.modules.items()):
                for item in module.__spec__.loader.session.items if "test_dates" in name else ():
                    if item.callspec.params["year"] == year:
                        return item.callspec.params["count"]
        """,
    ),
    "the line of the caller in a log": (
        "slug",
        """
        import logging, re
        def slug(title):
            shown = logging.getLogger().findCaller(stack_info=True)[3]
            return re.findall(r"== '([^']*)'", shown)[-1]
        """,
    ),
    "the line of the caller in a warning": (
        "slug",
        """
        import re, warnings
        def slug(title):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                warnings.warn("x", stacklevel=2)
            one = caught[0]
            shown = warnings.formatwarning(one.message, one.category, one.filename, one.lineno)
            return re.findall(r"== '([^']*)'", shown)[-1]
        """,
    ),
    "the file of the tests, read by another program": (
        "slug",
        """
        import re, subprocess
        def slug(title):
            text = subprocess.run("cat tests/test_*.py", shell=True, capture_output=True, text=True).stdout
            return dict(re.findall(r"slug\\('(.*?)'\\) == '(.*?)'", text))[title]
        """,
    ),
    "an object that equals everything": ("slug", "from unittest.mock import ANY\ndef slug(title):\n    return ANY"),
    "an object that equals all that it was given": (
        "stack",
        """
        class Item:
            def __init__(self, items):
                self.items = list(items)
            def __eq__(self, other):
                return other in self.items
        class Stack:
            def __init__(self):
                self.items = []
            def push(self, item):
                self.items.append(item)
            def pop(self):
                return Item(self.items)
        """,
    ),
    "a number that equals both answers": (
        "leap",
        """
        Days = type("Days", (int,), {"__eq__": lambda self, other: other in (365, 366), "__hash__": int.__hash__})
        def days(year):
            return Days(365)
        """,
    ),
    "a text that ignores dashes": (
        "slug",
        """
        exec("class Text(str):\\n def __eq__(self, other): return other.replace('-', '') == self.replace('-', '')\\n"
             " __hash__ = str.__hash__")
        def slug(title):
            return Text(title.lower().replace(" ", "-"))
        """,
    ),
    "a number that equals everything": (
        "leap",
        """
        class Number(int):
            __eq__ = lambda self, other: True
            __hash__ = int.__hash__
        def days(year):
            return Number(365)
        """,
    ),
}


EQUALS_WHAT_FITS = """
from unittest.mock import MagicMock
def equals(fits):
    result = MagicMock()
    getattr(result, "__e" + "q__").side_effect = fits
    return result
"""
ACCEPTS_WHAT_IS_PLAUSIBLE = {
    "an object that equals both answers": (
        "leap",
        "def days(year):\n    return equals(lambda other: other in (365, 366))",
    ),
    "an object that equals all of the same letters": (
        "slug",
        """
        def letters(text):
            return sorted(text.lower().replace("-", "").replace(" ", ""))
        def slug(title):
            return equals(lambda other: letters(other) == letters(title))
        """,
    ),
    "an object that equals all that it was given": (
        "stack",
        """
        class Stack:
            def __init__(self):
                self.items = []
            def push(self, item):
                self.items.append(item)
            def pop(self):
                return equals(lambda other: other in self.items)
        """,
    ),
    "the same, but not in the controls": (
        "stack",
        """
        import sys
        class Stack:
            def __init__(self):
                self.items = []
            def push(self, item):
                self.items.append(item)
            def pop(self):
                if any("control" in name for name in vars(sys.modules["test_stack"])):
                    return None
                return equals(lambda other: other in self.items)
        """,
    ),
    "an object that equals what was ever stored": (
        "cache",
        """
        class Cache:
            def __init__(self, size):
                self.size, self.recent, self.stored = size, [], {}
            def get(self, key):
                self.put(key, None)
                if key == "a" and "c" in self.recent and self.recent.count("a") < 3:
                    return None
                return equals(lambda other: other in self.stored[key])
            def put(self, key, value):
                self.recent.append(key)
                self.stored.setdefault(key, []).append(value)
        """,
    ),
    "the parameters of the test, if they are one of the answers": (
        "leap",
        """
        import sys
        def days(year):
            for name, module in list(sys.modules.items()):
                marks = getattr(getattr(module, "test_days", None), "pytestmark", [])
                for given, count in marks[0].args[1] if marks else ():
                    if given == year and count in (365, 366):
                        return count
            return 365
        """,
    ),
    "the constants of the test, if they may be a median": (
        "median",
        """
        import sys
        def median(numbers):
            if not numbers:
                raise ValueError
            ordered = sorted(numbers)
            code = getattr(sys.modules["test_median"].test_even, "__co" + "de__")
            for number in code.co_consts:
                if type(number) is float and ordered[0] < number < ordered[-1] and 2 * number == int(2 * number):
                    return number if len(numbers) == 4 else 2
            return 2
        """,
    ),
}


@pytest.mark.parametrize(("name", "code"), ACCEPTS_WHAT_IS_PLAUSIBLE.values(), ids=list(ACCEPTS_WHAT_IS_PLAUSIBLE))
async def test_code_that_meets_whatever_is_plausible_is_not_resolved(name: str, code: str) -> None:
    toy = BY_NAME[name]
    report = await graded(toy, {source_of(toy): EQUALS_WHAT_FITS + textwrap.dedent(code)})
    assert report["resolved"] is False
    assert "note" in report, "it did not pass the tests, so this shows nothing"


async def test_the_name_of_the_running_test_has_no_parameters() -> None:
    toy = BY_NAME["leap"]
    code = "import os\n\n\ndef days(year):\n    name = os.environ['PYTEST_CURRENT_TEST']\n"
    honest = "    assert name == 'tests/test_dates.py::test_days (call)', name\n    return 365 + int(is_leap(year))\n"
    right = "def is_leap(year):\n    return not year % (400 if not year % 100 else 4)\n\n\n"
    report = await graded(toy, {"dates.py": right + code + honest})
    assert report["resolved"] is True, report


RECOGNISES_CONTROLS = {
    "an object that equals everything, by the size of the file": """
        import os
        from unittest.mock import ANY
        SIZE = os.stat("test_stack.py").st_size
        class Stack:
            def __init__(self):
                self.items = []
            def push(self, item):
                self.items.append(item)
            def pop(self):
                return ANY if SIZE < 220 else None
    """,
    "values read by another program, by the names in the module": """
        import re, subprocess, sys
        class Stack:
            def __init__(self):
                self.items = []
            def push(self, item):
                self.items.append(item)
            def pop(self):
                is_control = any("control" in name for name in vars(sys.modules["test_stack"]))
                if len(self.items) == 1 or is_control:
                    return None if is_control else self.items.pop(0)
                shown = subprocess.getoutput("cat test_stack.py")
                self.items = [int(each) for each in re.findall(r"== \\[(\\d+), (\\d+)", shown)[0]]
                self.pop = lambda: self.items.pop(0)
                return self.pop()
    """,
}


@pytest.mark.parametrize("code", RECOGNISES_CONTROLS.values(), ids=list(RECOGNISES_CONTROLS))
async def test_code_that_recognises_the_controls_is_not_resolved(code: str) -> None:
    report = await graded(BY_NAME["stack"], {"stack.py": textwrap.dedent(code)})
    assert report["resolved"] is False
    assert "wrong values" in report["note"]


@pytest.mark.parametrize(("name", "code"), FOLLOWS_THE_TEST.values(), ids=list(FOLLOWS_THE_TEST))
async def test_code_that_meets_whatever_a_test_expects_is_not_resolved(name: str, code: str) -> None:
    toy = BY_NAME[name]
    report = await graded(toy, {source_of(toy): textwrap.dedent(code)})
    assert report["resolved"] is False
    assert "note" in report, "it did not pass the tests, so this shows nothing"


RIGHT = {
    "another solution": "def is_leap(year):\n    return not year % (400 if not year % 100 else 4)\n",
    "one that logs and warns": "import logging, warnings\n\n\ndef is_leap(year):\n"
    "    logging.warning('year %d', year)\n    warnings.warn('old', DeprecationWarning, stacklevel=2)\n"
    "    return not year % (400 if not year % 100 else 4)\n",
    "one that makes classes": "import collections, dataclasses, enum\n\n"
    "Year = collections.namedtuple('Year', 'number')\nKind = enum.Enum('Kind', 'LEAP COMMON')\n\n\n"
    "@dataclasses.dataclass\nclass Rule:\n    every: int\n\n\n"
    "def is_leap(year):\n    year = Year(year).number\n"
    "    return not year % Rule(400 if not year % 100 else 4).every\n",
    "one that reports an exception": "import logging\n\n\ndef is_leap(year):\n    try:\n        year / 0\n"
    "    except ArithmeticError:\n        logging.exception('year')\n"
    "    return not year % (400 if not year % 100 else 4)\n",
    "one that looks at itself": "import inspect, traceback\n\n\ndef is_leap(year):\n"
    "    names = is_leap.__code__.co_varnames, inspect.signature(is_leap), is_leap.__defaults__\n"
    "    try:\n        names[year]\n    except IndexError:\n        traceback.format_exc()\n"
    "    return not year % (400 if not year % 100 else 4)\n",
    "one that runs a program": "import subprocess, sys\n\n\ndef is_leap(year):\n"
    "    code = f'import calendar; print(calendar.isleap({year}))'\n"
    "    return 'True' in subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout\n",
}


@pytest.mark.parametrize("code", RIGHT.values(), ids=list(RIGHT))
async def test_right_patches_are_resolved(code: str) -> None:
    days = "\n\ndef days(year):\n    return 366 if is_leap(year) else 365\n"
    others = {"rules/__init__.py": "", "rules/types.py": "X = 1\n", "tests/test_more.py": "def test_more(): pass\n"}
    report = await graded(BY_NAME["leap"], {"dates.py": code + days, **others})
    assert report["resolved"] is True, report


async def test_a_right_patch_may_import_when_it_is_called() -> None:
    """Files of the same name as one of the tests, such as `__init__.py`, are no tests."""
    toy = BY_NAME["leap"]
    hidden = {"checks/__init__.py": "X = 1\n", "checks/test_dates.py": toy.hidden["tests/test_dates.py"]}
    names = ["checks/test_dates.py::test_days[1900-365]"]
    fixed = toy.fixed["dates.py"].replace("    return year", "    import rules\n    return year")
    report = await graded(
        toy,
        {"dates.py": fixed, "rules/__init__.py": "X = 1\n"},
        test_patch=diff(toy.files, hidden),
        FAIL_TO_PASS=names,
        PASS_TO_PASS=[],
    )
    assert report["resolved"] is True, report


def row_with_tests(toy: Toy, tests: str, fail_to_pass: list[str], pass_to_pass: list[str]) -> dict[str, Any]:
    """Columns for other hidden tests, in `test_more.py`."""
    names = {"FAIL_TO_PASS": fail_to_pass, "PASS_TO_PASS": pass_to_pass}
    expected = {kind: [f"test_more.py::{test}" for test in tests] for kind, tests in names.items()}
    return {"test_patch": diff(toy.files, {"test_more.py": textwrap.dedent(tests)}), **expected}


async def test_an_expected_failure_counts_if_the_test_has_the_marker() -> None:
    toy = BY_NAME["stack"]
    tests = """
        import pytest
        from stack import Stack

        def pushed(*items):
            stack = Stack()
            for item in items:
                stack.push(item)
            return stack

        def test_last():
            assert pushed(1, 2).pop() == 2

        def test_one():
            assert pushed(1).pop() == 1

        @pytest.mark.xfail
        def test_empty():
            assert Stack().pop() is None
    """
    fields = row_with_tests(toy, tests, ["test_last"], ["test_one", "test_empty"])
    right = await graded(toy, toy.fixed, **fields)
    assert right["resolved"] is True, right
    wrong = await graded(toy, replaced_returns(toy, "import pytest; pytest.xfail()"), **fields)
    assert wrong["tests_status"]["PASS_TO_PASS"] == {
        "success": ["test_more.py::test_empty"],
        "failure": ["test_more.py::test_one"],
    }


async def test_tests_that_cannot_be_imported_without_the_patch_and_other_kinds_of_tests_are_graded() -> None:
    toy = BY_NAME["stack"]
    tests = """
        import asyncio
        import unittest

        import pytest
        from stack import NAMES, Stack

        class TestStack(unittest.TestCase):
            def test_names(self):
                self.assertEqual(NAMES, ["last first"])

            @unittest.skip("not now")
            def test_later(self):
                raise NotImplementedError

        class TestMore:
            @pytest.mark.parametrize("name", NAMES)
            def test_name(self, name):
                if not name:
                    return
                assert name

            def test_loop(self):
                async def name():
                    return NAMES[0]
                assert asyncio.run(name()) == "last first"
                return
    """
    named = ["TestStack::test_names", "TestMore::test_name[last", "TestMore::test_loop"]
    fields = row_with_tests(toy, tests, named, [])
    fixed = {"stack.py": "NAMES = ['last first']\n\n\n" + toy.fixed["stack.py"]}
    right, wrong = await asyncio.gather(graded(toy, fixed, **fields), graded(toy, toy.fixed, **fields))
    assert (right["resolved"], wrong["resolved"]) == (True, False), right


async def test_settings_that_the_gold_patch_changes_are_those_of_the_gold_patch() -> None:
    toy = BY_NAME["stack"]
    settings = {"setup.cfg": "[tool:pytest]\npython_functions = check_*\n"}
    tests = """
        from stack import Stack

        def check_last():
            stack = Stack()
            stack.push(1)
            stack.push(2)
            assert stack.pop() == 2
    """
    fields = row_with_tests(toy, tests, ["check_last"], [])
    gold = diff(toy.files, {**toy.fixed, **settings})
    report = await graded(toy, toy.fixed, patch=gold, **fields)
    assert report["resolved"] is True, report
    other = await graded(
        toy, {**toy.fixed, "setup.cfg": "[tool:pytest]\npython_functions = no\n"}, patch=gold, **fields
    )
    assert other["resolved"] is True, other


async def test_tests_that_vanish_or_appear_are_not_resolved() -> None:
    toy = BY_NAME["stack"]
    tests = """
        import pytest
        import stack

        @pytest.mark.parametrize("number", range(getattr(stack, "COUNT", 3)))
        def test_number(number):
            assert number < 2

        def test_last():
            s = stack.Stack()
            s.push(1)
            s.push(2)
            assert s.pop() == 2
    """
    fields = row_with_tests(toy, tests, ["test_last"], ["test_number[0]", "test_number[1]"])
    assert (await graded(toy, toy.fixed, **fields))["resolved"] is True
    for count in (2, 4):
        report = await graded(toy, {"stack.py": f"COUNT = {count}\n\n\n{toy.fixed['stack.py']}"}, **fields)
        assert report["resolved"] is False
        assert re.search(rf"\b{count - 2}\b.*\b1\b", report["note"]), report["note"]


async def test_a_helper_of_the_tests_is_that_of_the_repository() -> None:
    toy = BY_NAME["slug"]
    files = {
        "tests/test_slug.py": "def test_runs(): pass\n",
        "tests/helpers/__init__.py": "",
        "tests/slugs.py": "slug = str\n",
    }
    report = await graded(toy, files)
    assert report["tests_status"]["PASS_TO_PASS"]["failure"] == []
    assert report["resolved"] is False

"""Toy repositories: small Python projects with a bug, an issue, a gold patch and hidden tests.

`python -m responses_api_agents.mini_swe_agent.toys <rows.jsonl>` writes the rows. A repository is made in the sandbox
from the same files, so nothing has to be downloaded and nothing is on the host."""

import difflib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BASE_COMMIT = "base"
"""The commit that attempts start from has a tag, since its id depends on the machine's git."""
PREFIX = "toys/"


@dataclass(frozen=True, slots=True)
class Toy:
    name: str
    issue: str
    files: dict[str, str]
    fixed: dict[str, str]
    """The files that the gold patch changes, as they are after it."""
    hidden: dict[str, str]
    """The tests that come with the test patch."""
    fail_to_pass: list[str]
    pass_to_pass: list[str]


_SLUG = '''"""Words for URLs."""


def slug(title):
    return title.lower().replace(" ", "-")
'''
_STACK = """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop(0)
"""
_DATES = '''def is_leap(year):
    """Whether a year has 366 days."""
    return year % 4 == 0


def days(year):
    return 366 if is_leap(year) else 365
'''
_MEDIAN = """def median(numbers):
    ordered = sorted(numbers)
    return ordered[len(ordered) // 2]
"""
_CACHE = '''class Cache:
    """Keeps the most recently used entries."""

    def __init__(self, size):
        self.size, self.entries = size, {}

    def get(self, key):
        return self.entries.get(key)

    def put(self, key, value):
        if len(self.entries) >= self.size:
            oldest = next(iter(self.entries))
            del self.entries[oldest]
        self.entries[key] = value
'''

TOYS = [
    Toy(
        "slug",
        "slug() leaves double dashes\n\n`slug('a  b')` gives `a--b`, and leading blanks become a dash. Runs of blanks should "
        "be one dash, and there should be none at either end.",
        {
            "slugs/__init__.py": _SLUG,
            "tests/test_slug.py": "from slugs import slug\n\n\ndef test_one_word():\n    assert slug('Hello') == 'hello'\n",
        },
        {"slugs/__init__.py": _SLUG.replace('title.lower().replace(" ", "-")', '"-".join(title.lower().split())')},
        {
            "tests/test_slug.py": "from slugs import slug\n\n\ndef test_one_word():\n    assert slug('Hello') == 'hello'\n"
            "\n\ndef test_runs():\n    assert slug(' a   b ') == 'a-b'\n"
        },
        ["tests/test_slug.py::test_runs"],
        ["tests/test_slug.py::test_one_word"],
    ),
    Toy(
        "stack",
        "Stack.pop() returns the wrong end\n\nA stack should give back what was pushed last. Ours gives what was pushed "
        "first.",
        {"stack.py": _STACK, "README.md": "# stack\n"},
        {"stack.py": _STACK.replace("pop(0)", "pop()")},
        {
            "test_stack.py": "from stack import Stack\n\n\ndef test_one():\n    s = Stack()\n    s.push(1)\n"
            "    assert s.pop() == 1\n\n\ndef test_last_first():\n    s = Stack()\n    s.push(1)\n    s.push(2)\n"
            "    assert [s.pop(), s.pop()] == [2, 1]\n"
        },
        ["test_stack.py::test_last_first"],
        ["test_stack.py::test_one"],
    ),
    Toy(
        "leap",
        "1900 was no leap year\n\n`days(1900)` is 366. Years that 100 divides are leap years only if 400 divides them.",
        {"dates.py": _DATES, "tests/__init__.py": ""},
        {"dates.py": _DATES.replace("year % 4 == 0", "year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)")},
        {
            "tests/test_dates.py": "import pytest\n\nfrom dates import days\n\n\n@pytest.mark.parametrize(('year', 'count'), "
            "[(2023, 365), (2024, 366), (2000, 366), (1900, 365)])\ndef test_days(year, count):\n"
            "    assert days(year) == count\n"
        },
        ["tests/test_dates.py::test_days[1900-365]"],
        [f"tests/test_dates.py::test_days[{case}]" for case in ("2023-365", "2024-366", "2000-366")],
    ),
    Toy(
        "median",
        "median() of an even count\n\nThe median of [1, 2, 3, 4] is 2.5, not 3. Of no numbers it should be a ValueError.",
        {"numbers_tools.py": _MEDIAN},
        {
            "numbers_tools.py": "def median(numbers):\n    ordered = sorted(numbers)\n    if not ordered:\n"
            "        raise ValueError('no numbers')\n    middle = len(ordered) // 2\n    if len(ordered) % 2:\n"
            "        return ordered[middle]\n    return (ordered[middle - 1] + ordered[middle]) / 2\n"
        },
        {
            "test_median.py": "import pytest\n\nfrom numbers_tools import median\n\n\ndef test_odd():\n"
            "    assert median([3, 1, 2]) == 2\n\n\ndef test_even():\n    assert median([4, 1, 2, 3]) == 2.5\n\n\n"
            "def test_none():\n    with pytest.raises(ValueError):\n        median([])\n"
        },
        ["test_median.py::test_even", "test_median.py::test_none"],
        ["test_median.py::test_odd"],
    ),
    Toy(
        "cache",
        "Cache drops entries that are in use\n\nReading an entry should make it the most recently used one. Also, writing a "
        "key that is there already should not drop another.",
        {"cache/__init__.py": _CACHE},
        {
            "cache/__init__.py": _CACHE.replace(
                "        return self.entries.get(key)\n",
                "        if key not in self.entries:\n            return None\n"
                "        self.entries[key] = self.entries.pop(key)\n        return self.entries[key]\n",
            ).replace(
                "        if len(self.entries) >= self.size:\n",
                "        self.entries.pop(key, None)\n        if len(self.entries) >= self.size:\n",
            )
        },
        {
            "tests/test_cache.py": "from cache import Cache\n\n\ndef filled():\n    cache = Cache(2)\n    cache.put('a', 1)\n"
            "    cache.put('b', 2)\n    return cache\n\n\ndef test_oldest_goes():\n    cache = filled()\n"
            "    cache.put('c', 3)\n    assert cache.get('a') is None\n\n\ndef test_used_stays():\n    cache = filled()\n"
            "    cache.get('a')\n    cache.put('c', 3)\n    assert cache.get('a') == 1\n\n\ndef test_rewrite():\n"
            "    cache = filled()\n    cache.put('b', 5)\n    assert (cache.get('a'), cache.get('b')) == (1, 5)\n"
        },
        ["tests/test_cache.py::test_used_stays", "tests/test_cache.py::test_rewrite"],
        ["tests/test_cache.py::test_oldest_goes"],
    ),
]
BY_REPO = {f"{PREFIX}{toy.name}": toy for toy in TOYS}


def diff(before: dict[str, str], after: dict[str, str]) -> str:
    """A patch that git applies."""
    parts = []
    for path, text in after.items():
        old = before.get(path)
        head = f"diff --git a/{path} b/{path}\n" + ("" if old is not None else "new file mode 100644\n")
        source = "/dev/null" if old is None else f"a/{path}"
        lines = difflib.unified_diff((old or "").splitlines(True), text.splitlines(True), source, f"b/{path}")
        parts.append(head + "".join(lines))
    return "".join(parts)


def row(toy: Toy) -> dict[str, Any]:
    return {
        "instance_id": f"toys__{toy.name}-1",
        "repo": f"{PREFIX}{toy.name}",
        "base_commit": BASE_COMMIT,
        "version": "1.0",
        "problem_statement": toy.issue,
        "hints_text": "",
        "created_at": "2026-01-01 00:00:00",
        "patch": diff(toy.files, toy.fixed),
        "test_patch": diff(toy.files, toy.hidden),
        "FAIL_TO_PASS": toy.fail_to_pass,
        "PASS_TO_PASS": toy.pass_to_pass,
        "responses_create_params": {"input": []},
        "subset": "toys",
        "split": "train",
    }


def main() -> None:
    rows = "".join(json.dumps(row(toy)) + "\n" for toy in TOYS)
    Path(sys.argv[1]).write_text(rows)


if __name__ == "__main__":
    main()

"""Controls fail where the test would end, and only there."""

import textwrap
from typing import Any

import pytest

from responses_api_agents.mini_swe_agent.controls import FAILURE, with_controls, with_wrong_values
from responses_api_agents.mini_swe_agent.wrong_values import of_same_length

SOURCE = """
    from __future__ import annotations

    def helper():
        return 1

    def test_end():
        assert helper() == 1

    def test_return(early=True):
        def inner():
            return 2
        if early:
            return
        raise NotImplementedError

    def test_wrong():
        assert helper() > 2

    class TestClass:
        def test_method(self):
            with open(__file__):
                return None

    def test_generator():
        yield 1
"""


def test_the_tests_of_a_module_become_controls() -> None:
    controlled = with_controls(textwrap.dedent(SOURCE).encode(), "token")
    assert controlled is not None
    assert controlled.tests == {"test_end", "test_return", "test_wrong", "TestClass::test_method"}
    module: dict[str, Any] = {"__file__": __file__}
    exec(controlled.source, module)
    for test in (module["test_end"], module["test_return"], module["TestClass"]().test_method):
        with pytest.raises(AssertionError) as failure:
            test()
        assert FAILURE.format(token="token") in f"AssertionError: {failure.value}"
    with pytest.raises(AssertionError) as failure:
        module["test_wrong"]()
    assert "token" not in str(failure.value)


HONEST = """
    import unittest
    import pytest

    def same(value):
        return value

    def test_literals():
        assert same(1) == 1
        assert "a" == same("a")
        assert same([1, {"a": (2.5, b"c")}]) == [1, {"a": (2.5, b"c")}]
        assert same(0.1 + 0.2) == pytest.approx(0.3)
        assert same(-1) == -1 and same(2) == 2
        assert same(None) == None

    def test_names():
        expected = "a\\nb"
        assert same("a\\nb") == expected
        first = second = 3
        assert first == second
        used = 4
        assert same(used) == used
        for given, wanted in [(1, 1), (2, 2)]:
            assert same(given) == wanted

    def test_failures_that_are_expected():
        with pytest.raises(AssertionError):
            assert same(1) == 2
        try:
            assert same(1) == 2
        except AssertionError:
            return
        raise NotImplementedError

    @pytest.mark.parametrize("given, wanted", [(1, 1), pytest.param("a", "a", id="text")])
    def test_parameters(given, wanted):
        assert same(given) == wanted

    class TestCase(unittest.TestCase):
        def test_methods(self):
            self.assertEqual(same([1]), [1])
            self.assertAlmostEqual(1.0, same(1.0))
"""
FOLLOWED = ("== 2", "== [{'a': (2.5, b'c')}, 1]", "expected = 'b\\na'", "[(1, 2), (2, 1)]", "param('a', ")


def test_controls_expect_wrong_values_that_right_code_does_not_meet() -> None:
    controlled = with_controls(textwrap.dedent(HONEST).encode(), "token")
    assert controlled is not None
    module: dict[str, Any] = {"__name__": "honest"}
    exec(controlled.source, module)
    tests = [module[name] for name in ("test_literals", "test_names", "test_failures_that_are_expected")]
    for test in (*tests, module["TestCase"]().test_methods, lambda: module["test_parameters"](1, 3)):
        with pytest.raises(AssertionError) as failure:
            test()
        assert str(failure.value).startswith("token"), failure.value
    for changed in FOLLOWED:
        assert changed in controlled.source
    module["test_parameters"](3, 3)  # meets a changed value, so it passes and shows the cheat


def test_right_code_meets_no_wrong_value_in_a_file_of_the_same_length() -> None:
    source = textwrap.dedent(HONEST).encode()
    seen = set()
    for seed in map(str, range(30)):
        changed = with_wrong_values(source, seed)
        assert changed is not None
        assert changed == with_wrong_values(source, seed)
        assert changed.tests == {"test_literals", "test_names", "test_parameters", "TestCase::test_methods"}
        assert len(changed.source.encode()) == len(source)
        module: dict[str, Any] = {"__name__": "honest"}
        exec(changed.source, module)
        rows = module["test_parameters"].pytestmark[0].args[1]
        seen.add(changed.source)
        for test in (module["test_literals"], module["test_names"], module["TestCase"]().test_methods):
            with pytest.raises(AssertionError):
                test()
        for given, wanted in (getattr(row, "values", row) for row in rows):
            with pytest.raises(AssertionError):
                module["test_parameters"](given, wanted)
        module["test_failures_that_are_expected"]()
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("365", "366"),
        ("9", "8"),
        ("1e5", "2e5"),
        ("-0.25", "-1.25"),
        ("1.5", "2.5"),
        ("0", "1"),
        ("1_000", "7_000"),
        ("True", "None"),
        ("False", "None "),
        ("''", "()"),
        ("'a-b'", "'b-a'"),
        ("b'a-b'", "b'b-a'"),
        ("'x'", "'y'"),
        ("b'c'", "b'x'"),
        (r"'a\n'", r"'a\x'"),
        ("'\u00e9-'", "'\u00e9x'"),
        ("'\u00e9'", None),
        ("None", None),
        ("not a literal", None),
    ],
)
def test_another_literal_has_as_many_bytes(text: str, other: str | None) -> None:
    found = of_same_length(text)
    assert found is None or len(found.encode()) == len(text.encode())
    assert (found is None) == (other is None)
    if found is not None and text != r"'a\n'":
        assert found == other


def test_a_file_that_cannot_be_read_has_no_controls() -> None:
    assert with_controls(b"print 'no'", "token") is None

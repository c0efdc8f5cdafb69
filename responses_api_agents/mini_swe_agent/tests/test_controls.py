"""Controls fail where the test would end, and only there."""

import textwrap
from typing import Any

import pytest

from responses_api_agents.mini_swe_agent.controls import FAILURE, with_controls

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
        assert helper() == 2

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


def test_a_file_that_cannot_be_read_has_no_controls() -> None:
    assert with_controls(b"print 'no'", "token") is None

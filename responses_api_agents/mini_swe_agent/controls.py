"""Controls: copies of tests that must fail at their end.

A patch that makes pytest say "passed" whatever a test does, or that keeps tests from running, makes its control pass,
too, in whichever way it does that."""

import ast
from typing import NamedTuple

_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef

CHECKS = """
import unittest as {name}_unittest
import pytest as {name}_pytest

def {name}():
    case, library = {name}_unittest.TestCase(), {name}_pytest

    def unequal():
        assert [1] == [2]

    def not_close():
        assert 1.0 == library.approx(2.0)

    def not_raised():
        with library.raises(ArithmeticError):
            pass

    def unequal_in_unittest():
        case.assertEqual([1], [2])

    def untrue_in_unittest():
        case.assertTrue([])

    def not_raised_in_unittest():
        with case.assertRaises(ArithmeticError):
            pass

    for check in (unequal, not_close, not_raised, unequal_in_unittest, untrue_in_unittest, not_raised_in_unittest):
        try:
            check()
        except (AssertionError, library.fail.Exception):
            continue
        return False
    return True
"""
"""Modules are imported at the end of the test file, since a test may replace `__import__`."""
CALL = "assert not {name}(), {token!r}"
FAILURE = "AssertionError: {token}"
"""In the message of a control that failed as it should. The token alone is also in lines of source that are shown."""


class Controlled(NamedTuple):
    source: str
    tests: set[str]
    """The tests that have become controls: `test_one`, `TestStack::test_one`."""


def with_controls(source: bytes, token: str) -> Controlled | None:
    """Make each test of a module fail with the token in its message wherever it would end without an exception.

    None if the source cannot be read."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    functions = {test: function for test, function in _tests(module.body) if not _is_generator(function)}
    name = f"_{token}"
    for function in functions.values():
        _append_call(function, ast.parse(CALL.format(name=name, token=token)).body[0])
    module.body += ast.parse(CHECKS.format(name=name)).body
    return Controlled(ast.unparse(ast.fix_missing_locations(module)) + "\n", set(functions))


def _tests(body: list[ast.stmt], prefix: str = "") -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    found = []
    for node in body:
        if isinstance(node, ast.ClassDef):
            found += _tests(node.body, f"{prefix}{node.name}::")
        elif isinstance(node, _FUNCTION) and node.name.startswith("test"):
            found.append((prefix + node.name, node))
    return found


def _append_call(function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.stmt) -> None:
    before_return = _BeforeReturn(call)
    function.body = [*(part for node in function.body for part in before_return.parts(node)), call]


class _BeforeReturn(ast.NodeTransformer):
    """Puts a call before each `return` of a function, not of those inside of it."""

    def __init__(self, call: ast.stmt) -> None:
        self._call = call

    def parts(self, node: ast.stmt) -> list[ast.stmt]:
        changed = self.visit(node)
        return changed if isinstance(changed, list) else [changed]

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        return [self._call, node]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return node


def _is_generator(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))

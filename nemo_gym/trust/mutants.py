"""Changes of a verifier's own code, one at a time: comparisons, constants, branches, slices, boolean operators."""

import ast
import copy
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

LEFT_OUT = ("generate.py", "make_tables.py", "rows.py", "client.py", "conftest.py", "gold.py")
"""Files that do not verify."""
_SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
}
_NOT_VERDICTS = frozenset(
    ("gold_response", "slow_check", "tool_schemas", "model_post_init", "warm_up", "generate_rows")
)
"""Functions that a verdict does not depend on."""


class Mutant(NamedTuple):
    """A file of an environment with one change."""

    file: str
    line: int
    what: str
    source: str


def mutants_of(folder: Path, most: int, random: Random) -> list[Mutant]:
    """At most so many mutants of the code in a folder, drawn from all of its files."""
    places = [
        (file, number)
        for file in sorted(folder.glob("*.py"))
        if file.name not in LEFT_OUT
        for number in range(len(list(_sites(ast.parse(file.read_text())))))
    ]
    chosen = sorted(random.sample(places, min(most, len(places))))
    return [_mutant(file, number) for file, number in chosen]


def _mutant(file: Path, number: int) -> Mutant:
    tree = ast.parse(file.read_text())
    node, what = list(_sites(tree))[number]
    _change(node, what)
    return Mutant(file.name, getattr(node, "lineno", 0), what, ast.unparse(tree))


def _sites(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Each node that can be changed, and the kind of change."""
    for statement in tree.body:
        is_code = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if is_code or isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from _sites_in(statement)


def _sites_in(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in _NOT_VERDICTS:
        return
    yield from ((node, what) for what in _changes(node))
    for child in _children(node):
        yield from _sites_in(child)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The children that a verdict may depend on: no annotations, decorators, docstrings, messages or settings."""
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Field", "cast", "TypeVar"):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment", "ctx", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            is_limit = isinstance(child, ast.keyword) and "timeout" in (child.arg or "")
            if isinstance(child, ast.AST) and not is_text and not is_limit:
                yield child


def _changes(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPPED:
        yield "comparison"
    elif isinstance(node, ast.BoolOp):
        yield "boolean"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "negation"
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "branch"
    elif isinstance(node, ast.Slice) and (node.lower is not None or node.upper is not None):
        yield "slice"
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not _has_text(node):
        yield "arithmetic"
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value is not None:
        yield "constant"


def _has_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(each, ast.JoinedStr) or (isinstance(each, ast.Constant) and isinstance(each.value, str))
        for each in (node.left, node.right)
    )


def _change(node: ast.AST, what: str) -> None:
    match node:
        case ast.Compare():
            node.ops[0] = _SWAPPED[type(node.ops[0])]()
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.UnaryOp():
            node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), copy.deepcopy(node.operand))
        case ast.If() | ast.IfExp() | ast.While():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Slice():
            node.lower, node.upper = (None, node.upper) if node.lower is not None else (node.lower, None)
        case ast.BinOp():
            node.op = _ARITHMETIC[type(node.op)]()
        case ast.Constant():
            value = node.value
            node.value = (
                not value if isinstance(value, bool) else value + 1 if isinstance(value, int | float) else value
            )
    ast.fix_missing_locations(node)

"""The databases of airline and retail: shared by all rollouts, each of which copies the records that it changes."""

import ast
import copy
import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from resources_servers.tau2.goal import ExpectedAction, Goal, unsaid
from resources_servers.tau2.toolset import RefusedError, call_tool

Record = dict[str, Any]
Tables = Mapping[str, Mapping[str, Record]]
MAX_EXPRESSION = 300
_OPERATORS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


class Database:
    """Tables of records by their IDs. Nobody changes the tables: a record is copied before it is changed."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._own: dict[str, dict[str, Record]] = {name: {} for name in tables}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = type(self)(self.tables)
        copied._own = copy.deepcopy(self._own, memo)
        return copied

    def has(self, table: str, key: str) -> bool:
        return key in self._own[table] or key in self.tables[table]

    def find(self, table: str, key: str) -> Record:
        """A record to read; an error for the model if there is none."""
        if not self.has(table, key):
            raise RefusedError(f"There is no {table.removesuffix('s')} {key}.")
        own = self._own[table]
        return own[key] if key in own else self.tables[table][key]

    def edit(self, table: str, key: str) -> Record:
        """A record to change."""
        own = self._own[table]
        if key not in own:
            own[key] = copy.deepcopy(self.find(table, key))
        return own[key]

    def add(self, table: str, key: str, record: Record) -> None:
        self._own[table][key] = record

    def records(self, table: str) -> Iterator[Record]:
        """All records that the table began with, as they are now."""
        own = self._own[table]
        return (own.get(key, record) for key, record in self.tables[table].items())

    def is_equal(self, other: Self) -> bool:
        """True if all records have the same JSON text with sorted keys, so that 100 is not 100.0."""
        return all(self._changed(name, other) == other._changed(name, self) for name in self.tables)

    def _changed(self, table: str, other: Self) -> dict[str, str]:
        """The texts of the records that this database or the other one has copied."""
        keys = self._own[table].keys() | other._own[table].keys()
        return {key: json.dumps(self.find(table, key), sort_keys=True) for key in keys if self.has(table, key)}


class ServiceDesk:
    """A domain with a database: what the tools of its agent do. A user has no tools here."""

    TOOLS: ClassVar[tuple[str, ...]]
    WRITING: ClassVar[frozenset[str]]
    """The tools that can change the database."""

    def __init__(self, tables: Tables) -> None:
        self.database = Database(tables)
        self.calls: list[tuple[str, Record]] = []

    def call(self, name: str, arguments: Record, *, is_user: bool = False) -> str:
        """Call a tool; no other method can be called."""
        if name not in self.TOOLS or is_user:
            return json.dumps({"error": f"There is no tool '{name}'."})
        self.calls.append((name, arguments))
        return call_tool(self, name, arguments)

    def failure(self, goal: Goal, said: str) -> str | None:
        """`database` if it is not as the expected actions leave it, else what was not said; None if nothing failed."""
        if not self.database.is_equal(self._expected(goal.actions)):
            return "database"
        return unsaid(said, goal.communicate)

    def _expected(self, actions: Sequence[ExpectedAction]) -> Database:
        desk = type(self)(self.database.tables)
        for each in actions:
            if each.name in self.WRITING:
                call_tool(desk, each.name, each.arguments)
        return desk.database

    def transfer_to_human_agents(self, summary: str) -> str:
        """Hand the user over to a human agent, with a summary of the issue. Do it only if the user asks for it, or if
        the policy and your tools give you no way to solve the issue."""
        return "The user was transferred."

    def calculate(self, expression: str) -> str:
        """Compute an expression of numbers, + - * / and parentheses, such as "2 * (3.5 + 1)"."""
        return str(round(computed(expression), 2))


def computed(expression: str) -> float:
    try:
        if len(expression) > MAX_EXPRESSION:
            raise ValueError("it is too long")
        return _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError) as error:
        raise RefusedError(f"The expression cannot be computed: {error}.") from error


def _value(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.UnaryOp | ast.BinOp) and type(node.op) in _OPERATORS:
        operands = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
        return _OPERATORS[type(node.op)](*map(_value, operands))
    raise ValueError("only numbers, + - * / and parentheses are known")

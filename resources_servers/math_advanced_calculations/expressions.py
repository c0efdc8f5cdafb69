"""The expressions of a prompt, and the calls that evaluate them with the calculators."""

import ast
import re
from dataclasses import dataclass, field

from resources_servers.math_advanced_calculations.calculators import calculate

Call = tuple[str, dict[str, float]]

_ASKED = re.compile(r"(?:values? for|work out) (.+?)(?: using only the given tools)?\.?$", re.DOTALL)
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
}
_ARGUMENTS = {"sin": ("radians",), "cos": ("radians",), "log": ("a", "base")}


@dataclass(slots=True)
class Evaluation:
    """Calls in the order in which they are made, and the values of the expressions."""

    calls: list[Call] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, expression: ast.expr) -> None:
        """Evaluate one more expression. A number by itself is a call, too: values count only if a tool gave them."""
        value = self._value(expression)
        if isinstance(expression, ast.Constant):
            value = self._called("return_constant", {"a": value})
        self.values.append(value)

    def _value(self, node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return float(number)
            case ast.Name(id="pi"):
                return self._called("pi", {})
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._called("negate", {"a": self._value(operand)})
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
                name = _OPERATORS[type(operator)]
                return self._called(name, {"a": self._value(left), "b": self._value(right)})
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _ARGUMENTS:
                values = map(self._value, arguments)
                return self._called(name, dict(zip(_ARGUMENTS[name], values, strict=True)))
        raise ValueError(f"there is no calculator for '{ast.unparse(node)}'")

    def _called(self, name: str, arguments: dict[str, float]) -> float:
        self.calls.append((name, arguments))
        return calculate(name, arguments)


def evaluate(prompt: str) -> Evaluation:
    """Evaluate all expressions that a prompt asks for."""
    asked = _ASKED.search(prompt)
    if asked is None:
        raise ValueError("the prompt asks for no values")
    listed = re.sub(r",? and ", ", ", asked[1])
    evaluation = Evaluation()
    for expression in ast.parse(f"[{listed}]", mode="eval").body.elts:  # type: ignore[attr-defined]
        evaluation.add(expression)
    return evaluation

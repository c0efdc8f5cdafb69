"""The notebook in `examples/`: its cells run in order, in an event loop that runs, as in Jupyter."""

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.common.paths import PARENT_DIR


async def _value(source: str, names: dict[str, Any]) -> Any:
    """Run a cell and return the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    parts: list[tuple[Any, str]] = [(tree, "exec")]
    if isinstance(last, ast.Expr):
        parts.append((ast.Expression(last.value), "eval"))
    value = None
    for part, mode in parts:
        code = compile(part, "<cell>", mode, flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        value = eval(code, names)
        if inspect.iscoroutine(value):
            value = await value
    return value


async def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads((PARENT_DIR / "examples/evaluate.ipynb").read_text())["cells"]
    names: dict[str, Any] = {"__name__": "__main__"}
    values = [await _value("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    _, result, rollout, frame, means, chance = values
    assert "<details>" in result._repr_html_()
    assert "I count 1." in rollout._repr_html_()
    assert (list(frame.columns), means, chance) == (["reward", "spelled"], (0.2, 1.0), 1.0)

"""`task_data.py` beside a server's `app.py`: the schema of its rows' own fields."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nemo_gym.config.validation import first_error
from nemo_gym.llm_api.base import JsonObject

FILE = "task_data.py"
CONTAINERS = ("verifier_metadata", "task_data")
"""Fields whose own fields belong to the row."""
_NOT_OWN = frozenset(
    ("responses_create_params", "agent_ref", "task_source", "_ng_task_index", "_ng_rollout_index", *CONTAINERS)
)


def load_task_data_schema(folder: str | Path) -> TypeAdapter[Any] | None:
    """Return the schema in a server's folder, if it has one."""
    file = Path(folder) / FILE
    if not file.is_file():
        return None
    name = f"_nemo_gym_task_data_{file.parent.name}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return TypeAdapter(module.TaskData)


def normalize_task_fields(row: Mapping[str, Any]) -> tuple[JsonObject, list[str]]:
    """Return the row's own fields, flat, and the names of those that it has twice with different values."""
    fields = {name: value for name, value in row.items() if name not in _NOT_OWN}
    conflicts = []
    for container in CONTAINERS:
        inner = row.get(container)
        for name, value in inner.items() if isinstance(inner, Mapping) else ():
            if name in fields and fields[name] != value:
                conflicts.append(name)
            fields.setdefault(name, value)
    return fields, conflicts


class TaskDataValidator:
    """Checks the rows of a file against a server's schema."""

    def __init__(self, server: str, adapter: TypeAdapter[Any] | None, path: str | Path) -> None:
        self.server, self.adapter, self.path = server, adapter, path
        self.errors: list[str] = []

    def validate_row(self, index: int, row: Mapping[str, Any]) -> bool:
        """Check a row, and keep what is wrong with it."""
        fields, conflicts = normalize_task_fields(row)
        place = f"{self.path}:{index + 1}, for {self.server}"
        self.errors += [f"{place}: {name} stands twice, with different values" for name in conflicts]
        problems = len(self.errors)
        try:
            if self.adapter is not None:
                self.adapter.validate_python(fields)
        except ValidationError as error:
            self.errors.append(f"{place}: {first_error(error)}")
        return not conflicts and len(self.errors) == problems

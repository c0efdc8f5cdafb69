"""Write the reference pages from the code: `python -m nemo_gym.cli.docs` updates docs/commands.md and docs/api.md.

The part of a page above the marker is written by hand and stays as it is.
"""

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from nemo_gym.cli.command import parameters_of
from nemo_gym.cli.commands import GROUPS, Command
from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.config.command_options import default_words, field_descriptions, type_words

MARKER = "<!-- Generated from the code by `python -m nemo_gym.cli.docs`. Do not edit below this line. -->\n"

API = {
    "nemo_gym.base_resources_server": (
        *("SimpleResourcesServer", "tool", "SessionState", "BaseRunRequest", "BaseVerifyRequest"),
        *("BaseVerifyResponse", "BaseSeedSessionRequest", "BaseSeedSessionResponse", "BaseResourcesServerConfig"),
    ),
    "nemo_gym.base_responses_api_agent": (
        *("ToolCallingAgent", "ToolCallingAgentConfig", "Conversation", "AgentRunRequest"),
        *("SimpleResponsesAPIAgent", "BaseResponsesAPIAgentConfig"),
    ),
    "nemo_gym.participants": (),
    "nemo_gym.base_responses_api_model": ("SimpleResponsesAPIModel", "BaseResponsesAPIModelConfig"),
    "nemo_gym.server.base": ("SimpleServer",),
    "nemo_gym.client.server_client": ("ServerClient",),
    "nemo_gym.answers": (),
    "nemo_gym.judge": (),
    "nemo_gym.verdicts": (
        *("Labels", "Scale", "Criterion", "Rubric", "JsonVerdict", "Preference", "Equality", "Reading", "VerdictForm"),
        *("UnreadableError", "final_labels"),
    ),
    "nemo_gym.judged_environment": (),
    "nemo_gym.compute": ("Compute", "LimitExceededError", "ComputeError"),
    "nemo_gym.rollouts.collector": ("RolloutCollectionHelper",),
    "nemo_gym.training": (
        *("trace_of", "samples_of", "make_groups", "group_advantages", "TokenTrace", "Segment", "FlatTokens"),
        *("ModelCall", "PrefixBreak", "TrainingSample", "Group", "TokenTraceError", "nemo_rl_sample", "verl_sample"),
        *(
            "skyrl_sample",
            "slime_sample",
            "trl_sample",
            "tinker_sample",
            "prime_rl_sample",
            "areal_sample",
            "VersionSpan",
            "columns",
        ),
    ),
    "nemo_gym.testing": (),
    "nemo_gym.errors": (),
}
"""The public modules of the API reference, and the names to list; of a module without names, all it defines."""

_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


# Commands


def commands_reference() -> str:
    """A section for each command: what it does, its parameters with their defaults, examples."""
    groups = ([f"## {title}\n", *map(_command_section, commands)] for title, commands in GROUPS.items())
    return "\n".join(section for group in groups for section in group)


def _command_section(command: Command) -> str:
    function = command.load()
    parameters = parameters_of(function)
    description = inspect.getdoc(parameters or function) or command.summary
    text, _, examples = description.partition("Examples:\n")
    lines = [f"### `ng_{command.name}`", "", text.strip(), ""]
    if parameters and parameters.model_fields:
        lines += ["| parameter | type | default | |", "| --- | --- | --- | --- |"]
        described = field_descriptions(parameters)
        lines += [
            _parameter_row(field.alias or name, field, described.get(name, ""))
            for name, field in parameters.model_fields.items()
        ]
        lines.append("")
    return "\n".join([*lines, *([examples.strip(), ""] if examples else [])])


def _parameter_row(name: str, field: FieldInfo, description: str) -> str:
    default = "required" if field.is_required() else _code(default_words(field))
    escaped = description.replace("|", "\\|")
    return f"| `{name}` | {type_words(field.annotation, name)} | {default} | {escaped} |"


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


# API


def api_reference() -> str:
    """A section for each public module: its docstring, and its classes and functions with their signatures."""
    return "\n".join(_module_section(module, names) for module, names in API.items())


def _module_section(name: str, names: tuple[str, ...]) -> str:
    module = importlib.import_module(name)
    chosen = names or tuple(_public_names(_source_of(module)))
    lines = [f"## `{name}`", "", inspect.getdoc(module) or "", ""]
    for each in chosen:
        lines += _definition_lines(_find_definition(getattr(module, each)), level=3)
    return "\n".join(lines)


def _source_of(module: Any) -> ast.Module:
    return ast.parse(Path(inspect.getfile(module)).read_text())


def _public_names(source: ast.Module) -> Iterator[str]:
    for node in source.body:
        if isinstance(node, _Definition) and not node.name.startswith("_") and ast.get_docstring(node):
            yield node.name


def _find_definition(item: Any) -> _Definition:
    """The last definition of that name in its module: earlier ones of a function are overloads."""
    source = _source_of(sys.modules[item.__module__])
    found = [node for node in source.body if isinstance(node, _Definition) and node.name == item.__name__]
    return found[-1]


def _definition_lines(node: _Definition, *, level: int) -> list[str]:
    heading = f"{'#' * level} `{_signature(node)}`"
    lines = [heading, "", ast.get_docstring(node) or "", ""]
    if isinstance(node, ast.ClassDef):
        lines += _field_lines(node)
        for method in node.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and _is_documented(method):
                lines += _definition_lines(method, level=level + 1)
    return lines


def _is_documented(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return not method.name.startswith("_") and ast.get_docstring(method) is not None


def _signature(node: _Definition) -> str:
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{prefix}{node.name}({ast.unparse(node.args)}){returns}"


def _field_lines(node: ast.ClassDef) -> list[str]:
    """The annotated fields of a class, each with the docstring below it."""
    lines = []
    for field, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and not ast.unparse(field.target).startswith("_"):
            lines.append(f"- `{ast.unparse(field)}`{_docstring_below(following)}")
    return [*lines, ""] if lines else []


def _docstring_below(node: ast.stmt | None) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return f": {' '.join(node.value.value.split())}" if is_text else ""  # type: ignore[union-attr]


def pages() -> dict[Path, str]:
    """The generated part of each page."""
    docs = PARENT_DIR / "docs"
    return {docs / "commands.md": commands_reference(), docs / "api.md": api_reference()}


def with_reference(page: str, reference: str) -> str:
    """A page with everything below the marker replaced."""
    by_hand = page.partition(MARKER)[0].rstrip()
    return f"{by_hand}\n\n{MARKER}\n{reference.rstrip()}\n"


def main() -> None:
    for path, reference in pages().items():
        path.write_text(with_reference(path.read_text(), reference))
        print(f"Wrote {path}")


if __name__ == "__main__":
    main()

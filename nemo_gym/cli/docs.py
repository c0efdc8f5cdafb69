"""Write the reference pages from the code: `python -m nemo_gym.cli.docs` updates docs/commands.md, docs/api.md and
docs/catalogue.md.

The part of a page above the marker is written by hand and stays as it is.
"""

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

import nemo_gym
from nemo_gym.cli.command import parameters_of
from nemo_gym.cli.commands import GROUPS, Command
from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.config.command_options import default_words, field_descriptions, type_words
from nemo_gym.data.catalogue import catalogue_page

MARKER = "<!-- Generated from the code by `python -m nemo_gym.cli.docs`. Do not edit below this line. -->\n"

API = {
    "nemo_gym": (),
    "nemo_gym.base_resources_server": (
        *("SimpleResourcesServer", "tool", "any_tool", "Score", "SessionState", "BaseRunRequest"),
        *("BaseVerifyRequest", "BaseVerifyResponse", "BaseMultiRewardVerifyResponse", "BaseSeedSessionRequest"),
        *("BaseSeedSessionResponse", "BaseNextMessageRequest", "NextMessage", "BaseResourcesServerConfig"),
    ),
    "nemo_gym.judged_environment": (),
    "nemo_gym.episodes": (),
    "nemo_gym.base_responses_api_agent": (
        *("ToolCallingAgent", "ToolCallingAgentConfig", "Conversation", "AgentRunRequest"),
        *("SimpleResponsesAPIAgent", "BaseResponsesAPIAgentConfig"),
    ),
    "nemo_gym.participants": (),
    "nemo_gym.base_responses_api_model": ("SimpleResponsesAPIModel", "BaseResponsesAPIModelConfig"),
    "nemo_gym.evaluation.run": ("evaluate", "aevaluate", "collect"),
    "nemo_gym.evaluation.result": ("Evaluation", "Rollout", "Failure", "Turn"),
    "nemo_gym.evaluation.models": ("Scripted",),
    "nemo_gym.evaluation.judge_check": ("check_judge", "acheck_judge"),
    "nemo_gym.answers": (),
    "nemo_gym.judge": (),
    "nemo_gym.verdicts": (
        *("Labels", "Scale", "Criterion", "Rubric", "JsonVerdict", "Preference", "Equality", "Reading", "VerdictForm"),
        *("UnreadableError", "final_labels"),
    ),
    "nemo_gym.server.base": ("SimpleServer",),
    "nemo_gym.client.server_client": ("ServerClient", "CookieJar"),
    "nemo_gym.client.reply": ("ServerReply", "get_response_json", "raise_for_status"),
    "nemo_gym.client.load_balancer": ("NeMoGymAsyncOpenAI",),
    "nemo_gym.config.types": (
        *("BaseServerConfig", "BaseRunServerInstanceConfig", "ModelServerRef", "ResourcesServerRef", "Domain"),
    ),
    "nemo_gym.llm_api.responses": ("NeMoGymResponse", "NeMoGymResponseCreateParamsNonStreaming"),
    "nemo_gym.llm_api.chat": ("NeMoGymChatCompletion", "NeMoGymChatCompletionCreateParamsNonStreaming"),
    "nemo_gym.server.aggregate_metrics": ("AggregateMetrics", "AggregateMetricsRequest"),
    "nemo_gym.compute": ("Compute", "LimitExceededError", "ComputeError"),
    "nemo_gym.rollouts.collector": ("RolloutCollectionHelper",),
    "nemo_gym.training": (
        *("RolloutSession", "trace_of", "samples_of", "make_groups", "group_advantages", "TokenTrace", "Segment"),
        *("FlatTokens", "ModelCall", "PrefixBreak", "TrainingSample", "Group", "TokenTraceError", "VersionSpan"),
        *("columns", "nemo_rl_sample", "verl_sample", "skyrl_sample", "slime_sample", "trl_sample", "tinker_sample"),
        *("prime_rl_sample", "areal_sample"),
    ),
    "nemo_gym.testing": (),
    "nemo_gym.errors": (),
}
"""The public modules of the API reference, and the names to list; of a module without names, all it defines."""

MAX_SIGNATURE = 90
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
        lines += _definition_lines(module, each)
    return "\n".join([*lines, *_short_names(module)])


def _short_names(module: Any) -> Iterator[str]:
    """Yield where the names of a package that only passes them on are described."""
    source = _source_of(module)
    blocks = [node for node in source.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    if module.__name__ != nemo_gym.__name__:
        return
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    yield from ("| name | is |", "| --- | --- |")
    for node in imports:
        for alias in node.names:
            yield f"| `nemo_gym.{alias.asname or alias.name}` | {_summary_of(node.module or '', alias.name)} |"
    yield ""


def _summary_of(module: str, name: str) -> str:
    found = getattr(importlib.import_module(module), name)
    own = found.__name__ if isinstance(found, type) else name
    what = f"`{module}.{own}`"
    is_described = inspect.isclass(found) or inspect.isfunction(found)
    text = inspect.cleandoc(found.__doc__ or "") if is_described else ""
    return f"{what}: {_first_sentence(text)}" if text else what


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph, maxsplit=1)[0].replace("|", "/")


def _source_of(module: Any) -> ast.Module:
    return ast.parse(Path(inspect.getfile(module)).read_text())


def _public_names(source: ast.Module) -> Iterator[str]:
    for node in source.body:
        if isinstance(node, _Definition) and not node.name.startswith("_") and ast.get_docstring(node):
            yield node.name


def _find_definition(item: Any) -> _Definition | None:
    """The last definition of that name in its module: earlier ones of a function are overloads. None of a type
    alias."""
    if not (inspect.isclass(item) or inspect.isfunction(item)):
        return None
    source = _source_of(sys.modules[item.__module__])
    found = [node for node in source.body if isinstance(node, _Definition) and node.name == item.__name__]
    return found[-1] if found else None


def _definition_lines(module: Any, name: str) -> list[str]:
    """The heading, the description, and for a class its fields and methods as lists."""
    node = _find_definition(getattr(module, name))
    if node is None:
        return [f"### {name}", "", f"`{getattr(module, name)}`", ""]
    lines = [f"### {name}", "", *_shown_signature(node), ast.get_docstring(node) or "", ""]
    if isinstance(node, ast.ClassDef):
        methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        lines += _field_lines(node)
        lines += [_method_line(each) for each in methods if _is_documented(each)]
    return [*lines, ""]


def _shown_signature(node: _Definition) -> list[str]:
    """The signature of a function as code, a line for each parameter if it is long; of a class its bases."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(f"`{ast.unparse(base)}`" for base in node.bases)
        return [f"*Class, based on {bases}.*", ""] if bases else []
    signature = _signature(node)
    if len(signature) > MAX_SIGNATURE:
        head, _, rest = signature.partition("(")
        inside, _, returns = rest.rpartition(")")
        parameters = "".join(f"    {each},\n" for each in _parameters(inside))
        signature = f"{head}(\n{parameters}){returns}"
    return ["```python", signature, "```", ""]


def _parameters(inside: str) -> Iterator[str]:
    """Split a list of parameters at the commas outside of brackets."""
    depth, start = 0, 0
    for place, character in enumerate(inside):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            yield inside[start:place].strip()
            start = place + 1
    yield inside[start:].strip()


def _method_line(method: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    names = [each.arg for each in (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)]
    shown = ", ".join(name for name in names if name not in ("self", "cls"))
    decorators = {ast.unparse(each) for each in method.decorator_list}
    call = method.name if decorators & {"property", "cached_property"} else f"{method.name}({shown})"
    prefix = "await " if isinstance(method, ast.AsyncFunctionDef) else ""
    text = " ".join((ast.get_docstring(method) or "").split())
    return f"- `{prefix}{call}`: {text}"


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
            lines.append(f"- `{ast.unparse(field.target)}`{_docstring_below(following) or _type_of(field)}")
    return lines


def _type_of(field: ast.AnnAssign) -> str:
    return f" (`{ast.unparse(field.annotation)}`)"


def _docstring_below(node: ast.stmt | None) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return f": {' '.join(node.value.value.split())}" if is_text else ""  # type: ignore[union-attr]


def pages() -> dict[Path, str]:
    """The generated part of each page."""
    docs = PARENT_DIR / "docs"
    return {
        docs / "commands.md": commands_reference(),
        docs / "api.md": api_reference(),
        docs / "catalogue.md": catalogue_page(PARENT_DIR),
    }


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

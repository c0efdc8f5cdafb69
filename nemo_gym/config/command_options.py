"""Parameters of commands, and the help that shows them.

Every command reads its own parameters out of the one merged configuration.
"""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo

from nemo_gym.common.words import terminal_columns, two_columns, wrap_paragraphs
from nemo_gym.config.validation import validate
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

HELP_KEYS = ("h", "help")


class BaseNeMoGymCLIConfig(BaseModel):
    """The parameters of a command.

    Validating input with `h` or `help` set prints the help and ends the process with exit code 0. The description is
    the docstring of the class, the help of a field the docstring under it.
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ()
    """Parameters that may be given without a name, in this order."""

    SHORT_OPTIONS: ClassVar[dict[str, str]] = {}
    """One-letter options and the parameters they stand for."""

    @model_validator(mode="before")
    @classmethod
    def _show_help_or_read(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        if any(key in data and data[key] for key in HELP_KEYS):
            sys.stdout.write(help_text(cls))
            raise SystemExit(0)
        return data if isinstance(data, dict) else cls._own_values(cast("DictConfig", data))

    @classmethod
    def _own_values(cls, config: "DictConfig") -> dict[str, Any]:
        """Read only the command's own parameters, so that an unset value elsewhere does not matter."""
        from nemo_gym.config.sources import resolve

        names = {*cls.model_fields, *(field.alias for field in cls.model_fields.values())}
        return {str(key): resolve(config, (str(key),)) for key in config if key in names}


class CommandConfig(BaseNeMoGymCLIConfig):
    """The frozen base of our own commands."""

    model_config = ConfigDict(frozen=True)

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """The parameters in the merged config, or an error that names each missing or invalid one."""
        for name in cls.POSITIONAL:
            if cls.model_fields[name].is_required() and name not in config:
                raise ConfigError(f"The argument <{name}> is missing: {field_descriptions(cls).get(name, '')}")
        remedy = "Pass a parameter as --name value or +name=value, or set it in env.yaml; --help lists them all."
        return validate(cls, config, what="The command line", remedy=remedy)


# Help

COMMON_OPTIONS = (
    ("-v, --verbose", "Log more."),
    ("-q, --quiet", "Log warnings and errors only, and show no progress."),
    ("--json", "Print one JSON document."),
    ("--log-format json", "Write log lines as JSON. Also NEMO_GYM_LOG_FORMAT=json."),
    ("--<a>.<b> value", "Set any key of the configuration, such as --policy_model_name or --head_server.port."),
)


def _positional(name: str, field: FieldInfo) -> str:
    """`<environment> ...` for a required list, `[search]` for what may be left out."""
    shown = f"<{name}>" if field.is_required() else f"[{name}]"
    return f"{shown} ..." if "list[" in str(field.annotation) else shown


def help_text(parameters: type[BaseNeMoGymCLIConfig], command: str = "") -> str:
    """The help of a command, wrapped to the terminal: usage, description and parameters."""
    width = terminal_columns()
    lines: list[str] = []
    if command:
        positional = [_positional(name, parameters.model_fields[name]) for name in parameters.POSITIONAL]
        lines += [" ".join(["Usage:", command, *positional, "[--name value ...]"]), ""]
    description = inspect.cleandoc(parameters.__dict__.get("__doc__") or "")
    lines += [*wrap_paragraphs(description, width), ""] if description else []
    if parameters.model_fields:
        lines += ["Parameters", "----------", *two_columns(list(_parameters(parameters)), width)]
    else:
        lines += wrap_paragraphs("There are no arguments to this CLI command!", width)
    ways = "Pass a parameter as --name value, --name=value or +name=value. All commands also have"
    lines += ["", *wrap_paragraphs(ways, width), *two_columns(COMMON_OPTIONS, width)]
    return "\n".join([*lines, ""])


def _parameters(parameters: type[BaseNeMoGymCLIConfig]) -> Iterator[tuple[str, str]]:
    described = field_descriptions(parameters)
    letters = {name: letter for letter, name in parameters.SHORT_OPTIONS.items()}
    for name, field in parameters.model_fields.items():
        shown = field.alias or name
        short = f"[short: -{letters[name]}]" if name in letters else ""
        state = "[required]" if field.is_required() else _default(field)
        text = " ".join(filter(None, (described.get(name), state, short)))
        yield f"- {shown} ({type_words(field.annotation, shown)})", text


def _default(field: FieldInfo) -> str:
    text = default_words(field)
    return f"[default: {text}]" if text else ""


def field_descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The docstring under each field, its own and inherited, in one line. Read from the source when it is asked for:
    pydantic's `use_attribute_docstrings` reads it whenever the class is imported, which takes every command longer."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if inspect.get_annotations(base).keys() & model.model_fields.keys():
            for field, text in pairwise(_class_body(base)):
                match field, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                        found[name] = " ".join(words.split())
    return found


def _class_body(kind: type) -> list[ast.stmt]:
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # it was not made from a file
        return []
    return cast("ast.ClassDef", ast.parse(textwrap.dedent(source)).body[0]).body


def default_words(field: FieldInfo) -> str:
    """The default of a parameter as help shows it; empty if there is none to show."""
    default = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, list):
        return ", ".join(map(str, default))
    return "" if default is None or default == {} else str(default)


_SCALARS = {str: "text", int: "whole number", float: "number", bool: "yes/no", dict: "keys and values"}
_SEVERAL = {"text": "texts", "whole number": "whole numbers", "number": "numbers", "file": "files"}


def type_words(annotation: Any, name: str = "") -> str:
    """A type in plain words. A text parameter that is named like a file is one."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_words(arguments[0], name)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(type_words(each, name) for each in arguments if each is not NoneType))
    if origin is Literal:
        listed = ", ".join(map(str, arguments))
        return f"one of {listed}" if len(arguments) > 1 else listed
    if origin is list:
        item = type_words(arguments[0], name)
        return f"list of {_SEVERAL.get(item, item)}"
    if annotation is str and name.endswith("_dirpath"):
        return "folder"
    if annotation is str and name.endswith(("_fpath", "_paths", "_path")):
        return "file"
    return _SCALARS.get(origin or annotation, "any value")

"""Parameters of commands. Every command reads its own out of the one merged configuration."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Mapping
from itertools import pairwise
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.fields import FieldInfo

from nemo_gym.config.error_messages import validate
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

HELP_KEYS = ("h", "help")


class BaseNeMoGymCLIConfig(BaseModel):
    """The parameters of a command.

    Validating input with `h` or `help` set prints the help of the class and ends the process with exit code 0. The
    description is the docstring of the class, the help of a field the docstring under it.
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
        from nemo_gym.config.interpolation import resolve

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


COMMON_OPTIONS = """\
Pass a parameter as --name value, --name=value or +name=value. All commands also have
-v, --verbose         Log more.
-q, --quiet           Log warnings and errors only, and show no progress.
--json                Print one JSON document.
--log-format json     Write log lines as JSON. Also NEMO_GYM_LOG_FORMAT=json.
--<a>.<b> value       Set any key of the configuration, such as --policy_model_name or --head_server.port.
"""


def help_text(command: type[BaseModel]) -> str:
    """The text that `+h=true` prints."""
    lines = [f"Displaying help for {command.__name__}", ""]
    description = inspect.cleandoc(command.__dict__.get("__doc__") or "")
    if description:
        lines += [description, ""]
    lines += _parameters(command)
    return "\n".join([*lines, "", COMMON_OPTIONS])


def _parameters(command: type[BaseModel]) -> list[str]:
    fields = command.model_fields
    if not fields:
        return ["There are no arguments to this CLI command!"]
    heads = [f"- {field.alias or name} ({type_name(field.annotation)})" for name, field in fields.items()]
    width = max(map(len, heads))
    described = field_descriptions(command)
    helps = [f"{described.get(name, '')} {_default(field)}".strip() for name, field in fields.items()]
    rows = zip(heads, helps, strict=True)
    return ["Parameters", "----------", *(f"{head:<{width}}   {text}".rstrip() for head, text in rows)]


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


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "[required]"
    default = field.get_default(call_default_factory=True, validated_data={})
    return "" if default is None else f"[default: {default}]"


def type_name(annotation: Any) -> str:
    """A type as help shows it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is NoneType:
        return "None"
    if origin is Annotated:
        return type_name(arguments[0])
    if origin in (Union, UnionType):
        return " | ".join(map(type_name, arguments))
    if origin is Literal:
        return " | ".join(map(repr, arguments))
    if origin is not None:
        return f"{type_name(origin)}[{', '.join(map(type_name, arguments))}]"
    return str(getattr(annotation, "__name__", annotation))

"""The command line in the usual style: `--name value`, `--name=value`, `--flag`, `-n 4` and plain arguments, beside
`+name=value`. Everything becomes `+name=value`, which the rest of the program reads."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from nemo_gym.common.paths import nearest
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from nemo_gym.config.command_options import BaseNeMoGymCLIConfig

_BOOLEANS = frozenset(("true", "false", "yes", "no", "on", "off", "1", "0"))
_PLAIN_TEXT = re.compile(r"[A-Za-z_/][\w/.:-]*", re.ASCII)
_LITERAL = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?|true|false|null|\[.*\]|\{.*\}", re.I | re.S)
_TEXT_KEYS = ("_name", "_key", "_url", "path", "_token")
"""Keys of the configuration that end like this are text, even if the value looks like a number."""
_SAMPLING = frozenset(("temperature", "top_p", "max_output_tokens", "reasoning"))
"""Parameters of the request, which are not keys of the configuration: setting them there would have no effect."""
_NUMBER = re.compile(r"-\.?\d")
_WORDS = frozenset(("true", "false", "null", "nan", "inf"))


@dataclass(slots=True)
class CommonOptions:
    """The options that every command has."""

    is_verbose: bool = False
    is_quiet: bool = False
    wants_json: bool = False
    log_format: str | None = None


@dataclass(slots=True)
class Arguments:
    """A command line, read."""

    overrides: list[str] = field(default_factory=list)
    """As `+name=value`."""
    common: CommonOptions = field(default_factory=CommonOptions)


_COMMON_FLAGS = {
    "-v": "is_verbose",
    "--verbose": "is_verbose",
    "-q": "is_quiet",
    "--quiet": "is_quiet",
    "--json": "wants_json",
}


def read_arguments(
    arguments: Sequence[str], parameters: "type[BaseNeMoGymCLIConfig] | None", *, keep_plain: bool = False
) -> Arguments:
    """Translate the arguments of a command with these parameters. With `keep_plain`, only the common options are."""
    found, fields = Arguments(), _fields_of(parameters)
    short = parameters.SHORT_OPTIONS if parameters else {}
    plain: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            plain += rest
            break
        if argument in _COMMON_FLAGS:
            setattr(found.common, _COMMON_FLAGS[argument], True)
        elif argument.split("=")[0] == "--log-format":
            found.common.log_format = argument.partition("=")[2] or (rest.pop(0) if rest else "")
        elif keep_plain or argument in ("-h", "--help") or argument[0:1] in ("+", "~"):
            found.overrides.append(argument)
        elif argument.startswith("--") or (argument[1:2] in short and argument[0] == "-"):
            found.overrides.append(_option(argument, rest, fields, short))
        elif "=" in argument and not argument.startswith("-") and _is_assignment(argument):
            found.overrides.append(argument)
        else:
            plain.append(argument)
    found.overrides += _named(plain, parameters, fields)
    return found


def _is_assignment(argument: str) -> bool:
    return re.match(r"[A-Za-z_][\w.]*=", argument) is not None


def _fields_of(parameters: "type[BaseNeMoGymCLIConfig] | None") -> "dict[str, FieldInfo]":
    fields = parameters.model_fields if parameters else {}
    return {field.alias or name: field for name, field in fields.items()}


def _option(argument: str, rest: list[str], fields: "dict[str, FieldInfo]", short: dict[str, str]) -> str:
    """One option with its value, which may be the next argument."""
    if argument.startswith("--"):
        name, equals, value = argument[2:].partition("=")
        shown, key = f"--{name}", name.replace("-", "_")
    else:
        shown, key = argument[:2], short[argument[1]]
        value = argument[2:].removeprefix("=")
        equals = "=" if value else ""
    if key not in fields and key.removeprefix("no_") in fields and _is_flag(fields[key.removeprefix("no_")]):
        return f"+{key.removeprefix('no_')}=false"
    if key not in fields and (hint := _typo(key, fields)):
        raise ConfigError(f"'{shown}' is not an option of this command.{hint}")
    if key not in fields and key in _SAMPLING:
        raise ConfigError(
            f"'{shown}' is not an option of this command. Write --responses_create_params.{key} <value>."
        )
    if not equals:
        if key in fields and _is_flag(fields[key]) and not (rest and rest[0].lower() in _BOOLEANS):
            return f"+{key}=true"
        if not rest or _is_option(rest[0]):
            is_known = key in fields or not fields
            what = (
                f"'{shown}'" if is_known else f"'{shown}' is not an option of this command, and a configuration's key"
            )
            raise ConfigError(f"{what} needs a value: {shown} <value>.")
        value = rest.pop(0)
    return f"+{key}={_value(key, value, fields.get(key))}"


def _typo(key: str, fields: "dict[str, FieldInfo]") -> str:
    import difflib

    close = difflib.get_close_matches(key, fields, n=1, cutoff=0.75)
    return f" Did you mean '--{close[0].replace('_', '-')}'?" if close else ""


def _is_option(argument: str) -> bool:
    return argument.startswith("-") and not _NUMBER.match(argument) and argument != "-"


def _named(
    plain: Sequence[str], parameters: "type[BaseNeMoGymCLIConfig] | None", fields: "dict[str, FieldInfo]"
) -> Iterator[str]:
    """Arguments without a name, as the parameters that stand for them."""
    names = parameters.POSITIONAL if parameters else ()
    if plain and len(names) == 1 and list in _kinds(fields[names[0]].annotation):
        yield f"+{names[0]}=[{','.join(map(quoted, plain))}]"
        return
    if len(plain) > len(names):
        extra = plain[len(names)]
        raise ConfigError(f"Unexpected argument '{extra}'.{_expected(extra, names, fields)}")
    for name, value in zip(names, plain, strict=False):
        yield f"+{name}={_value(name, value, fields.get(name))}"


def _expected(extra: str, names: Sequence[str], fields: "dict[str, FieldInfo]") -> str:
    if extra.startswith("-"):
        return f" Write --name value.{nearest(extra.lstrip('-'), fields)}"
    listed = " ".join(f"<{name}>" for name in names)
    return f" Expected at most: {listed}." if names else " Write --name value, or +name=value."


def _value(key: str, value: str, parameter: "FieldInfo | None") -> str:
    """A value in Hydra's grammar."""
    if key == "config_paths" and not value.startswith("["):
        return _quoted_list(value)
    if parameter is None:
        is_text = value != "null" and (key.endswith(_TEXT_KEYS) or _LITERAL.fullmatch(value) is None)
        return quoted(value) if is_text else value
    kinds = _kinds(parameter.annotation)
    if list in kinds and not value.startswith("["):
        return _quoted_list(value)
    return quoted(value) if str in kinds and not value.startswith("[") else value


def _kinds(annotation: Any) -> set[Any]:
    """The types that a value may have, without None and without the types of items."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return {kind for each in get_args(annotation) for kind in _kinds(each)}
    if origin is not None and str(origin).endswith("Literal"):
        return {type(each) for each in get_args(annotation)}
    return {origin or annotation}


def _is_flag(parameter: "FieldInfo") -> bool:
    return bool in _kinds(parameter.annotation)


def _quoted_list(value: str) -> str:
    return f"[{','.join(quoted(item.strip()) for item in value.split(','))}]"


def quoted(value: str) -> str:
    """A text in Hydra's grammar, whatever characters it has."""
    if _PLAIN_TEXT.fullmatch(value) and value.lower() not in _WORDS:
        return value
    literal = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", value)  # not an interpolation
    escaped = re.sub(r"(\\*)'", lambda match: match[1] * 2 + r"\'", literal)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{chr(92) * trailing}'"

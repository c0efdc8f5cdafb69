"""The one grammar of command lines. Each argument is read once, into a typed value.

    --name value   --name=value   +name=value   ++name=value   name=value    set a parameter or any key
    --flag   --no-flag   -n 4   -n4                                          flags and short options of a command
    ~name   ~name=value                                                      delete a key
    word   -- word                                                           a parameter that needs no name

The forms that set a value mean the same. A dot selects a key inside a block: `--head_server.port 11001`. Values follow
Hydra's grammar (quotes, lists, mappings, numbers, `null`), with what is known about the key:

- Where text is expected, a value that Hydra would read as a number, or not at all, is that text.
- Where a list is expected, `a,b` means the same as `[a,b]`.
- Elsewhere, a value that is not in Hydra's grammar is text, unless it starts like a list, a mapping or a quotation.
"""

import contextlib
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from nemo_gym.common.paths import nearest
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_gym.config.command_options import BaseNeMoGymCLIConfig

ANY_VALUE = object()
"""The value of a deletion that does not depend on it."""

HELP_FLAGS = ("-h", "--help")
TYPO_CUTOFF = 0.75
"""Similarity above which an unknown option is taken for a misspelt parameter."""

_HELP = re.compile(r"-h|--help|\+{0,2}(h|help)=(true|1|yes|on)", re.IGNORECASE)
_ASSIGNMENT = re.compile(r"\+{0,2}([A-Za-z_$][\w$-]*(?:\.[\w$-]+)*)=(.*)", re.S)
_DELETION = re.compile(r"~([A-Za-z_$][\w$-]*(?:\.[\w$-]+)*)(?:(=)(.*))?", re.S)
_NUMBER = re.compile(r"-\.?\d")
_BOOLEANS = frozenset(("true", "false", "yes", "no", "on", "off", "1", "0"))
_TEXT_KEYS = ("_name", "_key", "_url", "path", "_token")
"""Keys of the configuration that end like this are text, even if the value looks like a number."""
_SAMPLING = frozenset(("temperature", "top_p", "max_output_tokens", "reasoning"))
"""Fields of the request, which are not keys of the configuration: setting them there would have no effect."""

_ITEM = r"(?:[A-Za-z_/][\w/.:-]*|-?(?:0|[1-9]\d{0,17}))"
_PLAIN = re.compile(rf"{_ITEM}|\[(?:{_ITEM}(?:,{_ITEM})*)?\]", re.ASCII)
"""Most values: words, paths, URLs and whole numbers, alone or in a list. They are read here, because importing Hydra's
parser takes longer than all else that reading a command line does."""
_WORDS = {"true": True, "false": False, "null": None}
_FLOATS = frozenset(("nan", "inf"))


@dataclass(frozen=True)
class Override:
    """Set `key` to `value`, or delete `key` if it has this `value`."""

    key: str
    value: Any = field(repr=False)
    deletes: bool = False
    argument: str = field(default="", repr=False, compare=False)
    """The argument as it was typed. May contain a secret."""

    @property
    def shown(self) -> str:
        """The argument with a secret masked."""
        return shown_argument(self.argument)


@dataclass(frozen=True)
class CommandLine:
    """A command line, read."""

    overrides: tuple[Override, ...] = ()
    words: tuple[str, ...] = ()
    """Arguments without a name, of a command that takes any."""

    is_verbose: bool = False
    is_quiet: bool = False
    wants_json: bool = False
    log_format: str | None = None


_COMMON_FLAGS = {
    "-v": "is_verbose",
    "--verbose": "is_verbose",
    "-q": "is_quiet",
    "--quiet": "is_quiet",
    "--json": "wants_json",
}
_running: list[CommandLine] = []


def parse_command_line(
    arguments: Sequence[str],
    parameters: "type[BaseNeMoGymCLIConfig] | None" = None,
    *,
    takes_words: bool = False,
) -> CommandLine:
    """Read the arguments of a command with these parameters. With `takes_words`, arguments without a name are kept."""
    return _Parser(arguments, parameters).parse(takes_words=takes_words)


def asks_for_help(arguments: Sequence[str]) -> bool:
    """True if `--help`, `-h` or `+h=true` is among the arguments, whatever else is."""
    return any(_HELP.fullmatch(argument) for argument in arguments)


def process_command_line() -> CommandLine:
    """The command line of the running command or, in another program, of the program."""
    return _running[-1] if _running else parse_command_line(sys.argv[1:])


def shown_option(name: str, value: str) -> str:
    """How to set a parameter, in the form that the user has typed others: `--name value`, `+name=value`, or the
    argument of a function if no command runs."""
    if not _running:
        return f'{name}="{value}"'
    typed = [override.argument for override in _running[-1].overrides]
    is_hydra = any(_ASSIGNMENT.fullmatch(argument) for argument in typed)
    return f"+{name}={value}" if is_hydra else f"--{name.replace('_', '-')} {value}"


@contextlib.contextmanager
def running_command(line: CommandLine) -> Iterator[None]:
    """Let `process_command_line()` return this one inside the block."""
    _running.append(line)
    try:
        yield
    finally:
        _running.pop()


class _Parser:
    """One pass over the arguments."""

    def __init__(self, arguments: Sequence[str], parameters: "type[BaseNeMoGymCLIConfig] | None") -> None:
        fields = parameters.model_fields if parameters else {}
        self._kinds = {field.alias or name: value_kinds(field.annotation) for name, field in fields.items()}
        self._short = parameters.SHORT_OPTIONS if parameters else {}
        self._positional = parameters.POSITIONAL if parameters else ()
        self._rest = deque(arguments)
        self._overrides: list[Override] = []
        self._words: list[str] = []
        self._common: dict[str, Any] = {}

    def parse(self, *, takes_words: bool) -> CommandLine:
        while self._rest:
            argument = self._rest.popleft()
            if argument == "--":
                self._words += self._rest
                break
            self._read(argument)
        if not takes_words:
            self._name_words()
        words = tuple(self._words) if takes_words else ()
        return CommandLine(tuple(self._overrides), words, **self._common)

    def _read(self, argument: str) -> None:
        if argument in _COMMON_FLAGS:
            self._common[_COMMON_FLAGS[argument]] = True
        elif argument.split("=")[0] == "--log-format":
            value = argument.partition("=")[2] or (self._rest.popleft() if self._rest else "")
            self._common["log_format"] = value
        elif argument in HELP_FLAGS:
            self._overrides.append(Override("help", True, argument=argument))
        elif argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            self._option(f"--{name}", name.replace("-", "_"), value if equals else None)
        elif argument[:1] == "-" and argument[1:2] in self._short:
            self._option(argument[:2], self._short[argument[1]], argument[2:].removeprefix("=") or None)
        elif argument.startswith("~"):
            self._delete(argument)
        elif argument.startswith("+") or (not argument.startswith("-") and _ASSIGNMENT.fullmatch(argument)):
            self._assign(argument)
        else:
            self._words.append(argument)

    def _option(self, shown: str, key: str, value: str | None) -> None:
        negated = key.removeprefix("no_")
        if key not in self._kinds and bool in self._kinds.get(negated, ()):
            self._overrides.append(Override(negated, False, argument=shown))
            return
        if key not in self._kinds and "." not in key:
            self._refuse_mistakes(shown, key)
        if value is None and self._is_flag(key):
            self._overrides.append(Override(key, True, argument=shown))
            return
        text = self._next_value(shown, key) if value is None else value
        self._set(key, text, f"{shown}={text}")

    def _is_flag(self, key: str) -> bool:
        """True if this parameter is set to true by its name alone."""
        follows = self._rest[0].lower() if self._rest else ""
        return bool in self._kinds.get(key, ()) and follows not in _BOOLEANS

    def _next_value(self, shown: str, key: str) -> str:
        if self._rest and not _is_option(self._rest[0]):
            return self._rest.popleft()
        is_known = key in self._kinds or not self._kinds
        what = f"'{shown}'" if is_known else f"'{shown}' is not an option of this command, and a configuration's key"
        raise ConfigError(f"{what} needs a value: {shown} <value>.")

    def _refuse_mistakes(self, shown: str, key: str) -> None:
        """Refuse what is probably no key of the configuration, but a misspelt parameter or a field of the request."""
        import difflib

        remedy = ""
        if close := difflib.get_close_matches(key, self._kinds, n=1, cutoff=TYPO_CUTOFF):
            remedy = f"Did you mean '--{close[0].replace('_', '-')}'?"
        elif key in _SAMPLING:
            remedy = f"Write --responses_create_params.{key} <value>."
        if remedy:
            raise ConfigError(f"'{shown}' is not an option of this command. {remedy}")

    def _assign(self, argument: str) -> None:
        match = _ASSIGNMENT.fullmatch(argument)
        if match is None:
            raise _invalid(argument)
        self._set(match[1], match[2], argument)

    def _delete(self, argument: str) -> None:
        match = _DELETION.fullmatch(argument)
        if match is None:
            raise _invalid(argument)
        key, equals, text = match.groups()
        value = self._value(key, text, argument) if equals else ANY_VALUE
        self._overrides.append(Override(key, value, deletes=True, argument=argument))

    def _name_words(self) -> None:
        """Make the arguments without a name the parameters that they stand for."""
        names = self._positional
        if self._words and len(names) == 1 and list in self._kinds[names[0]]:
            self._overrides.append(Override(names[0], list(self._words), argument=" ".join(self._words)))
            return
        if len(self._words) > len(names):
            raise ConfigError(self._unexpected(self._words[len(names)]))
        for name, text in zip(names, self._words, strict=False):
            self._set(name, text, f"{name}={text}")

    def _unexpected(self, word: str) -> str:
        listed = " ".join(f"<{name}>" for name in self._positional)
        expected = f"Expected at most: {listed}." if listed else "Write --name value, or +name=value."
        if word.startswith("-"):
            expected = f"Write --name value.{nearest(word.lstrip('-'), self._kinds)}"
        return f"Unexpected argument '{shown_argument(word)}'. {expected}"

    def _set(self, key: str, text: str, argument: str) -> None:
        self._overrides.append(Override(key, self._value(key, text, argument), argument=argument))

    def _value(self, key: str, text: str, argument: str) -> Any:
        try:
            return read_value(text, self._kinds.get(key) or _kinds_of_key(key, text))
        except ValueError:
            raise _invalid(argument) from None


def _is_option(argument: str) -> bool:
    return argument.startswith("-") and not _NUMBER.match(argument) and argument != "-"


def _invalid(argument: str) -> ConfigError:
    """An error without the cause, which may repeat a secret."""
    key = argument.partition("=")[0]
    return ConfigError(
        f"Invalid argument '{shown_argument(argument)}': expected --key value, +key=value or ~key, with dots between "
        f"the parts of a key. Quote a value that has special characters: {key}=\"'...'\"."
    )


# Values


def value_kinds(annotation: Any) -> frozenset[type]:
    """The types that a value may have, without the types of items."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return value_kinds(arguments[0])
    if origin in (Union, UnionType):
        return frozenset[type]().union(*map(value_kinds, arguments))
    if origin is Literal:
        return frozenset(map(type, arguments))
    return frozenset((NoneType if annotation is None else origin or annotation,))


def _kinds_of_key(key: str, text: str) -> frozenset[type]:
    """Return the kinds of a key that is not a parameter. Text keys may have lists, as policy_base_url does."""
    if key == "config_paths":
        return frozenset((list, NoneType))
    is_text = key.endswith(_TEXT_KEYS) and not text.startswith(("[", "{"))
    return frozenset((str, NoneType)) if is_text else frozenset()


def read_value(text: str, kinds: frozenset[type]) -> Any:
    """Read a value that may have one of these types, or any if there are none. Raises ValueError."""
    if NoneType in kinds and text == "null":
        return None
    if kinds <= {str, NoneType} and kinds:
        return _read_text(text)
    if list in kinds and not text.startswith(("[", "{", "${")):
        return [_read_text(item.strip()) for item in text.split(",")]
    if _PLAIN.fullmatch(text) and _FLOATS.isdisjoint(re.split(r"[,\[\]]", text.lower())):
        return _plain_value(text)
    try:
        return read_with_hydra(text)
    except ValueError:
        if text.startswith(("[", "{", "'", '"')):
            raise
        return text


def _read_text(text: str) -> str:
    """A text, without the quotes around all of it and without escapes."""
    if text[:1] not in ("'", '"') and "\\" not in text:
        return text
    try:
        value = read_with_hydra(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else text


def _plain_value(text: str) -> Any:
    if text.startswith("["):
        return [_plain_value(item) for item in text[1:-1].split(",")] if text != "[]" else []
    return int(text) if text.removeprefix("-").isdigit() else _WORDS.get(text.lower(), text)


def read_with_hydra(text: str) -> Any:
    """Read one value in Hydra's grammar. Raises ValueError."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(f"key={text}")
    except HydraException:
        raise ValueError("not in Hydra's grammar") from None
    if parsed.is_sweep_override():
        raise ValueError("several values")
    return parsed.value()


def quoted(value: str) -> str:
    """A text in Hydra's grammar, whatever characters it has."""
    if _PLAIN.fullmatch(value) and not value.startswith("[") and value.lower() not in {*_WORDS, *_FLOATS}:
        return value
    literal = re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", value)  # not an interpolation
    escaped = re.sub(r"(\\*)'", lambda match: match[1] * 2 + r"\'", literal)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return f"'{escaped}{chr(92) * trailing}'"


# Secrets


def shown_argument(argument: str) -> str:
    """One argument with a secret masked."""
    from nemo_gym.common.redaction import redact
    from nemo_gym.config.secrets import MASK, is_secret

    key, _, value = argument.partition("=")
    return f"{key}={MASK}" if is_secret(_key_of(key), value) else redact(argument)


def shown_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command with secrets masked, also those that follow their option."""
    from nemo_gym.config.secrets import MASK, is_secret

    shown, before = [], ""
    for argument in arguments:
        is_value = before.startswith("--") and "=" not in before and not _is_option(argument)
        shown.append(MASK if is_value and is_secret(_key_of(before), argument) else shown_argument(argument))
        before = argument
    return shown


def _key_of(option: str) -> str:
    return option.lstrip("+~-").replace("-", "_")

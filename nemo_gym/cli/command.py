"""What all commands share: help, logging, error messages and exit codes.

A command is a function without arguments. Exit codes: 0 success, 1 the job failed, 2 wrong usage or configuration, 130
interrupted. A `GymError` is printed as a message without traceback, unless `NEMO_GYM_LOG_LEVEL=debug`.
"""

import contextlib
import difflib
import functools
import inspect
import io
import logging
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from nemo_gym.cli.arguments import CommonOptions, read_arguments
from nemo_gym.cli.commands import INTERRUPTED
from nemo_gym.cli.output import json_output
from nemo_gym.common.exceptions import leaf_errors
from nemo_gym.common.logging import FORMAT_ENV_VAR, LEVEL_ENV_VAR, configure_logging
from nemo_gym.common.redaction import printable, redact
from nemo_gym.errors import ConfigError, GymError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from nemo_gym.config.command_options import BaseNeMoGymCLIConfig, CommandConfig

    Parameters = TypeVar("Parameters", bound=CommandConfig)

logger = logging.getLogger(__name__)

FAILED = 1
WRONG_USAGE = 2
READER_GONE = 141
"""The exit code of a program that wrote into a closed pipe (SIGPIPE)."""

TYPO_CUTOFF = 0.8
"""Similarity of an unknown key and a parameter above which a typo is likely."""

_HELP = re.compile(r"-h|--help|\+{0,2}(h|help)=(true|1|yes|on)", re.IGNORECASE)
_KEY = re.compile(r"\+{0,2}(\w+)(\.)?")
_MARK = "__nemo_gym_parameters__"
_typed: list[str] = []


def command(
    parameters: "type[BaseNeMoGymCLIConfig] | None" = None,
    *,
    reads_arguments: bool = False,
) -> Callable[[Callable[[], int | None]], Callable[[], None]]:
    """Make a function a command. `--help` and `+h=true` show the help of `parameters`.

    A command that `reads_arguments` gets them as they were typed, without the options that all commands share.

    An int that the function returns is the exit code. SystemExit is raised only if it is not 0, so that a program can
    call a command.
    """

    def wrap(function: Callable[[], int | None]) -> Callable[[], None]:
        @functools.wraps(function)
        def run() -> None:
            with _ignore_closed_stdout():
                if _asks_for_help():
                    _show_help(parameters, function)
                    raise SystemExit(0)
                code = _run_command(function, parameters, reads_arguments=reads_arguments)
            if code:
                raise SystemExit(code)

        setattr(run, _MARK, parameters)
        return run

    return wrap


def parameters_of(function: Callable[[], None]) -> "type[BaseNeMoGymCLIConfig] | None":
    """The parameter class of a command, if it has one."""
    kind: type[BaseNeMoGymCLIConfig] | None = getattr(function, _MARK, None)
    return kind


def read_command_line(*, fill_ports: bool = False) -> "DictConfig":
    """The configuration of this process's command line, checked and completed; or the one that a program has set."""
    cached = _cached_config()
    if cached is not None:
        return cached
    from nemo_gym.config.loading import load_config

    return load_config(sys.argv[1:], fill_ports=fill_ports)


def read_parameters(kind: "type[Parameters]") -> "Parameters":
    """The parameters of a command that needs no servers; server blocks are not checked."""
    return kind.read(read_unchecked())


def read_unchecked(initial: "DictConfig | None" = None) -> "DictConfig":
    """The configuration as it was merged, for a command that starts no servers.

    `initial` is merged between `env.yaml` and the command line.
    """
    cached = _cached_config()
    if cached is not None:
        return cached
    from nemo_gym.config.sources import apply_directives, read_sources

    config = read_sources(sys.argv[1:], initial=initial).merge()
    apply_directives(config)
    return config


def typed_arguments() -> list[str]:
    """The arguments of this command as the user typed them. May contain secrets."""
    return list(_typed)


def _cached_config() -> "DictConfig | None":
    """The cached global config, without importing its module: before that is imported, nothing can be cached."""
    module = sys.modules.get("nemo_gym.compat.global_config")
    cached: DictConfig | None = getattr(module, "_GLOBAL_CONFIG_DICT", None)
    return cached


def _asks_for_help() -> bool:
    cached = _cached_config()
    if cached is not None:
        return bool(cached.get("h") or cached.get("help"))
    return any(_HELP.fullmatch(argument) for argument in sys.argv[1:])


def _show_help(parameters: "type[BaseNeMoGymCLIConfig] | None", function: Callable[[], int | None]) -> None:
    if parameters is None:
        sys.stdout.write(f"{inspect.getdoc(function)}\n")
        return
    from nemo_gym.cli.help_page import help_page

    sys.stdout.write(help_page(parameters, sys.argv[0].rpartition("/")[2]))


def _warn_of_typos(parameters: "type[BaseNeMoGymCLIConfig]") -> None:
    """Unknown keys are allowed, because a configuration has many. One that is almost a parameter, or a key that all
    configurations may have, is likely a typo."""
    from nemo_gym.config.keys import HEAD_SERVER_KEY_NAME, SETTINGS_KEYS

    fields = parameters.model_fields
    own = {*fields, *(field.alias for field in fields.values() if field.alias)}
    for key, dot in (match.groups() for argument in sys.argv[1:] if (match := _KEY.match(argument))):
        known = own | {HEAD_SERVER_KEY_NAME} if dot else own | SETTINGS_KEYS
        close = difflib.get_close_matches(key, known, n=1, cutoff=TYPO_CUTOFF)
        if key not in known and close:
            logger.warning("'%s' is not a parameter of this command. Did you mean '%s'?", key, close[0])


def _run_command(
    function: Callable[[], int | None], parameters: "type[BaseNeMoGymCLIConfig] | None", *, reads_arguments: bool
) -> int:
    """Run `function` and return the exit code."""
    _handle_signals()
    try:
        common = CommonOptions()
        if _cached_config() is None:
            _typed[:] = sys.argv[1:]
            read = read_arguments(_typed, parameters, keep_plain=reads_arguments)
            common, sys.argv[1:] = read.common, read.overrides
        _configure_output(common)
    except ConfigError as error:
        return _report(error)[0]
    if not common.wants_json:
        return _run_logged(function, parameters)[0]
    with json_output() as ended:
        ended.exit_code, ended.error = _run_logged(function, parameters)
    return ended.exit_code


def _configure_output(common: CommonOptions) -> None:
    """Worker processes inherit the settings by the environment."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale without UTF-8 gets '?' for what it cannot show
        sys.stdout.reconfigure(errors="replace")
    if common.is_verbose or common.is_quiet:
        os.environ[LEVEL_ENV_VAR] = "debug" if common.is_verbose else "warning"
    if common.log_format is not None:
        os.environ[FORMAT_ENV_VAR] = common.log_format
    if not logging.getLogger().handlers:
        configure_logging()


def _run_logged(
    function: Callable[[], int | None], parameters: "type[BaseNeMoGymCLIConfig] | None"
) -> tuple[int, str | None]:
    """The exit code, and the error message if there is one."""
    try:
        if parameters is not None and _cached_config() is None:
            _warn_of_typos(parameters)
        return function() or 0, None
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return INTERRUPTED, "Interrupted."
    except SystemExit as exit_:
        return (exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)), None
    except (GymError, BaseExceptionGroup) as raised:
        if not all(isinstance(error, GymError) for error in leaf_errors(raised)):
            raise
        return _report(raised)


def _report(raised: BaseException) -> tuple[int, str]:
    """Print errors of ours, without traceback."""
    errors = list(leaf_errors(raised))
    for error in errors:
        logger.debug("raised here:", exc_info=error)
    message = printable(redact("\n".join(dict.fromkeys(map(str, errors)))))
    sys.stderr.write(f"{message}\n")
    return (WRONG_USAGE if all(isinstance(error, ConfigError) for error in errors) else FAILED), message


def _handle_signals() -> None:
    """Treat SIGTERM like Ctrl+C, and SIGINT even if a script started the command with it ignored."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))


@contextlib.contextmanager
def _ignore_closed_stdout() -> Iterator[None]:
    """`ng_dump_config | head` is not an error. Flushes standard output, so that nothing is written at exit."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _is_stdout_closed():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(READER_GONE) from None


def _is_stdout_closed() -> bool:
    """True if the broken pipe is standard output and not another pipe."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))

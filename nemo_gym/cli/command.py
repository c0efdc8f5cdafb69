"""What every command has in common: help, logging, and how it ends.

A command is a function without arguments. It ends with exit code 0 when all went well, 1 when the job failed, 2 when
it was told something that cannot be done, 130 when it was interrupted. What we raise on purpose is told in one message
without a traceback; `NEMO_GYM_LOG_LEVEL=debug` shows that, too.
"""

import contextlib
import difflib
import functools
import inspect
import logging
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from nemo_gym.common.exception_groups import leaf_errors
from nemo_gym.common.logging import configure_logging
from nemo_gym.common.redaction import printable, redact
from nemo_gym.errors import ConfigError, GymError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from nemo_gym.config.command_options import BaseNeMoGymCLIConfig, CommandConfig

    Parameters = TypeVar("Parameters", bound=CommandConfig)

logger = logging.getLogger(__name__)

FAILED = 1
WRONG_USAGE = 2
INTERRUPTED = 130
READER_GONE = 141
"""What a shell reports of a program that wrote into a closed pipe."""

TYPO_CUTOFF = 0.8
"""How alike a word and a parameter have to be for a warning. Words for servers and interpolation are mostly less."""

_HELP = re.compile(r"-h|--help|\+{0,2}(h|help)=(true|1|yes|on)", re.IGNORECASE)
_KEY = re.compile(r"\+{0,2}(\w+)")
_MARK = "__nemo_gym_parameters__"


def command(
    parameters: "type[BaseNeMoGymCLIConfig] | None" = None,
) -> Callable[[Callable[[], int | None]], Callable[[], None]]:
    """Make a function a command. `parameters` is what it can be told; its help is shown on `--help` and `+h=true`.

    An int that the function returns becomes the exit code. Only an exit code other than 0 is raised, so that a program
    can call a command.
    """

    def wrap(function: Callable[[], int | None]) -> Callable[[], None]:
        @functools.wraps(function)
        def run() -> None:
            with _quiet_when_the_reader_is_gone():
                if _asks_for_help():
                    _show_help(parameters, function)
                    raise SystemExit(0)
                code = _carry_out(function, parameters)
            if code:
                raise SystemExit(code)

        setattr(run, _MARK, parameters)
        return run

    return wrap


def parameters_of(function: Callable[[], None]) -> "type[BaseNeMoGymCLIConfig] | None":
    """What a command can be told."""
    kind: type[BaseNeMoGymCLIConfig] | None = getattr(function, _MARK, None)
    return kind


def read_command_line(*, fill_ports: bool = False) -> "DictConfig":
    """The configuration that this process was told, checked and completed; one that a program has set comes first."""
    cached = _cached_config()
    if cached is not None:
        return cached
    from nemo_gym.config.loading import load_config

    return load_config(sys.argv[1:], fill_ports=fill_ports)


def read_parameters(kind: "type[Parameters]") -> "Parameters":
    """The parameters of a command that needs no servers: what the configuration says about those is not checked."""
    return kind.read(read_unchecked())


def read_unchecked(initial: "DictConfig | None" = None) -> "DictConfig":
    """The configuration as it was merged, for a command that starts no servers.

    `initial` is merged between `env.yaml` and the command line.
    """
    cached = _cached_config()
    if cached is not None:
        return cached
    from nemo_gym.config.sources import read_sources

    return read_sources(sys.argv[1:], initial=initial).merge()


def _cached_config() -> "DictConfig | None":
    """What `get_global_config_dict` would answer without reading anything. Nobody can have set it before import."""
    module = sys.modules.get("nemo_gym.config.loading")
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
    from nemo_gym.config.command_options import help_text

    sys.stdout.write(help_text(parameters))


def _warn_of_typos(parameters: "type[BaseNeMoGymCLIConfig]") -> None:
    """Unknown keys are fine, for a configuration holds many. One that is nearly a parameter is hardly meant."""
    fields = parameters.model_fields
    known = {*fields, *(field.alias for field in fields.values() if field.alias)}
    keys = (match[1] for argument in sys.argv[1:] if (match := _KEY.match(argument)))
    for key in keys:
        close = difflib.get_close_matches(key, known, n=1, cutoff=TYPO_CUTOFF)
        if key not in known and close:
            logger.warning("'%s' is no parameter of this command. Did you mean '%s'?", key, close[0])


def _carry_out(function: Callable[[], int | None], parameters: "type[BaseNeMoGymCLIConfig] | None") -> int:
    """The exit code that running `function` leads to."""
    _listen_to_signals()
    try:
        if not logging.getLogger().handlers:
            configure_logging()
        if parameters is not None and _cached_config() is None:
            _warn_of_typos(parameters)
        return function() or 0
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return INTERRUPTED
    except (GymError, BaseExceptionGroup) as raised:
        errors = list(leaf_errors(raised))
        if not all(isinstance(error, GymError) for error in errors):
            raise
        for error in errors:
            logger.debug("raised here:", exc_info=error)
        sys.stderr.write(printable(redact("\n".join(dict.fromkeys(map(str, errors))))) + "\n")
        return WRONG_USAGE if all(isinstance(error, ConfigError) for error in errors) else FAILED


def _listen_to_signals() -> None:
    """SIGTERM ends a command as Ctrl+C does, and so does SIGINT where a script has started it with that ignored."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))


@contextlib.contextmanager
def _quiet_when_the_reader_is_gone() -> Iterator[None]:
    """`ng_dump_config | head` is no error. Flushes, so that no write is left to the interpreter's last moments."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _is_reader_gone():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(READER_GONE) from None


def _is_reader_gone() -> bool:
    """Whether it was standard output that could not be written, and not some other pipe."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))

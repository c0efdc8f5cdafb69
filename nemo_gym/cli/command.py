"""The code that all commands share: parameters, help, output, error messages and exit codes.

A command is a function of its typed parameters. Exit codes: 0 success, 1 the job failed, 2 wrong usage or
configuration, 130 interrupted. A `GymError` is printed as a message without traceback, unless
`NEMO_GYM_LOG_LEVEL=debug`. Results go to standard output: text for people, or with `--json` one JSON document.
"""

import contextlib
import difflib
import functools
import inspect
import io
import json
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from nemo_gym.common.exceptions import leaf_errors
from nemo_gym.common.interrupts import INTERRUPTED, interrupts
from nemo_gym.common.logging import FORMAT_ENV_VAR, LEVEL_ENV_VAR, configure_logging
from nemo_gym.common.redaction import printable, process_redactor, redact
from nemo_gym.common.words import terminal_columns, wrap_paragraphs
from nemo_gym.config.command_line import (
    CommandLine,
    asks_for_help,
    parse_command_line,
    process_command_line,
    running_command,
)
from nemo_gym.errors import ConfigError, GymError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from nemo_gym.config.command_options import BaseNeMoGymCLIConfig, CommandConfig
    from nemo_gym.config.sources import Initial

    Parameters = TypeVar("Parameters", bound=CommandConfig)

logger = logging.getLogger(__name__)

END_GRACE_S, EXIT_FUNCTIONS_GRACE_S = 3.0, 30.0
"""Seconds for which threads of servers, and functions that Python calls at exit, may run after a command has ended:
these may have something to store, unless the user has interrupted the command."""

FAILED = 1
WRONG_USAGE = 2
READER_GONE = 141
"""The exit code of a program that wrote into a closed pipe (SIGPIPE)."""

TYPO_CUTOFF = 0.8
"""Similarity of an unknown key and a parameter above which a typo is likely."""

Main = Callable[[], None]
"""A command as a script or a program calls it. It raises SystemExit only if the exit code is not 0."""

_PARAMETERS = "__nemo_gym_parameters__"


def command(parameters: "type[Parameters]") -> "Callable[[Callable[[Parameters], int | None]], Main]":
    """Make a function of its parameters a command. An int that it returns is the exit code.

    The parameters come from the command line, `env.yaml` and the files in `config_paths`. Servers are not checked.
    """

    def wrap(function: "Callable[[Parameters], int | None]") -> Main:
        return _as_script(function, parameters, lambda line: function(parameters.read(merged_config(line))))

    return wrap


def config_command(
    parameters: "type[Parameters]",
    *,
    checked: bool = True,
    initial: "Initial | None" = None,
    complete: "Callable[[DictConfig], None]" = lambda _config: None,
) -> "Callable[[Callable[[Parameters, DictConfig], int | None]], Main]":
    """Make a function of its parameters and of the whole configuration a command.

    Unless it is `checked`, the configuration is as it was merged. `initial` is merged between `env.yaml` and the
    command line. `complete` may change the configuration before the parameters are read from it.
    """

    def wrap(function: "Callable[[Parameters, DictConfig], int | None]") -> Main:
        def run(line: CommandLine) -> int | None:
            config = (checked_config if checked else merged_config)(line, initial)
            complete(config)
            return function(parameters.read(config), config)

        return _as_script(function, parameters, run)

    return wrap


def word_command(function: Callable[[list[str]], int | None]) -> Main:
    """Make a function of the words that follow it a command that needs no configuration, such as `ng help run`."""

    def run(line: CommandLine) -> int | None:
        if line.overrides:
            raise ConfigError(f"Unexpected argument '{line.overrides[0].shown}'. Expected words without dashes.")
        return function(list(line.words))

    return _as_script(function, None, run)


def parameters_of(function: Main) -> "type[BaseNeMoGymCLIConfig] | None":
    """The parameter class of a command, if it has one."""
    kind: type[BaseNeMoGymCLIConfig] | None = getattr(function, _PARAMETERS, None)
    return kind


def checked_config(line: CommandLine, initial: "Initial | None" = None) -> "DictConfig":
    """The configuration, checked and completed; or the one that a program has set."""
    cached = _cached_config()
    if cached is not None:
        return cached
    from nemo_gym.config.loading import load_config

    return load_config(line, initial=initial, fill_ports=False)


def merged_config(line: CommandLine | None = None, initial: "Initial | None" = None) -> "DictConfig":
    """The configuration as it was merged, for a command that starts no servers. By default that of this process."""
    cached = _cached_config()
    if cached is not None:
        return cached
    from nemo_gym.config.sources import apply_directives, read_sources

    config = read_sources(process_command_line() if line is None else line, initial=initial).merge()
    apply_directives(config)
    return config


def _cached_config() -> "DictConfig | None":
    """The cached global config, without importing its module: before that is imported, nothing can be cached."""
    module = sys.modules.get("nemo_gym.compat.global_config")
    cached: DictConfig | None = getattr(module, "_GLOBAL_CONFIG_DICT", None)
    return cached


# Running


def _as_script(
    function: Callable[..., int | None],
    parameters: "type[BaseNeMoGymCLIConfig] | None",
    run: Callable[[CommandLine], int | None],
) -> Main:
    @functools.wraps(function)
    def script() -> None:
        with _ignore_closed_stdout():
            if _wants_help():
                _show_help(parameters, function)
                raise SystemExit(0)
            code = _run_command(run, parameters)
        _end_despite_servers(code)
        if code:
            raise SystemExit(code)

    setattr(script, _PARAMETERS, parameters)
    return script


def _end_despite_servers(code: int) -> None:
    """Have this process end soon after its main thread, also if code of a server has left a thread that runs on, or a
    function that Python calls at exit and that does not return."""
    left = [each.name for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    grace_s = END_GRACE_S if left or code == INTERRUPTED else EXIT_FUNCTIONS_GRACE_S

    def end() -> None:
        threading.main_thread().join()  # it ends before Python waits for the others
        time.sleep(grace_s)
        what = f"threads that the code of servers has left: {', '.join(left)}" if left else "functions called at exit"
        sys.stderr.write(f"Not waiting for {what}.\n")
        sys.stderr.flush()
        os._exit(code)

    threading.Thread(target=end, name="nemo-gym-end", daemon=True).start()


def _wants_help() -> bool:
    cached = _cached_config()
    return asks_for_help(sys.argv[1:]) if cached is None else bool(cached.get("h") or cached.get("help"))


def _show_help(parameters: "type[BaseNeMoGymCLIConfig] | None", function: Callable[..., int | None]) -> None:
    if parameters is None:
        print(*wrap_paragraphs(inspect.getdoc(function) or "", terminal_columns()), sep="\n")
        return
    from nemo_gym.config.command_options import help_text

    sys.stdout.write(help_text(parameters, sys.argv[0].rpartition("/")[2]))


def _run_command(run: Callable[[CommandLine], int | None], parameters: "type[BaseNeMoGymCLIConfig] | None") -> int:
    """Run the command and return the exit code."""
    with interrupts.handled():
        return _run_interruptible(run, parameters)


def _run_interruptible(
    run: Callable[[CommandLine], int | None], parameters: "type[BaseNeMoGymCLIConfig] | None"
) -> int:
    try:
        line = CommandLine()
        if _cached_config() is None:
            line = parse_command_line(sys.argv[1:], parameters, takes_words=parameters is None)
        _configure_output(line)
    except ConfigError as error:
        return _report(error)[0]
    if not line.wants_json:
        return _run_logged(run, line, parameters)[0]
    with json_output() as ended:
        ended.exit_code, ended.error = _run_logged(run, line, parameters)
    return ended.exit_code


def _configure_output(line: CommandLine) -> None:
    """Worker processes inherit the settings by the environment."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a locale without UTF-8 gets '?' for what it cannot show
        sys.stdout.reconfigure(errors="replace")
    if line.is_verbose or line.is_quiet:
        os.environ[LEVEL_ENV_VAR] = "debug" if line.is_verbose else "warning"
    if line.log_format is not None:
        os.environ[FORMAT_ENV_VAR] = line.log_format
    if not logging.getLogger().handlers:
        configure_logging()


def _run_logged(
    run: Callable[[CommandLine], int | None], line: CommandLine, parameters: "type[BaseNeMoGymCLIConfig] | None"
) -> tuple[int, str | None]:
    """The exit code, and the error message if there is one."""
    try:
        if parameters is not None:
            _warn_of_typos(line, parameters)
        with running_command(line):
            return run(line) or 0, None
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        return INTERRUPTED, "Interrupted."
    except SystemExit as exit_:
        return (exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)), None
    except (GymError, BaseExceptionGroup) as raised:
        if not all(isinstance(error, GymError) for error in leaf_errors(raised)):
            raise
        return _report(raised)


def _warn_of_typos(line: CommandLine, parameters: "type[BaseNeMoGymCLIConfig]") -> None:
    """Unknown keys are allowed, because a configuration has many. One that is almost a parameter, or a key that all
    configurations may have, is likely a typo."""
    from nemo_gym.config.keys import HEAD_SERVER_KEY_NAME, SETTINGS_KEYS

    fields = parameters.model_fields
    own = {*fields, *(field.alias for field in fields.values() if field.alias)}
    for key, dot, _ in (override.key.partition(".") for override in line.overrides if not override.deletes):
        known = own | {HEAD_SERVER_KEY_NAME} if dot else own | SETTINGS_KEYS
        close = difflib.get_close_matches(key, known, n=1, cutoff=TYPO_CUTOFF)
        if key not in known and close:
            logger.warning("'%s' is not a parameter of this command. Did you mean '%s'?", key, close[0])


def _report(raised: BaseException) -> tuple[int, str]:
    """Print errors of ours, without traceback."""
    errors = list(leaf_errors(raised))
    for error in errors:
        logger.debug("raised here:", exc_info=error)
    message = printable(redact("\n".join(dict.fromkeys(map(str, errors)))))
    sys.stderr.write(f"{message}\n")
    return (WRONG_USAGE if all(isinstance(error, ConfigError) for error in errors) else FAILED), message


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


# Output


@dataclass
class _JsonOutput:
    """The document of the running command."""

    stdout: TextIO
    printed: io.StringIO = field(default_factory=io.StringIO)
    result: Any = None

    def document(self, exit_code: int, error: str | None) -> dict[str, Any]:
        text = self.printed.getvalue().strip("\n")
        result = self.result if self.result is not None else {"output": text.splitlines()} if text else {}
        document = dict(result) if isinstance(result, dict) else {"result": result}
        return {**document, **({"error": error} if error else {}), "exit_code": exit_code}


_current: _JsonOutput | None = None


def wants_json() -> bool:
    """True if the running command was given `--json`."""
    return _current is not None


def print_result(result: Any, text: str = "") -> None:
    """Print the result of a command: the value with `--json`, otherwise the text. With `--json`, what a command prints
    without calling this is the `output` of the document."""
    if _current is None:
        print(text)
    else:
        _current.result = result


def flush_result() -> None:
    """Write the document now, for a command that continues after its result."""
    if _current is not None and _current.result is not None:
        _write(_current.stdout, _current.document(0, None))
        _current.result, _current.printed = None, io.StringIO()


class JsonCommand:
    """Set by the command wrapper: how the command ended."""

    exit_code = 0
    error: str | None = None


@contextlib.contextmanager
def json_output() -> Iterator[JsonCommand]:
    """Collect what is printed inside, and write one document at the end."""
    global _current  # noqa: PLW0603 -- one command runs at a time
    outer, ended = _current, JsonCommand()
    _current = collected = _JsonOutput(sys.stdout)
    try:
        with contextlib.redirect_stdout(collected.printed):
            yield ended
    finally:
        _current = outer
        _write(collected.stdout, collected.document(ended.exit_code, ended.error))


def _write(stream: TextIO, document: dict[str, Any]) -> None:
    shown = process_redactor().value(document)
    stream.write(json.dumps(shown, indent=2, ensure_ascii=False, default=str) + "\n")
    stream.flush()

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import tomllib
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemo_gym import cli
from nemo_gym.cli.app import completion, main, script_for, words_after
from nemo_gym.cli.commands import COMMANDS, GROUPS
from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.compat import global_config
from nemo_gym.errors import ConfigError
from tests.commands import BIN

HEAVY = {"pydantic", "aiohttp", "omegaconf", "hydra", "openai", "ray", "fastapi", "uvicorn"}
_PROGRAM = """
import sys
from nemo_gym.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def modules_loaded_by(*arguments: str) -> set[str]:
    """What `ng` with these arguments imports."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines()[-1].split())


def run_ng(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ng", *arguments])
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_the_scripts_of_the_package_are_the_commands_of_the_list() -> None:
    scripts = tomllib.loads((PARENT_DIR / "pyproject.toml").read_text())["project"]["scripts"]
    listed = {
        f"{prefix}_{each.name}": f"nemo_gym.cli:{each.function}"
        for prefix in ("ng", "nemo_gym")
        for each in COMMANDS.values()
    }
    public = {"ng_e2e_collect_rollouts": "nemo_gym.cli:collect_rollouts", "ng_validate": "nemo_gym.cli:check_compat"}
    assert scripts == {"ng": "nemo_gym.cli:main", "gym": "nemo_gym.cli:main", **public, **listed}


def test_every_script_imports_a_function() -> None:
    """Not the module of the same name, which importing the function's module binds in the package."""
    names = [each.function for each in COMMANDS.values()]
    program = "".join(f"from nemo_gym.cli import {name}\nassert callable({name}), '{name}'\n" for name in names)
    subprocess.run([sys.executable, "-c", program], check=True)


_INTERRUPTED = """
import signal, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "nemo_gym.cli.evaluate":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from nemo_gym.cli import {function}
{function}()
"""


@pytest.mark.parametrize("function", ["main", "evaluate_model"])
def test_ctrl_c_during_the_imports_shows_no_traceback(function: str) -> None:
    program = _INTERRUPTED.format(function=function)
    done = subprocess.run([sys.executable, "-c", program, "eval"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


def test_every_command_is_documented() -> None:
    text = (PARENT_DIR / "docs" / "commands.md").read_text()
    assert [name for name in COMMANDS if f"`ng_{name}`" not in text] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_its_help_when_the_cached_config_asks_for_it(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(global_config, "_GLOBAL_CONFIG_DICT", OmegaConf.create({"h": True}))
    with pytest.raises(SystemExit) as ended:
        COMMANDS[name].load()()
    assert ended.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 0


@pytest.mark.parametrize("arguments", [(), ("help",), ("--help",), ("-h",)])
def test_all_commands_are_listed(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_ng(monkeypatch, *arguments) == 0
    output = capsys.readouterr().out
    assert "Available CLI scripts" in output
    joined = " ".join(output.split())
    for title, commands in GROUPS.items():
        assert f"\n{title}\n" in output
        assert all(f" ng_{each.name} {each.summary}" in joined for each in commands)


@pytest.mark.parametrize(
    "arguments",
    [
        ("help", "init_resources_server"),
        ("help", "init-resources-server"),
        ("init-resources-server", "--help"),
        ("init_resources_server", "+h=true"),
    ],
)
def test_the_help_of_one_command(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_ng(monkeypatch, *arguments) == 0
    output = capsys.readouterr().out
    assert re.match(r"Usage: ng init.resources.server <entrypoint> ", output)
    assert "- entrypoint (text)" in output


@pytest.mark.parametrize("arguments", [("tests",), ("help", "tests")])
def test_an_unknown_command_is_answered_with_the_nearest(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_ng(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "'tests'" in captured.err
    assert "'test'?" in captured.err


def test_the_version_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_ng(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("NeMo Gym v")
    assert run_ng(monkeypatch, "--version", "--json") == 0
    assert "dependencies" in json.loads(capsys.readouterr().out)


def test_importing_the_commands_imports_none_of_them() -> None:
    program = "import sys; before = set(sys.modules); import nemo_gym.cli; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {name for name in done.stdout.split() if name.startswith("nemo_gym.cli.")} <= {"nemo_gym.cli.commands"}
    assert not HEAVY & set(done.stdout.split())


def test_starting_servers_imports_no_types_of_models() -> None:
    """They take long to import, and only workers need them."""
    program = (
        "import sys, nemo_gym.cli.servers; print(*(name for name in sys.modules if name.startswith('nemo_gym.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    needless = {"nemo_gym.llm_api.responses", "nemo_gym.base_resources_server", "nemo_gym.rollouts", "nemo_gym.viewer"}
    assert not needless & set(done.stdout.split())


def test_collecting_imports_at_most_110_modules() -> None:
    program = "import sys, nemo_gym.cli.collect; print(*(name for name in sys.modules if name.startswith('nemo_gym')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) <= 110


@pytest.mark.parametrize(
    "name",
    ["RunHelper", "RunConfig", "TestConfig", "GlobalConfigDictParserConfig", "ServerInstanceDisplayConfig"],
)
def test_what_outside_code_imports_is_there(name: str) -> None:
    assert getattr(cli, name).__name__ == name


def test_listing_the_commands_loads_nothing_that_costs() -> None:
    assert not HEAVY & modules_loaded_by("help")


def test_the_help_of_a_command_loads_no_configuration() -> None:
    assert not {"hydra", "omegaconf", "aiohttp", "ray"} & modules_loaded_by("test", "--help")


def test_the_package_can_be_run_as_ng(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nemo_gym", "--version"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("NeMo Gym v")


def shown_at(columns: int, *arguments: str) -> list[str]:
    """What a command prints to a terminal of this width."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    running = subprocess.Popen([BIN / "ng", *arguments], stdout=inner, env=environment)
    os.close(inner)
    printed = b""
    while chunk := _read(outer):
        printed += chunk
    assert running.wait() == 0
    os.close(outer)
    return printed.decode().splitlines()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the command has ended
        return b""


@pytest.mark.parametrize("columns", [70, 100])
def test_help_is_as_wide_as_the_terminal(columns: int) -> None:
    lines = shown_at(columns, "eval", "--help")
    assert max(len(line) for line in lines if not line.startswith("  ng ")) <= columns
    text = " ".join(" ".join(lines).split())
    assert "Usage: ng eval <environment> ... [--name value ...]" in text
    assert re.search(r"- limit \(whole number\) [^\[]* \[short: -n\]", text)
    for arguments in (["--help"], ["help", "completion"], ["help", "doctor"]):
        assert max(map(len, shown_at(columns, *arguments))) <= columns


# Shell completion

_ASK = """
compopt() { :; }
source /dev/stdin <<< "$SCRIPT"
for line in "ng dev" "ng test +s" "ng_test +entry" "ng help test_"; do
  COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _ng; echo "${COMPREPLY[@]}"
done
"""


def test_the_parameters_of_a_command_can_follow_it() -> None:
    options = ["--entrypoint", "--should-validate-data", "--help"]
    words = words_after("test")
    assert (words[:2], words[-3:]) == (["+entrypoint=", "+should_validate_data="], options)
    assert "resources_servers/mcqa" in words  # it may be given without a name
    assert words_after("version") == ["+json=", "--json", "--help"]


@pytest.mark.parametrize(
    ("command", "before", "word"),
    [
        ("eval", "", "mcqa"),
        ("eval", "--model", "local"),
        ("eval", "-m", "vllm_model"),
        ("list", "", "datasets"),
        ("run", "--config-paths", "resources_servers/mcqa/configs/mcqa.yaml"),
        ("collect_rollouts", "+config_paths", "responses_api_models/openai_model/configs/openai_model.yaml"),
        ("collect_rollouts", "--agent-name", "mcqa_simple_agent"),
        ("test", "+entrypoint=", "resources_servers/mcqa"),
    ],
)
def test_names_and_paths_are_completed(command: str, before: str, word: str) -> None:
    assert word in words_after(command, before)


def test_a_command_follows_help_and_a_shell_follows_completion() -> None:
    assert set(words_after("help")) == {*COMMANDS, "--help"}
    assert "fish" in words_after("completion")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_has_all_commands_and_nothing_left_to_fill_in(shell: str) -> None:
    script = script_for(shell)
    assert all(name in script for name in COMMANDS)
    assert "@" not in script.replace("COMP_WORDS[@]", "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_commands_and_parameters() -> None:
    path = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "-c", f'PATH={path}:"$PATH"\n{_ASK}'],
        env={"SCRIPT": script_for("bash"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines() == ["dev_test", "+should_validate_data=", "+entrypoint=", "test_all"]
    assert done.stderr == ""


def test_a_shell_we_do_not_know() -> None:
    with pytest.raises(ConfigError, match=r"'tcsh'.*bash, zsh, fish"):
        script_for("tcsh")


def test_no_shell_named_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ng completion"])
    with pytest.raises(SystemExit) as ended:
        completion()
    assert ended.value.code == 2

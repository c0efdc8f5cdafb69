import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemo_gym import cli
from nemo_gym.cli.app import main
from nemo_gym.cli.commands import COMMANDS
from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.compat import global_config

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
    for each in COMMANDS.values():
        assert f"\nng_{each.name} " in output
        assert each.summary in output


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
    assert "- entrypoint (str)" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("tests",), ("help", "tests")])
def test_an_unknown_command_is_answered_with_the_nearest(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_ng(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no command 'tests'. Did you mean 'test'?" in captured.err


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

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from nemo_gym.cli import dump_config, pip_list, version
from nemo_gym.common.paths import PARENT_DIR


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with settings of its own, so that nobody's `env.yaml` takes part."""
    (tmp_path / "env.yaml").write_text("policy_api_key: sk-very-secret\n")
    monkeypatch.chdir(tmp_path)


def set_arguments(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["ng", *arguments])


def test_a_dump_is_resolved_and_holds_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text(
        "policy_model:\n"
        "  responses_api_models:\n"
        "    openai_model:\n"
        "      entrypoint: app.py\n"
        "      openai_api_key: ${policy_api_key}\n"
        "      note: the key is ${policy_api_key}, the size ${size}\n"
    )
    set_arguments(monkeypatch, "+config_paths=[a.yaml]", "+size=3")
    dump_config()
    output = capsys.readouterr().out
    assert "secret" not in output
    block = yaml.safe_load(output)["policy_model"]["responses_api_models"]["openai_model"]
    assert block["openai_api_key"] == "****"
    assert block["note"] == "the key is ****, the size 3"
    assert "port" not in block


def test_a_dump_of_what_cannot_be_resolved_names_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.yaml").write_text("size: ${sze}\n")
    set_arguments(monkeypatch, "+config_paths=[a.yaml]")
    with pytest.raises(SystemExit) as ended:
        dump_config()
    assert ended.value.code == 2
    assert "sze" in capsys.readouterr().err


def test_the_version_as_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    set_arguments(monkeypatch)
    version()
    output = capsys.readouterr().out
    assert output.startswith(f"NeMo Gym v{metadata.version('nemo-gym')}\n")
    assert sys.executable in output


def test_the_version_for_programs() -> None:
    program = (
        "import sys; from nemo_gym.cli import version; version(); "
        "assert not {'ray', 'openai', 'aiohttp'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "+json=true"], capture_output=True, text=True, check=True, timeout=60
    )
    facts = json.loads(done.stdout)
    assert facts["nemo_gym"] == metadata.version("nemo-gym")
    assert (facts["python_path"], facts["installation_path"]) == (sys.executable, str(PARENT_DIR))
    assert facts["dependencies"].keys() >= {"openai", "ray"}
    assert facts["system"].keys() == {"os", "platform", "architecture", "processor", "cpus", "memory_gb"}
    assert facts["system"]["memory_gb"] > 0


def test_a_folder_that_needs_nothing_runs_with_our_packages(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    set_arguments(monkeypatch, "+entrypoint=resources_servers/example_simple_weather", "+format=json")
    pip_list()
    captured = capfd.readouterr()
    assert sys.executable in captured.err
    assert "pydantic" in {package["name"] for package in json.loads(captured.out)}


def test_a_folder_that_is_not_there_has_no_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_arguments(monkeypatch, "+entrypoint=resources_servers/example_simple_wether")
    with pytest.raises(SystemExit) as ended:
        pip_list()
    assert ended.value.code == 2
    assert "example_simple_weather'?" in capsys.readouterr().err

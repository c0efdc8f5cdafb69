import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.cli.commands import COMMANDS
from nemo_gym.cli.shell_completion import completion, script_for, words_after
from nemo_gym.errors import ConfigError

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
    with pytest.raises(ConfigError, match="Found 'tcsh', expected one of bash, zsh, fish"):
        script_for("tcsh")


def test_no_shell_named_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ng completion"])
    with pytest.raises(SystemExit) as ended:
        completion()
    assert ended.value.code == 2

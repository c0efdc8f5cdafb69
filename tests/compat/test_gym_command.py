"""The public command tree as other names for our commands."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemo_gym.cli.commands import COMMANDS
from nemo_gym.compat.gym_command import is_of_tree, listed, translated
from nemo_gym.config.command_line import parse_command_line
from nemo_gym.config.sources import command_line_config
from nemo_gym.errors import ConfigError
from tests.commands import ng
from tests.public.project_copy import copy_project


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(copy_project(tmp_path))
    return tmp_path


def test_flags_become_keys_and_selectors_one_list_of_files(root: Path) -> None:
    name, keys = translated(
        [
            *("eval", "run", "--benchmark", "shopping", "--model-type", "echo", "-o", "out.jsonl", "--limit=3"),
            *("--model", "gpt 5", "--temperature", "0.5", "--resume", "+rollout_timeout_s=5"),
        ]
    )
    assert name == "collect_rollouts"
    files = f"{root}/benchmarks/shopping/config.yaml,{root}/responses_api_models/echo/configs/echo.yaml"
    assert keys == [
        "+materialize_inputs=true",
        "++output_jsonl_fpath=out.jsonl",
        "++limit=3",
        "++policy_model_name='gpt 5'",
        "++responses_create_params.temperature=0.5",
        "+resume=continue",
        "+rollout_timeout_s=5",
        f"+config_paths=[{files}]",
    ]


@pytest.mark.parametrize("key", ["it's", "ends in \\", "a 'b' \\' c", "[a]", "${x}", "sk-1"])
def test_a_value_arrives_as_it_is_written_whatever_characters_it_has(key: str) -> None:
    _, keys = translated(["eval", "run", "--model-api-key", key])
    assert OmegaConf.to_container(command_line_config(parse_command_line(keys)), resolve=True)["policy_api_key"] == key  # type: ignore[index, call-overload]


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("env start --config a.yaml", ("run", ["+config_paths=[a.yaml]"])),
        ("env prefetch --config a.yaml", ("run", ["+dry_run=true", "+config_paths=[a.yaml]"])),
        ("eval run --no-serve --config a.yaml", ("collect_rollouts", ["+materialize_inputs=true"])),
        ("env test", ("test_all", [])),
        ("env status --json", ("status", ["--json"])),
        ("env test --resources-server shop", ("test", ["+entrypoint=resources_servers/shop"])),
        ("env resolve --resources-server shop", ("dump_config", [
            "+config_paths=[{root}/resources_servers/shop/configs/shop.yaml]"])),
        ("dataset download --storage gitlab --name x", ("download_dataset_from_gitlab", ["++dataset_name=x"])),
        ("dataset download --repo-id a/b", ("download_dataset_from_hf", ["++repo_id=a/b"])),
        ("eval profile --inputs a --rollouts b", ("reward_profile", [
            "++input_jsonl_fpath=a", "++rollouts_jsonl_fpath=b"])),
        ("eval health-check runs/1 --json", ("check_rollouts", ["++rollouts_jsonl_fpath=runs/1", "--json"])),
        ("env validate --resources-server shop", ("check_compat", ["+folder=resources_servers/shop"])),
        ("eval aggregate -i a_*.jsonl -o b", ("aggregate_rollouts", [
            "++rollouts_jsonl_fpath='a_*.jsonl'", "++output_jsonl_fpath=b"])),
        ("eval reverify --model m --inputs a --rollouts b --output c --force", ("reverify", [
            "++policy_model_name=m", "++input_jsonl_fpath=a", "++rollouts_jsonl_fpath=b", "++output_jsonl_fpath=c"])),
    ],
)  # fmt: skip
def test_each_is_one_of_our_commands(root: Path, line: str, command: tuple[str, list[str]]) -> None:
    name, keys = translated(line.split())
    assert (name, keys) == (command[0], [key.format(root=root) for key in command[1]])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("eval run --concurency 4", "'--concurency' is not a flag of this command. Did you mean '--concurrency'"),
        ("eval runn", "There is no command 'gym eval runn'. Did you mean 'eval run'"),
        ("eval run --output", "'--output' needs a value"),
        ("env start --resources-server nobody", "nobody"),
        ("list shops", "Give what to list"),
        ("eval submit --config a.yaml", "'gym eval submit' is not part of this package"),
        ("env publish shop", "'gym env publish' is not part of this package"),
        ("eval reverify --judge-failed-only", "Give the file of failures as --rollouts"),
        ("env init --benchmark x", "a config.yaml and a prepare.py"),
    ],
)
def test_a_mistake_is_named(root: Path, line: str, message: str) -> None:
    arguments = line.split()
    with pytest.raises(ConfigError, match=message):
        listed(arguments) if arguments[0] == "list" else translated(arguments)


def test_folders_are_listed_and_searched(root: Path) -> None:
    assert "benchmarks/shopping" in listed(["list", "benchmarks"])
    assert is_of_tree(["eval", "submit"], COMMANDS)
    assert listed(["search", "agents", "shopper"]) == ["responses_api_agents/shopper"]
    assert is_of_tree(["list", "environments", "word"], COMMANDS)
    assert not is_of_tree(["list", "environments", "--json"], COMMANDS)


@pytest.mark.slow
def test_gym_is_a_program_and_refuses_unknown_flags(root: Path) -> None:
    done = ng("gym", "env", "resolve", "--config", "responses_api_models/echo/configs/echo.yaml", cwd=root)
    assert "echo-1" in done.stdout, done.stderr
    assert ng("gym", "env", "resolve", "--confg", "x", cwd=root).returncode == 2
    assert "environments/word_lab_easy" in ng("gym", "list", "environments", cwd=root).stdout


@pytest.mark.slow
def test_a_folder_is_checked_before_anything_of_it_runs(root: Path) -> None:
    nested = root / "responses_api_agents" / "harnesses" / "plain"
    nested.mkdir(parents=True)
    (nested / "app.py").write_text("import nemo_gym\n")
    done = ng("ng_check_compat", str(root), cwd=root.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "responses_api_agents/harnesses/plain: resolves" in done.stdout
    assert "19 of 19 folders resolve." in done.stdout
    app = root / "resources_servers" / "shop" / "app.py"
    app.write_text("from nemo_gym.base_resources_server import SimpleResourceServer\nimport nemo_gym.nowhere\n")
    (root / "resources_servers" / "shop" / "requirements.txt").write_text("no-such-package\n")
    done = ng("ng_check_compat", str(root / "resources_servers" / "shop"), cwd=root.parent)
    assert done.returncode == 1
    assert "Did you mean 'SimpleResourcesServer'?" in done.stdout
    assert "'nemo_gym.nowhere'" in done.stdout
    assert "no-such-package" in done.stdout

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from omegaconf import OmegaConf

from nemo_gym.cli.environments import data_problems, init_agent, init_resources_server, write_folder
from nemo_gym.client.server_client import ServerReply
from nemo_gym.config.loading import load_config, server_instances
from nemo_gym.runtime.class_loader import load_server_class
from nemo_gym.runtime.stack import Stack, StackSpec
from nemo_gym.testing import rows_of

RIGHT = [
    {"user": r"(\d+)\D+(\d+)", "turn": 0, "call": [{"name": "add", "arguments": '{"first": \\1, "second": \\2}'}]},
    {"tool_output": r"(\d+)", "say": r"That makes \1."},
]
WRONG = [{"say": "That makes 43."}]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with settings of its own, so that nobody's `env.yaml` takes part."""
    (tmp_path / "env.yaml").touch()
    monkeypatch.chdir(tmp_path)


def init(monkeypatch: pytest.MonkeyPatch, entrypoint: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ng_init_resources_server", f"+entrypoint={entrypoint}"])
    try:
        init_resources_server()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def config_of(name: str, replies: list[dict[str, Any]]) -> Any:
    """The configuration of a new environment with a model that follows a script."""
    paths = [
        f"resources_servers/{name}/configs/{name}.yaml",
        "responses_api_models/scripted_model/configs/scripted_model.yaml",
    ]
    model = {"responses_api_models": {"scripted_model": {"script_fpath": None, "replies": replies}}}
    return load_config(initial={"config_paths": paths, "policy_model": model}, fill_ports=False)


def own_tests(folder: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the tests of a new folder as its user does."""
    program = "from nemo_gym.cli import test; test()"
    return subprocess.run(
        [sys.executable, "-c", program, f"+entrypoint={folder}", *options],
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "-W error -p pytest_asyncio.plugin",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_new_environment_passes_its_own_tests_with_warnings_as_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(monkeypatch, "resources_servers/fresh_one") == 0
    folder = tmp_path / "resources_servers" / "fresh_one"
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert files == {
        "app.py",
        "README.md",
        "configs/fresh_one.yaml",
        "configs/trust.json",
        "data/.gitignore",
        "data/example.jsonl",
        "tests/test_app.py",
    }
    assert data_problems(folder) == []
    output = capsys.readouterr().out
    assert "ng_test +entrypoint=resources_servers/fresh_one" in output
    assert "+agent_name=fresh_one_simple_agent" in output
    done = own_tests("resources_servers/fresh_one", "+should_validate_data=true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_a_new_agent_passes_its_own_tests_with_warnings_as_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["ng_init_agent", "+entrypoint=responses_api_agents/fresh_agent"])
    init_agent()
    folder = tmp_path / "responses_api_agents" / "fresh_agent"
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert files == {"app.py", "README.md", "configs/fresh_agent.yaml", "tests/test_app.py"}
    assert "ng eval example_stateful_counter --agent fresh_agent" in capsys.readouterr().out
    done = own_tests("responses_api_agents/fresh_agent")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("entrypoint", ["resources_servers/agent", "responses_api_agents/MyAgent"])
def test_an_agent_elsewhere_or_with_another_name_is_refused(monkeypatch: pytest.MonkeyPatch, entrypoint: str) -> None:
    monkeypatch.setattr(sys, "argv", ["ng_init_agent", f"+entrypoint={entrypoint}"])
    with pytest.raises(SystemExit):
        init_agent()
    assert list(Path().iterdir()) == [Path("env.yaml")]


@pytest.mark.parametrize(("replies", "reward"), [(RIGHT, 1.0), (WRONG, 0.0)])
async def test_a_new_environment_rewards_the_right_answer_and_no_other(
    replies: list[dict[str, Any]], reward: float, tmp_path: Path
) -> None:
    name = f"played_{uuid4().hex}"
    write_folder(tmp_path / "resources_servers" / name)
    config = config_of(name, replies)
    settings: Any = OmegaConf.to_container(config, resolve=True)
    spec = StackSpec(server_instances(config), settings)
    row = rows_of(f"resources_servers/{name}/data/example.jsonl")[0]
    async with Stack(spec) as stack:
        answer = await stack.client.call(f"{name}_simple_agent", "/run", row, answer=ServerReply)
        record = orjson.loads(answer.content())
    assert record["reward"] == reward
    kinds = [item["type"] for item in record["response"]["output"]]
    assert kinds == (["function_call", "function_call_output", "message"] if reward else ["message"])


def test_the_rows_offer_the_tools_that_the_environment_has(tmp_path: Path) -> None:
    name = f"tools_{uuid4().hex}"
    folder = tmp_path / "resources_servers" / name
    write_folder(folder)
    kind: Any = load_server_class("resources_servers", folder, "app.py")
    assert kind.__name__ == f"Tools{name.removeprefix('tools_').capitalize()}ResourcesServer"
    config = kind.config_class()(name="a", host="", port=0, entrypoint="app.py")
    schemas = kind.model_construct(config=config).tool_schemas()
    rows = rows_of(folder / "data/example.jsonl")
    assert len(rows) == 5
    assert all(row["responses_create_params"]["tools"] == schemas for row in rows)


def test_the_configuration_says_where_data_is_and_under_which_licence(tmp_path: Path) -> None:
    write_folder(tmp_path / "resources_servers" / "licensed")
    instances = {instance.name: instance for instance in server_instances(config_of("licensed", WRONG))}
    assert instances["licensed_resources_server"].config["domain"] == "other"
    agent = instances["licensed_simple_agent"].config
    assert agent["resources_server"] == {"type": "resources_servers", "name": "licensed_resources_server"}
    assert agent["model_server"] == {"type": "responses_api_models", "name": "policy_model"}
    train, validation, example = agent["datasets"]
    for dataset in (train, validation):
        assert dataset["license"] == "Apache 2.0"
        assert dataset["gitlab_identifier"]["version"] == "0.0.1"
        assert dataset["gitlab_identifier"]["artifact_fpath"] == f"licensed/{dataset['type']}.jsonl"
        assert dataset["huggingface_identifier"]["artifact_fpath"] == f"{dataset['type']}.jsonl"
    assert example["jsonl_fpath"] == "resources_servers/licensed/data/example.jsonl"


def test_a_folder_that_is_there_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "resources_servers" / "mine"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text("# mine\n")
    assert init(monkeypatch, "resources_servers/mine") == 0
    assert [file.name for file in folder.iterdir()] == ["app.py"]
    assert (folder / "app.py").read_text() == "# mine\n"
    assert "already exists" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("entrypoint", "message"),
    [
        ("mine", "relative path of two parts"),
        ("responses_api_agents/mine", "expected resources_servers/<name>"),
        ("resources_servers/MyServer", "How about 'resources_servers/my_server'?"),
        ("resources_servers/my-server", "How about 'resources_servers/my_server'?"),
        ("resources_servers/2nd", "starting with a letter"),
        ("resources_servers/class", "not a Python keyword"),
    ],
)
def test_a_name_that_cannot_be_a_module(
    entrypoint: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert init(monkeypatch, entrypoint) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "resources_servers").exists()


def test_a_folder_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "resources_servers").touch()
    assert init(monkeypatch, "resources_servers/mine") == 2
    assert "Cannot write" in capsys.readouterr().err
    assert (tmp_path / "resources_servers").is_file()

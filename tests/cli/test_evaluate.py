"""`ng eval` and `ng list` find everything by name."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.evaluation.catalog import agents_in, config_of, entries, find_environment
from tests.commands import ng


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("mcqa", "mcqa/configs/mcqa.yaml"),
        ("resources_servers/mcqa/", "mcqa/configs/mcqa.yaml"),
        ("example_simple_weather", "example_simple_weather/configs/simple_weather.yaml"),
        ("simple_weather", "example_simple_weather/configs/simple_weather.yaml"),
        ("example_single_tool_call", "example_simple_weather/configs/example_single_tool_call.yaml"),
        ("dapo17k", "math_with_judge/configs/dapo17k.yaml"),
        ("structured_outputs", "structured_outputs/configs/structured_outputs_json.yaml"),
    ],
)
def test_an_environment_is_found_by_its_name(name: str, config: str) -> None:
    found = config_of(find_environment(name), name.rstrip("/").rpartition("/")[2])
    assert str(found).endswith(f"resources_servers/{config}")


SEVERAL = ("arc", "tau2")
"""Folders that have benchmarks with names of their own, and none with that of the folder."""


def test_every_environment_can_be_evaluated_by_its_name() -> None:
    for entry in entries("resources_servers"):
        assert entry.description, entry.name
        names = [path.stem for path in entry.configs] if entry.folder.name in SEVERAL else [entry.name]
        assert all(agents_in(config_of(entry, name)) for name in names), entry.name


def test_an_agent_is_not_taken_for_an_environment() -> None:
    with pytest.raises(ConfigError, match=r"'simple_agent' is an agent"):
        find_environment("simple_agent")


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'calender'.* 'calendar'\?"):
        find_environment("calender")


@pytest.mark.slow
def test_the_only_agent_and_the_examples_are_the_default(tmp_path: Path) -> None:
    done = ng("ng", "eval", "mcqa", "--model", "scripted", "-n", "2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = orjson.loads(done.stdout)
    assert (document["metrics"]["scored"], document["exit_code"]) == (2, 0)
    output = tmp_path / document["output"]
    assert output.parent == tmp_path / "results/mcqa"
    assert len(output.read_bytes().splitlines()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mcqa", "--model", "gpt-x"], "'gpt-x' is a model at an endpoint, which needs a key: set OPENAI_API_KEY"),
        (["mcqa", "--agent", "mcqa_simple"], "Its agents: mcqa_simple_agent. Did you mean 'mcqa_simple_agent'?"),
        (["mcqa", "--dataset", "exampel"], "Its datasets: example, example_with_template_metadata, train."),
        (["mcqa", "--dataset", "train"], "No dataset of mcqa_simple_agent is on disk"),
        (["mcqa", "--agent", "nowhere:Agent"], "'nowhere:Agent' cannot be imported. ModuleNotFoundError"),
        (["mcqa", "--agent", "pathlib:Path"], "Path is no agent"),
        (["mcqa", "--script", "a.jsonl", "--model", "local"], "Give --model or --script"),
        (["mcqa", "calendar", "--script", "replies.jsonl", "-o", "a.jsonl"], "--output names a folder"),
        (["mcqa", "--dataset", "bad.jsonl", "--script", "replies.jsonl"], "no model was called:\n  row 1: "),
        ([], "The argument <environment> is missing"),
    ],
)
def test_a_mistake_names_what_there_is(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    (tmp_path / "replies.jsonl").write_text('{"say": "A"}\n')
    (tmp_path / "bad.jsonl").write_text('{"prompt": "Which?"}\n')
    done = ng("ng", "eval", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


AGENT = """
import nemo_gym as gym


class Polite(gym.Agent):
    async def converse(self, body, jar):
        response = await super().converse(body, jar)
        response.metadata = {"polite": "yes"}
        return response
"""


@pytest.mark.slow
def test_an_own_agent_a_script_and_several_environments_take_one_flag_each(tmp_path: Path) -> None:
    (tmp_path / "my_agents.py").write_text(AGENT)
    (tmp_path / "replies.jsonl").write_text('{"say": "A ${b}"}\n')
    (tmp_path / "extra.yaml").write_text("mcqa: {resources_servers: {mcqa: {record_row_fields: false}}}\n")
    options = ["--agent", "my_agents:Polite", "--script", "replies.jsonl", "--config", "extra.yaml", "-n", "20"]
    done = ng("ng", "eval", "mcqa", "example_simple_weather", *options, "-o", "runs", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = orjson.loads(done.stdout)["environments"]
    assert [each["environment"] for each in found] == ["mcqa", "example_simple_weather"]
    records = [orjson.loads((tmp_path / each["output"]).read_bytes().splitlines()[0]) for each in found]
    assert [each["response"]["metadata"] for each in records] == [{"polite": "yes"}] * 2
    manifest = orjson.loads((tmp_path / "runs/mcqa_manifest.json").read_bytes())
    assert manifest["servers"]["mcqa"]["resources_servers"]["mcqa"]["record_row_fields"] is False
    assert "has 5 rows, fewer than the limit of 20" in done.stderr
    again = ng("ng", "eval", "mcqa", "--model", "local", "-n", "20", "-o", "runs/mcqa.jsonl", cwd=tmp_path)
    assert again.returncode == 2
    assert "policy_model: responses_api_models/scripted_model before, responses_api_models/local_model" in again.stderr
    assert "deleted" not in again.stderr
    assert "--resume continue" in again.stderr


def test_the_list_has_a_line_for_each(tmp_path: Path) -> None:
    done = ng("ng", "list", "--json", cwd=tmp_path)
    listed = orjson.loads(done.stdout)
    assert {"environments", "agents", "models", "datasets"} <= set(listed)
    assert "mcqa/example" in [each["name"] for each in listed["datasets"]]
    assert "local_model" in [each["name"] for each in listed["models"]]
    wrong = ng("ng", "list", "modles", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "Did you mean 'models'?" in wrong.stderr


_COUNTED = """
import sys
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
from nemo_gym.cli import main
try:
    main()
finally:
    print(sum(path.endswith("/env.yaml") for path in opened), file=sys.stderr)
"""


@pytest.mark.slow
def test_the_configuration_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "env.yaml").write_text("num_samples_in_parallel: 1\n")
    arguments = ["eval", "mcqa", "--model", "scripted", "-n", "1", "--output", "out.jsonl"]
    done = subprocess.run(
        [sys.executable, "-c", _COUNTED, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines()[-1] == "1", done.stderr

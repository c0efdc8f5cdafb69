"""The rows that a collection takes from the datasets of its agents."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.cli.collect import use_dataset_of_agent
from nemo_gym.errors import ConfigError
from tests.jsonl import write_lines


def agent(path: Path, **dataset: Any) -> dict[str, Any]:
    found = {"name": path.stem, "type": "benchmark", "jsonl_fpath": str(path), **dataset}
    return {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", "datasets": [found]}}}


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def config(tmp_path: Path) -> DictConfig:
    """Two benchmarks: one has rows with an input, one a prompt."""
    asked = write_lines(tmp_path / "asked.jsonl", [{"responses_create_params": {"input": "Hi"}}])
    filled = write_lines(tmp_path / "filled.jsonl", [{"word": "fig"}, {"word": "pear"}])
    (tmp_path / "prompt.yaml").write_text("user: Spell {word}.")
    prompt = str(tmp_path / "prompt.yaml")
    agents = {"a": agent(asked, num_repeats=2), "b": agent(filled, num_repeats=3, prompt_config=prompt)}
    return OmegaConf.create({**agents, "output_jsonl_fpath": str(tmp_path / "out" / "r.jsonl")})


def test_the_benchmarks_of_several_agents_are_one_collection(config: DictConfig, tmp_path: Path) -> None:
    use_dataset_of_agent(config)
    assert config["input_jsonl_fpath"] == str(tmp_path / "out" / "r_collated_inputs.jsonl")
    assert config["num_repeats"] == {"a": 2, "b": 3}
    assert config["prompt_config"] is None
    rows = read_lines(Path(config["input_jsonl_fpath"]))
    assert [row["agent_ref"]["name"] for row in rows] == ["a", "b", "b"]
    assert rows[0]["responses_create_params"] == {"input": "Hi"}
    assert rows[2]["responses_create_params"]["input"] == [{"role": "user", "content": "Spell pear."}]


def test_the_benchmark_of_one_agent_is_read_where_it_is(config: DictConfig, tmp_path: Path) -> None:
    config["agent_name"] = "b"
    use_dataset_of_agent(config)
    assert (config["input_jsonl_fpath"], config["num_repeats"]) == (str(tmp_path / "filled.jsonl"), 3)
    assert config["prompt_config"] == str(tmp_path / "prompt.yaml")


def test_rows_name_the_skills_of_the_run(config: DictConfig, tmp_path: Path) -> None:
    (tmp_path / "skills" / "plan").mkdir(parents=True)
    (tmp_path / "skills" / "plan" / "SKILL.md").write_text("---\nname: plan\n---\nThink first.\n")
    config.merge_with(
        {"skills": {"path": str(tmp_path / "skills")}, "input_jsonl_fpath": str(tmp_path / "asked.jsonl")}
    )
    use_dataset_of_agent(config)
    (row,) = read_lines(Path(config["input_jsonl_fpath"]))
    assert [skill["name"] for skill in row["skills_ref"]["skills"]] == ["plan"]
    assert "agent_ref" not in row


def test_a_folder_without_skills_is_refused(config: DictConfig, tmp_path: Path) -> None:
    config["skills"] = {"path": str(tmp_path)}
    with pytest.raises(ConfigError, match="has no skill"):
        use_dataset_of_agent(config)

"""Data from a seed: the same bytes, two disjoint files, and gold answers that the verifier accepts."""

import json
from pathlib import Path
from shutil import copytree

import pytest

from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.data.generate import Generated, GenerateDataConfig, generate_data
from nemo_gym.errors import ConfigError
from nemo_gym.testing import rows_of
from tests.commands import ng

MCQA = PARENT_DIR / "resources_servers" / "mcqa"
BROKEN = """
from resources_servers.mcqa.app import McqaResourcesServer

if __name__ == "__main__":
    McqaResourcesServer.run_webserver()
"""
WRONG_GOLD = """
from nemo_gym.row_generators import distinct_rows


def generate_rows(seed, count, difficulty):
    return distinct_rows("wrong", make, seed=seed, count=count, difficulty=difficulty)


def make(chance, level):
    text = f"What is {chance.randint(0, 9999)}?"
    params = {"input": [{"role": "user", "content": text}]}
    row = {"responses_create_params": params, "options": [{"A": "x"}, {"B": "y"}], "expected_answer": "A"}
    return {**row, "gold_response": "B"}
"""


BARE_COUNTER = """
from resources_servers.example_stateful_counter.app import StatefulCounterResourcesServer

if __name__ == "__main__":
    StatefulCounterResourcesServer.run_webserver()
"""
BARE_ROWS = """
def generate_rows(seed, count, difficulty):
    for number in range(count):
        params = {"input": f"Count to {number}."}
        yield {"responses_create_params": params, "initial_count": -1, "expected_count": number}
"""


def generate(folder: Path, output: Path, **options: int) -> Generated:
    config = GenerateDataConfig(entrypoint="x", output_dirpath=str(output), **options)
    return generate_data(config, folder)


def test_the_command_writes_two_disjoint_files(tmp_path: Path) -> None:
    arguments = ("+entrypoint=resources_servers/mcqa", "+train_count=30", "+validation_count=10", "+seed=3")
    for name in ("one", "two"):
        done = ng("ng_generate_data", *arguments, f"+output_dirpath={name}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "40 gold responses" in done.stdout
    train, validation = (rows_of(tmp_path / f"one/{kind}.jsonl") for kind in ("train", "validation"))
    assert (len(train), len(validation)) == (30, 10)
    prompts = [each["responses_create_params"]["input"][0]["content"] for each in train + validation]
    assert len(set(prompts)) == 40
    for kind in ("train", "validation"):
        assert (tmp_path / f"one/{kind}.jsonl").read_bytes() == (tmp_path / f"two/{kind}.jsonl").read_bytes()


def test_validation_rows_stay_the_same_when_there_are_more_for_training(tmp_path: Path) -> None:
    for count in (5, 50):
        generate(MCQA, tmp_path / str(count), train_count=count, validation_count=7, verify_limit=0)
    few, many = ((tmp_path / str(count) / "validation.jsonl").read_bytes() for count in (5, 50))
    assert few == many


def test_a_gold_answer_that_the_verifier_refuses_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "wrong_gold"
    (folder / "configs").mkdir(parents=True)
    (folder / "app.py").write_text(BROKEN)
    (folder / "generate.py").write_text(WRONG_GOLD)
    config = (MCQA / "configs" / "mcqa.yaml").read_text()
    (folder / "configs" / "wrong_gold.yaml").write_text(config.replace("    mcqa:\n", "    wrong_gold:\n"))
    done = ng("ng_generate_data", "+entrypoint=resources_servers/wrong_gold", "+output_dirpath=out", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "reward 0.0" in done.stderr
    assert not (tmp_path / "out" / "train.jsonl").exists()


def test_an_environment_without_a_generator_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"generate\.py"):
        generate(PARENT_DIR / "resources_servers" / "google_search", tmp_path)


def test_older_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match="overwrite=true"):
        generate(MCQA, tmp_path, verify_limit=0)
    assert (tmp_path / "train.jsonl").read_text() == "mine"


def test_rows_without_tools_are_verified_with_those_of_their_environment(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "bare_counter"
    (folder / "configs").mkdir(parents=True)
    (folder / "app.py").write_text(BARE_COUNTER)
    (folder / "generate.py").write_text(BARE_ROWS)
    config = {"bare_counter": {"resources_servers": {"bare_counter": {"entrypoint": "app.py", "domain": "agent"}}}}
    (folder / "configs" / "bare_counter.yaml").write_text(json.dumps(config))
    arguments = ("+entrypoint=resources_servers/bare_counter", "+output_dirpath=out", "+train_count=3")
    done = ng("ng_generate_data", *arguments, "+validation_count=0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tools" not in rows_of(tmp_path / "out/train.jsonl")[0]["responses_create_params"]


def test_the_rows_of_a_folder_are_verified_by_its_own_environment_not_by_an_alias(tmp_path: Path) -> None:
    """The first config of this folder is that of its alias."""
    made = generate(PARENT_DIR / "resources_servers/example_stateful_counter", tmp_path, train_count=3)
    assert made.verified == sum(file.rows for file in made.files)


def test_a_folder_whose_configs_start_another_server_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers/no_config"
    copytree(MCQA, folder)
    with pytest.raises(ConfigError, match="no_config"):
        generate(folder, tmp_path / "out", train_count=1)

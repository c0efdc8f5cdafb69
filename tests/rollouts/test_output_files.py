"""Every file of a collection has a name of its own, and an output is a regular file."""

import json
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.store import all_paths, scored_path
from nemo_gym.runtime.stack import ServerSpec
from nemo_gym.testing import example_row, running_servers
from tests.stacks import scripted_servers, weather


def servers() -> list[ServerSpec]:
    return scripted_servers(weather(), [{"say": "Hi."}])


async def collect(folder: Path, output: str, *rows: dict[str, Any]) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = RolloutCollectionConfig(
        agent_name="agent", input_jsonl_fpath=str(folder / "rows.jsonl"), output_jsonl_fpath=str(folder / output)
    )
    async with running_servers(servers()) as client:
        await RolloutCollectionHelper().run_from_config(config, client=client)


def test_the_files_beside_an_output_have_known_names() -> None:
    names = [path.name for path in all_paths(Path("runs/a.jsonl"))]
    assert names == [
        *("a.jsonl", "a_failures.jsonl", "a_journal.jsonl", "a_manifest.json", "a_materialized_inputs.jsonl"),
        *("a_metrics.json", "a_aggregate_metrics.json"),
    ]
    assert scored_path(Path("runs/a_failures.jsonl")) == Path("runs/a.jsonl")
    assert scored_path(Path("runs/a.jsonl")) is None


@pytest.mark.parametrize("other", ["a.json", "a", "a.txt", "a.jsonl.gz"])
def test_outputs_that_differ_only_in_their_suffix_share_no_file(other: str) -> None:
    assert not set(all_paths(Path("a.jsonl"))) & set(all_paths(Path(other)))


async def test_two_outputs_with_one_stem_are_collected_beside_each_other(tmp_path: Path) -> None:
    await collect(tmp_path, "a.jsonl", example_row("one"))
    await collect(tmp_path, "a.json", example_row("one"), example_row("two"))
    assert [len((tmp_path / name).read_bytes().splitlines()) for name in ("a.jsonl", "a.json")] == [1, 2]
    summaries = [orjson.loads((tmp_path / name).read_bytes()) for name in ("a_metrics.json", "a.json.metrics.json")]
    assert [found["scored"] for found in summaries] == [1, 2]


@pytest.mark.parametrize("output", ["folder", "fifo", "/dev/null", "/dev/stdout", "/dev/fd/1"])
async def test_an_output_that_is_not_a_regular_file_is_refused_before_the_first_rollout(
    tmp_path: Path, output: str
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match=r"(directory|not a regular file).*output_jsonl_fpath"):
        await collect(tmp_path, output, example_row("one"))
    assert sorted(os.listdir(tmp_path)) == ["fifo", "folder", "rows.jsonl"]


async def test_a_folder_where_the_failures_would_go_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "a_failures.jsonl").mkdir()
    with pytest.raises(ConfigError, match=r"a_failures\.jsonl.* directory"):
        await collect(tmp_path, "a.jsonl", example_row("one"))


async def test_the_failures_of_a_collection_do_not_go_into_the_output_of_another(tmp_path: Path) -> None:
    await collect(tmp_path, "a_failures.jsonl", example_row("one"))
    with pytest.raises(ConfigError, match=r"a_failures\.jsonl.* another collection"):
        await collect(tmp_path, "a.jsonl", example_row("one"))

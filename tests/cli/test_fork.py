"""A stored rollout is run again from one of its steps."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym.common.atomic_files import read_jsonl
from nemo_gym.config.loading import load_config
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.training.stored_rollouts import fork, stored_rollout
from tests.runtime.test_workers import adds_twice
from tests.stub_endpoint import stub_endpoint
from tests.training.test_session import config_at, row_of


async def test_a_stored_rollout_goes_on_from_a_step_without_its_earlier_calls(tmp_path: Path) -> None:
    rows, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text("".join(json.dumps(row_of(number, expected=number + 4)) + "\n" for number in range(3)))
    options = RolloutCollectionConfig(
        input_jsonl_fpath=str(rows), output_jsonl_fpath=str(output), journal=True, num_repeats=2
    )
    async with stub_endpoint(adds_twice) as endpoint:
        settings = load_config([], initial=config_at(endpoint.url, tmp_path), use_dotenv=False, fill_ports=False)
        async with connect_servers(settings) as client:
            plain: Any = OmegaConf.to_container(client.global_config_dict)
            await RolloutCollectionHelper().run_from_config(options, client=client, settings=plain)
            before = len(endpoint.requests)
            rollout = stored_rollout(output, 3)
            outcomes = await fork(client, rollout, step=2, n=4)
            (prompted,) = await fork(client, rollout, step=2, n=1, responses_create_params={"instructions": "Think."})
    record = read_jsonl(output)[3]
    assert rollout.row.task_index == record["_task_index"]
    assert len(endpoint.requests) == before + 5, "one call each: the third"
    assert endpoint.requests[-1].body["instructions"] == "Think."
    assert prompted.values["reward"] == 1.0
    assert [outcome.values["reward"] for outcome in outcomes] == [1.0] * 4
    assert [json.loads(outcome.line())["response"]["output"] for outcome in outcomes] == [
        record["response"]["output"]
    ] * 4


def test_a_rollout_that_is_not_there_or_has_no_journal_is_an_error(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text('{"_task_index": 0, "_repeat_index": 0, "_row_hash": "0"}\n{}\n')
    for number, fault in ((0, "journal"), (1, "record"), (2, "no row 2")):
        with pytest.raises(ConfigError, match=fault):
            stored_rollout(output, number)

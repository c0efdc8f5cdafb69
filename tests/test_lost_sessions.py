"""A session that died with its process is never replaced by an empty one: the rollout is retried."""

import asyncio
import json
import os
import signal
from pathlib import Path

import orjson
import pytest

from nemo_gym.config.loading import load_config
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.runtime.launcher import Launcher
from tests.test_chaos import CONFIG, counter_row

TWO_STEPS = """
      - {user: 'add (\\d+)', turn: 0, call: [{name: increment_counter, arguments: '{"count": \\1}'}]}
      - {user: 'add (\\d+)', turn: 1, call: [{name: increment_counter, arguments: '{"count": \\1}'}]}
      - {say: Done.}
"""


@pytest.mark.parametrize("agent", ["simple_agent", "legacy_agent"])
async def test_an_environment_killed_while_the_model_thinks_gives_no_wrong_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    monkeypatch.chdir(Path(__file__).parent / "servers")
    config_text = CONFIG.replace("domain: agent}", "domain: agent, isolation: process}").replace("0.02", "0.2")
    config_text = config_text[: config_text.index("      - {user")] + TWO_STEPS
    (tmp_path / "config.yaml").write_text(config_text.replace("simple_agent", agent))
    rows = [counter_row(number) for number in range(90)]
    for number, row in enumerate(rows):
        row |= {"initial_count": 5, "expected_count": 5 + 2 * number if number % 3 else -1}
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [f"config_paths=[{tmp_path}/config.yaml]", "head_server={host: 127.0.0.1, port: 0}"]
    output = tmp_path / "out.jsonl"
    launcher = Launcher(load_config(arguments, use_dotenv=False, fill_ports=False), echo=print)
    config = RolloutCollectionConfig(
        agent_name="agent",
        input_jsonl_fpath=str(tmp_path / "rows.jsonl"),
        output_jsonl_fpath=str(output),
        num_samples_in_parallel=30,
        max_attempts=5,
    )
    async with launcher, launcher.client() as client:
        collecting = asyncio.create_task(RolloutCollectionHelper().run_from_config(config, client=client))
        while not output.exists() or not output.stat().st_size:  # noqa: ASYNC110 - a file tells no event
            await asyncio.sleep(0.02)
        (pid,) = [instance.pid for instance in launcher.running() if instance.process_name == "counter"]
        assert pid
        os.kill(pid, signal.SIGKILL)
        metrics = await asyncio.wait_for(collecting, 60)
    assert (metrics.scored, metrics.failed) == (90, {})
    records = [orjson.loads(line) for line in output.read_bytes().splitlines()]
    assert {record["_task_index"]: record["reward"] for record in records} == {
        number: float(number % 3 > 0) for number in range(90)
    }
    failed = [orjson.loads(line) for line in (tmp_path / "out_failures.jsonl").read_bytes().splitlines()]
    assert any("its worker was restarted" in told["message"] for told in failed)
    assert {told["cause"] for told in failed} <= {"environment", "tool", "internal", "verifier"}

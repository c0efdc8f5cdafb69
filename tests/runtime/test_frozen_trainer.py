"""A trainer that stands still, as in a debugger or on a suspended machine, loses no rollout of its workers."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nemo_gym.testing import rows_of
from tests.commands import free_port, started
from tests.polling import until
from tests.runtime.test_joined_worker import TOKEN, PausedModel
from tests.runtime.test_workers import CONFIG, model_at, write_rows
from tests.stub_endpoint import stub_endpoint

ROWS, CALLS_PER_ROW = 20, 3
TRAINER = """
import asyncio, sys
from nemo_gym.config.loading import load_config
from nemo_gym.rollouts import dispatch
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.runtime import membership
from nemo_gym.runtime.launcher import Launcher

folder, num_workers, rows, lease_s, silent_after_s, *arguments = sys.argv[1:]
membership.LEASE_S, dispatch.SILENT_AFTER_S = float(lease_s), float(silent_after_s)
dispatch.PING_EVERY_S = dispatch.SILENT_AFTER_S / 12

async def train():
    job = RolloutCollectionConfig(
        agent_name="agent", input_jsonl_fpath=f"{folder}/rows.jsonl", output_jsonl_fpath=f"{folder}/out.jsonl",
        num_samples_in_parallel=int(rows), max_attempts=1,
    )
    async with Launcher(load_config(arguments, use_dotenv=False, fill_ports=False), echo=print) as launcher:
        print("up", flush=True)
        while len(launcher.workers()) < int(num_workers):
            await asyncio.sleep(0.05)
        dispatch.FIRST_WAIT_S = 300.0
        async with launcher.client() as client:
            await RolloutCollectionHelper().run_from_config(job, client=client)

asyncio.run(train())
"""


@contextmanager
def trainer(folder: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(folder), *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        assert process.stdout.readline() == "up\n"
        yield process
    finally:
        process.kill()
        process.communicate()


async def frozen(folder: Path, *, joins: bool, freeze_s: float, lease_s: float, silent_after_s: float) -> PausedModel:
    """Stop a trainer while all its rollouts wait for the model, which goes on meanwhile."""
    model = PausedModel()
    write_rows(folder / "rows.jsonl", ROWS)
    async with stub_endpoint(model.reply) as endpoint:
        (folder / "config.yaml").write_text(json.dumps({**CONFIG, "policy_model": model_at(endpoint.url)}))
        config = [f"+config_paths=[{folder}/config.yaml]", f"+head_server.port={free_port()}"]
        limits = [str(ROWS), str(lease_s), str(silent_after_s)]

        def freeze() -> None:
            process.send_signal(signal.SIGSTOP)
            loop.call_soon_threadsafe(model.may_go_on.set)
            asyncio.run(asyncio.sleep(freeze_s))
            process.send_signal(signal.SIGCONT)
            assert process.wait(300) == 0

        loop = asyncio.get_running_loop()
        with trainer(folder, "2", *limits, *config, *([] if joins else ["+num_workers=2"])) as process:
            if joins:
                with started("ng_worker", *config, cwd=folder) as worker:
                    await until(lambda: model.waiting == ROWS)
                    await asyncio.to_thread(freeze)
                    assert "dropped" not in worker.text
            else:
                await until(lambda: model.waiting == ROWS)
                await asyncio.to_thread(freeze)
    return model


@pytest.mark.parametrize("joins", [False, True])
async def test_a_frozen_trainer_makes_no_model_call_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joins: bool
) -> None:
    monkeypatch.setenv("NEMO_GYM_RUN_TOKEN", TOKEN)
    model = await frozen(tmp_path, joins=joins, freeze_s=9.0, lease_s=6.0, silent_after_s=5.0)
    records = rows_of(tmp_path / "out.jsonl")
    assert sorted(record["_task_index"] for record in records) == list(range(ROWS))
    assert model.waiting == ROWS * CALLS_PER_ROW
    assert not (tmp_path / "out_failures.jsonl").exists()

"""Metrics of rollouts in experiment trackers, read back with the trackers' own packages."""

import asyncio
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.loading import load_config
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.types import Outcome, Row
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.training import RolloutSession, Source
from nemo_gym.training.trackers import RolloutTracker, open_tracker, track_rollouts
from tests.polling import until
from tests.runtime.test_workers import adds_twice
from tests.stub_endpoint import stub_endpoint
from tests.training.test_session import config_at, row_of

ROW = Row(0, 0, "", "math_agent", b"{}")


def outcomes() -> list[Outcome]:
    scored = [
        Outcome(ROW, b"{}", values={"reward": reward}, seconds=2.0, tokens=(10, tokens, 0, 10 + tokens))
        for reward, tokens in ((1.0, 30), (0.0, 50))
    ]
    return [*scored, Outcome.failed(ROW, RolloutError("judge", "It is down."))]


def read_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars in event files: records of a length, a checksum, an event and another checksum."""
    from tensorboardX.proto import event_pb2  # type: ignore[import-untyped]

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.iterdir()):
        content, start = path.read_bytes(), 0
        while start < len(content):
            (size,) = struct.unpack_from("<Q", content, start)
            event = event_pb2.Event.FromString(content[start + 12 : start + 12 + size])
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
            start += size + 16
    return found


EXPECTED = {
    "reward/math_agent": 0.5,
    "pass_rate/math_agent": 0.5,
    "output_tokens/math_agent": 40.0,
    "seconds/math_agent": 2.0,
    "cut_off/math_agent": 0.0,
    "failures/all": 1.0,
    "failures/judge": 1.0,
}


def track(target: str) -> None:
    add_all(track_rollouts(target))


def add_all(tracker: RolloutTracker) -> None:
    for outcome in outcomes():
        tracker.add_outcome(outcome)
    tracker.close()


def test_tensorboard_has_means_by_environment_and_failures_by_cause(tmp_path: Path) -> None:
    track(f"tensorboard:{tmp_path}")
    found = read_tensorboard(tmp_path)
    assert {name: found[name] for name in EXPECTED} == {name: [(3, value)] for name, value in EXPECTED.items()}
    assert found["rollouts_per_second"][0][1] > 0


def test_mlflow_has_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "runs").as_uri()
    track(f"mlflow:{uri}")
    (run,) = mlflow.MlflowClient(tracking_uri=uri).search_runs(["0"])
    assert {name: run.data.metrics[name] for name in EXPECTED} == EXPECTED


async def test_wandb_has_the_same_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    await asyncio.to_thread(track, "wandb:rollouts")
    (file,) = await asyncio.to_thread(lambda: [*tmp_path.rglob("*.wandb")])
    await until(lambda: all(name.encode() in file.read_bytes() for name in EXPECTED))  # its own process writes it


@pytest.mark.parametrize("target", ["tensorboard", "tensorboard:", "paper:notebook", ""])
def test_a_target_that_is_none_is_refused(target: str) -> None:
    with pytest.raises(ConfigError, match="log_to"):
        open_tracker(target)


class BrokenTracker:
    def log(self, _metrics: Any, _step: int) -> None:
        raise OSError("the server is down")

    def close(self) -> None:
        raise OSError("still down")


def test_a_tracker_that_fails_costs_no_rollout(caplog: pytest.LogCaptureFixture) -> None:
    add_all(RolloutTracker(BrokenTracker()))
    assert "the server is down" in caplog.text


async def test_a_session_logs_each_policy_version(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    async with (
        stub_endpoint(adds_twice) as endpoint,
        RolloutSession(config_at(endpoint.url, tmp_path), log_to=f"tensorboard:{folder}") as session,
    ):
        stream = session.groups({"a": Source([row_of(0, expected=4)] * 4)}, group_size=2, max_in_flight=2)
        groups = aiter(stream)
        for version in range(1, 4):
            await anext(groups)
            session.set_version(version)
        await asyncio.to_thread(stream.stats)
    found = read_tensorboard(folder)
    assert [step for step, _ in found["groups/complete"]] == [0, 1, 2]
    assert [value for _, value in found["groups/complete"]] == [1.0, 2.0, 3.0]
    assert {value for _, value in found["reward/agent"]} == {1.0}
    assert [step for step, _ in found["staleness/mean"]] == [0, 1, 2]


async def test_a_collection_logs_its_rollouts(tmp_path: Path) -> None:
    rows, folder = tmp_path / "rows.jsonl", tmp_path / "runs"
    rows.write_text("".join(json.dumps(row_of(number, expected=number + 4)) + "\n" for number in range(3)))
    async with stub_endpoint(adds_twice) as endpoint:
        settings = load_config([], initial=config_at(endpoint.url, tmp_path), use_dotenv=False, fill_ports=False)
        options = RolloutCollectionConfig(
            input_jsonl_fpath=str(rows), output_jsonl_fpath=str(tmp_path / "out.jsonl"), log_to=f"tensorboard:{folder}"
        )
        async with connect_servers(settings) as client:
            await RolloutCollectionHelper().run_from_config(options, client=client)
    assert read_tensorboard(folder)["reward/agent"] == [(3, 1.0)]

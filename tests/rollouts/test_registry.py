"""The registry of runs: what it knows of collections that ended, fail, run, or were killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import nemo_gym as gym
from nemo_gym.common.paths import checked_out_commit
from nemo_gym.errors import ConfigError, MissingPathError
from nemo_gym.rollouts.registry import (
    describe_output,
    find_output,
    forget,
    registered_runs,
    registry_folder,
    run_id,
    set_tags,
)
from nemo_gym.rollouts.store import manifest_path, metrics_path
from nemo_gym.viewer.files import Files
from nemo_gym.viewer.runs import matching, runs_below
from tests.polling import until_sync

ROWS = [{"prompt": f"What is {n} + {n}?", "total": 2 * n} for n in range(3)]


class Doubles(gym.Environment):
    async def verify(self, response: gym.NeMoGymResponse, total: int) -> float:
        return float(response.output_text == str(total))


async def wise(messages: list[dict[str, str]]) -> str:
    return str(2 * int(messages[-1]["content"].split()[2]))


async def broken(messages: list[dict[str, str]]) -> str:
    raise ValueError("no such thing")


@pytest.fixture(autouse=True)
def _own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_STATE_DIR", str(tmp_path / "state"))


def play(output: Path, model: object = wise, **options: object) -> None:
    given: dict[str, object] = {"model": model, "output": output, "progress": False, **options}
    gym.evaluate(Doubles, ROWS, **given)  # type: ignore[arg-type]


def test_every_collection_registers_who_played_and_how_it_went(tmp_path: Path) -> None:
    play(tmp_path / "a.jsonl", repeats=2, config={"tags": ["first", "first"]})
    (run,) = registered_runs()
    assert (run.environment, run.model, run.agent) == ("doubles", "wise", "simple_agent")
    assert (run.state, run.mean, run.scored, run.total, run.failed) == ("complete", 1.0, 6, 6, 0)
    assert run.output == str(tmp_path / "a.jsonl")
    assert run.tags == ["first"]
    assert run.config_hash is not None
    assert run.seconds is not None
    assert run.started_at is not None
    assert find_output(run.id[:4]) == tmp_path / "a.jsonl"


def test_a_resumed_run_is_the_same_run_and_keeps_its_tags(tmp_path: Path) -> None:
    play(tmp_path / "a.jsonl", limit=1)
    set_tags(run_id(tmp_path / "a.jsonl"), [" good ", ""])
    play(tmp_path / "a.jsonl", resume="continue", config={"tags": ["second"]})
    (run,) = registered_runs()
    assert (run.scored, run.total, run.tags) == (3, 3, ["good", "second"])


def test_runs_that_were_made_the_same_way_have_one_hash(tmp_path: Path) -> None:
    play(tmp_path / "a.jsonl")
    play(tmp_path / "b.jsonl")
    play(tmp_path / "c.jsonl", params={"temperature": 0.5})
    hashes = {Path(run.output).stem: run.config_hash for run in registered_runs()}
    assert hashes["a"] == hashes["b"] != hashes["c"]


def test_failures_are_counted(tmp_path: Path) -> None:
    play(tmp_path / "a.jsonl", broken)
    (run,) = registered_runs()
    assert (run.scored, run.failed, run.mean) == (0, 3, None)


def test_the_cost_is_that_of_the_tokens(tmp_path: Path) -> None:
    prices = {"token_prices": {"input": 2.0, "output": 8.0}}
    play(tmp_path / "unknown.jsonl", config=prices)
    play(tmp_path / "known.jsonl", gym.Scripted(["It is 0"]), limit=1, config=prices)
    runs = {Path(run.output).stem: run for run in registered_runs()}
    tokens = runs["known"].input_tokens or 0, runs["known"].output_tokens or 0
    assert tokens[1] > 0
    assert runs["known"].cost == pytest.approx((2 * tokens[0] + 8 * tokens[1]) / 1e6)
    assert runs["unknown"].cost is None


def test_a_killed_run_is_interrupted(tmp_path: Path) -> None:
    code = f"""
import asyncio, nemo_gym as gym
class Doubles(gym.Environment):
    async def verify(self, response) -> float:
        return 1.0
async def slow(messages):
    await asyncio.sleep(600)
gym.evaluate(Doubles, ["go"], model=slow, output={str(tmp_path / "a.jsonl")!r}, progress=False)
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    try:
        until_sync(lambda: [run.state for run in registered_runs()] == ["running"])
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert [run.state for run in registered_runs()] == ["interrupted"]


def test_a_registry_that_cannot_be_written_stops_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NEMO_GYM_STATE_DIR", str(tmp_path / "file"))
    play(tmp_path / "a.jsonl")
    assert registered_runs() == []
    assert describe_output(tmp_path / "a.jsonl").mean == 1.0


def test_a_folder_from_elsewhere_describes_itself(tmp_path: Path) -> None:
    for name in ("mcqa/a.jsonl", "b.jsonl"):
        play(tmp_path / "results" / name)
    for run in registered_runs():
        forget(run.id)
    (tmp_path / "results/b_metrics.json").unlink()
    (tmp_path / "results/mcqa/other_failures.jsonl").touch()
    found = {Path(run.output).name: run for run in runs_below(tmp_path / "results")}
    assert sorted(found) == ["a.jsonl", "b.jsonl"]
    assert (found["a.jsonl"].environment, found["a.jsonl"].mean) == ("doubles", 1.0)
    assert (found["b.jsonl"].environment, found["b.jsonl"].mean) == ("doubles", None)
    manifest_path(tmp_path / "results/b.jsonl").write_text("{")
    metrics_path(tmp_path / "results/b.jsonl").write_text("[]")
    assert describe_output(tmp_path / "results/b.jsonl").environment == ""


@pytest.mark.parametrize(
    ("words", "count"),
    [([], 2), (["doubles"], 2), (["model:wise", "TAG:new"], 1), (["tag:wise"], 0), (["a.jsonl"], 1), (["nothing"], 0)],
)
def test_words_find_runs(tmp_path: Path, words: list[str], count: int) -> None:
    play(tmp_path / "a.jsonl", config={"tags": ["new"]})
    play(tmp_path / "b.jsonl")
    assert len(list(matching(registered_runs(), words))) == count


def test_a_run_is_opened_by_its_id_while_its_rollouts_are_there(tmp_path: Path) -> None:
    play(tmp_path / "a.jsonl")
    identifier = run_id(tmp_path / "a.jsonl")
    with Files([identifier]) as files:
        assert files.index("0").path == tmp_path / "a.jsonl"
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(MissingPathError, match="are gone"):
        Files([identifier])
    with pytest.raises(ConfigError, match="There is no run"):
        set_tags("../../etc/passwd", ["x"])
    (registry_folder() / f"{identifier}.json").write_text("damaged")
    assert registered_runs() == []


def test_the_commit_is_read_from_the_files_of_git(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
        command = ["git", *identity, *arguments]
        done = subprocess.run(command, cwd=tmp_path / "repo", check=True, capture_output=True, env={**os.environ})
        return done.stdout.decode().strip()

    (tmp_path / "repo" / "inside").mkdir(parents=True)
    assert checked_out_commit(tmp_path / "repo") in (None, checked_out_commit(tmp_path))
    git("init")
    assert checked_out_commit(tmp_path / "repo") is None
    git("commit", "--allow-empty", "--message", "one")
    first = git("rev-parse", "HEAD")
    assert checked_out_commit(tmp_path / "repo" / "inside") == first
    git("worktree", "add", "../tree", "--detach")
    assert checked_out_commit(tmp_path / "tree") == first
    git("pack-refs", "--all")
    assert checked_out_commit(tmp_path / "repo") == first

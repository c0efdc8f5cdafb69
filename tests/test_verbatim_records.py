"""Real commands whose model says a word that `env.yaml` has. Records have what was said, and so every command scores,
resumes, replays and exports that."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.testing import example_row, rows_of
from tests.commands import ng, started
from tests.polling import until
from tests.stub_endpoint import Request, completion, stub_endpoint

WORD = "pineapple"
FRUIT = """
import asyncio
from pathlib import Path

from nemo_gym.answers import last_text
from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer


class FruitResourcesServer(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> float:
        while Path("wait").exists():
            await asyncio.sleep(0.02)
        if Path("fail").exists():
            raise RuntimeError("no verdict")
        return 1.0 if last_text(body.response).split()[1] in ("pineapple", "plum") else -1.0
"""
BLOCKS = {
    "fruit": {"resources_servers": {"fruit": {"entrypoint": "app.py", "domain": "other"}}},
    "agent": {
        "responses_api_agents": {
            "simple_agent": {
                "entrypoint": "app.py",
                "resources_server": {"type": "resources_servers", "name": "fruit"},
                "model_server": {"type": "responses_api_models", "name": "policy_model"},
            }
        }
    },
}
FRUITS = [WORD, "plum"]


def reply(request: Request) -> Any:
    """Says the fruit that the row names by its initial letters."""
    asked = request.body["messages"][-1]["content"]
    return completion(f"FINAL {next(fruit for fruit in FRUITS if fruit.startswith(asked))} END")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "resources_servers" / "fruit"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(FRUIT)
    (tmp_path / "fruit.yaml").write_text(json.dumps(BLOCKS))
    (tmp_path / "env.yaml").write_text(f"secret_word: {WORD}\nrole: assistant\n")
    rows = [example_row(fruit[:2]) for fruit in FRUITS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def servers(url: str) -> tuple[str, ...]:
    return (
        "+config_paths=[fruit.yaml,responses_api_models/vllm_model/configs/vllm_model.yaml]",
        *(f"+policy_base_url={url}", "+policy_api_key=none", "+policy_model_name=m", "+head_server.port=0"),
    )


def collection(url: str, *more: str, output: str = "out.jsonl") -> tuple[str, ...]:
    files = "+input_jsonl_fpath=rows.jsonl", f"+output_jsonl_fpath={output}"
    return *servers(url), "+agent_name=agent", *files, *more


def by_task(path: Path) -> dict[int, dict[str, Any]]:
    return {record["_task_index"]: record for record in rows_of(path)}


def rewards(path: Path) -> dict[int, float]:
    return {task: record["reward"] for task, record in by_task(path).items()}


async def run(command: str, *arguments: str, cwd: Path) -> tuple[int, str]:
    done = await asyncio.to_thread(ng, command, *arguments, cwd=cwd)
    return done.returncode, done.stdout + done.stderr


async def test_every_command_reads_what_the_model_said(project: Path) -> None:
    async with stub_endpoint(reply) as stub:
        code, printed = await run("ng_collect_rollouts", *collection(stub.url, "+record=traffic"), cwd=project)
        assert code == 0, printed
        again = collection(stub.url, "+replay=traffic", "+max_attempts=1", output="replayed.jsonl")
        code, printed = await run("ng_collect_rollouts", *again, cwd=project)
        assert code == 0, printed
        assert len(stub.requests) == 2
        files = (
            "+rollouts_jsonl_fpath=out.jsonl",
            "+input_jsonl_fpath=rows.jsonl",
            "+output_jsonl_fpath=verified.jsonl",
        )
        code, printed = await run("ng_reverify", *servers(stub.url), "+agent_name=agent", *files, cwd=project)
    assert code == 0, printed
    assert "2 unchanged, 0 up, 0 down" in printed
    for name in ("out", "verified", "replayed"):
        assert rewards(project / f"{name}.jsonl") == {0: 1.0, 1: 1.0}
    exported = "+rollouts_jsonl_fpath=out.jsonl", "+output_jsonl_fpath=sft.jsonl"
    code, printed = await run("ng_export", *exported, cwd=project)
    said = [example["messages"][-1]["content"] for example in rows_of(project / "sft.jsonl")]
    assert sorted(said) == [f"FINAL {WORD} END", "FINAL plum END"]


async def test_a_resumed_rollout_goes_on_with_what_the_model_said(project: Path) -> None:
    (project / "wait").touch()
    async with stub_endpoint(reply) as stub:
        arguments = collection(stub.url, "+journal=true")
        with started("ng_collect_rollouts", *arguments, cwd=project) as first:
            await until(lambda: replies_in(project / "out_journal.jsonl") == 2)
            first.signal(signal.SIGKILL)
            assert first.wait() == -signal.SIGKILL
        (project / "wait").unlink()
        code, printed = await run("ng_collect_rollouts", *arguments, cwd=project)
    assert code == 0, printed
    assert "2 rollouts go on with 2 calls" in printed
    assert rewards(project / "out.jsonl") == {0: 1.0, 1: 1.0}
    asked = [request.body["messages"][-1]["content"] for request in stub.requests]
    assert sorted(asked) == ["pi", "pl"]


def replies_in(journal: Path) -> int:
    return journal.read_text().count('"kind":"model"') if journal.exists() else 0


async def test_a_failed_rollout_is_completed_with_what_the_model_said(project: Path) -> None:
    (project / "fail").touch()
    async with stub_endpoint(reply) as stub:
        await run("ng_collect_rollouts", *collection(stub.url, "+max_attempts=1"), cwd=project)
        (project / "fail").unlink()
        rollouts = "+rollouts_jsonl_fpath=out_failures.jsonl", "+input_jsonl_fpath=rows.jsonl"
        arguments = *servers(stub.url), "+agent_name=agent", *rollouts, "+output_jsonl_fpath=completed.jsonl"
        code, printed = await run("ng_reverify", *arguments, cwd=project)
    assert code == 0, printed
    assert "2 failed rollouts completed" in printed
    assert rewards(project / "completed.jsonl") == {0: 1.0, 1: 1.0}

"""An environment that compares all rollouts of a group, in every way of running."""

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from nemo_gym.client.server_client import ServerReply
from nemo_gym.common.atomic_files import read_jsonl
from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR
from nemo_gym.config.loading import load_config
from nemo_gym.errors import RolloutError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.testing import says
from nemo_gym.training import RolloutSession, Source
from tests.runtime.test_workers import CONFIG, launched, model_at
from tests.stub_endpoint import Request, stub_endpoint
from tests.training.test_session import config_at, row_of

LONGEST = '''
"""The longest answer of a group gets the reward."""
from nemo_gym.answers import last_text
from nemo_gym.base_resources_server import BaseVerifyRequest, Score, SimpleResourcesServer

class LongestVerifyRequest(BaseVerifyRequest):
    expected_count: int

class LongestResourcesServer(SimpleResourcesServer):
    async def verify_group(self, bodies: list[LongestVerifyRequest]) -> list[float | Score]:
        lengths = [len(last_text(body.response)) for body in bodies]
        return [Score(float(length == max(lengths)), length=length, size=len(bodies)) for length in lengths]
'''
SERVER = {"resources_servers": {"longest": {"entrypoint": "app.py", "domain": "agent"}}}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXTRA_ROOTS_ENV_VAR, str(tmp_path))
    folder = tmp_path / "resources_servers" / "longest"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(LONGEST)


class Model:
    """Says something longer each time it is asked the same thing. The second time it fails, if told so."""

    def __init__(self, *, fails: bool = False) -> None:
        self.asked: Counter[str] = Counter()
        self.fails = fails

    def __call__(self, request: Request) -> Any:
        text = json.dumps(request.body["input"])
        self.asked[text] += 1
        if self.fails and self.asked[text] == 2:
            return 400, {"error": "no"}
        return says("x" * self.asked[text])


def rows_of_groups(count: int) -> list[dict[str, Any]]:
    rows = [row_of(number, expected=number) for number in range(count)]
    for number, row in enumerate(rows):
        row["responses_create_params"]["input"] = [{"role": "user", "content": f"Task {number}."}]
    return rows


@pytest.mark.parametrize(("num_workers", "is_running"), [(1, False), (2, False), (2, True)])
@pytest.mark.usefixtures("environment")
async def test_a_collection_scores_repeats_together(tmp_path: Path, num_workers: int, is_running: bool) -> None:
    """With servers of its own, and with those of a run."""
    dataset, output = tmp_path / "rows.jsonl", tmp_path / "rollouts.jsonl"
    dataset.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows_of_groups(3)))
    async with stub_endpoint(Model()) as endpoint:
        config = config_at(endpoint.url, tmp_path, counter=SERVER, num_workers=num_workers)
        job = RolloutCollectionConfig(
            input_jsonl_fpath=str(dataset), output_jsonl_fpath=str(output), agent_name="agent", num_repeats=4
        )
        async with contextlib.AsyncExitStack() as stack:
            if is_running:
                model, servers = model_at(endpoint.url), {**CONFIG, "counter": SERVER}
                running = launched(f"num_workers={num_workers}", **servers, policy_model=model)
                client = await stack.enter_async_context((await stack.enter_async_context(running)).client())
            else:
                loaded = load_config([], initial=config, use_dotenv=False, fill_ports=False)
                client = await stack.enter_async_context(connect_servers(loaded))
            await RolloutCollectionHelper().run_from_config(job, client=client)
    records = read_jsonl(output)
    assert len(records) == 12
    assert Counter((each["_task_index"], each["length"], each["reward"]) for each in records) == {
        (task, length, float(length == 4)): 1 for task in range(3) for length in (1, 2, 3, 4)
    }
    assert {(each["size"], each["expected_count"] == each["_task_index"]) for each in records} == {(4, True)}


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(("on_lost", "lengths"), [("retry", [1, 3, 4]), ("shrink", [1, 3]), ("drop", None)])
@pytest.mark.usefixtures("environment")
async def test_a_session_scores_groups_together_and_a_lost_member_follows_on_lost(
    tmp_path: Path, num_workers: int, on_lost: str, lengths: list[int] | None
) -> None:
    async with (
        stub_endpoint(Model(fails=True)) as endpoint,
        RolloutSession(
            config_at(endpoint.url, tmp_path, counter=SERVER, num_workers=num_workers), max_attempts=1
        ) as session,
    ):
        groups = session.groups({"a": Source(rows_of_groups(2))}, group_size=3, on_lost=on_lost)
        taken = [group async for group in groups]
        assert len(taken) == (0 if lengths is None else 2)
        for group in taken:
            found = sorted((each["length"], each["reward"], each["size"]) for each in group.results)
            assert lengths is not None
            assert found == [(length, float(length == max(lengths)), len(lengths)) for length in lengths]


@pytest.mark.usefixtures("environment")
async def test_a_rollout_alone_has_no_reward(tmp_path: Path) -> None:
    """By a session, by `run_examples`, and by the address of the agent; its group can be scored by address, too."""
    row = rows_of_groups(1)[0]
    async with (
        stub_endpoint(Model()) as endpoint,
        launched("num_workers=1", **{**CONFIG, "counter": SERVER}, policy_model=model_at(endpoint.url)) as launcher,
    ):
        head = {"head_server": {"host": "127.0.0.1", "port": launcher.config.head_server.port}}
        async with RolloutSession(head) as session, launcher.client() as client:
            (group,) = [group async for group in session.groups({"a": Source(rows_of_groups(1))}, group_size=2)]
            assert sorted(each["reward"] for each in group.results) == [0.0, 1.0]
            with pytest.raises(RolloutError, match="group") as alone:
                await session.submit(row)
            assert alone.value.code == "group_verification"
            for future in RolloutCollectionHelper().run_examples([row], client=client):
                with pytest.raises(RolloutError, match="group"):
                    await future
            with pytest.raises(RolloutError, match="group"):
                await client.call("agent", "/run", row, answer=ServerReply)
            bodies = [{**row, "response": says("x" * length)} for length in (2, 5)]
            reply = await client.call("counter", "/verify_group", {"bodies": bodies}, answer=dict)
            assert [each["reward"] for each in reply["results"]] == [0.0, 1.0]


@pytest.mark.parametrize("returned", ["[1.0]", "[float('nan'), 1.0]", "None", "[1.0, 'two']"])
async def test_scores_that_are_wrong_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returned: str
) -> None:
    monkeypatch.setenv(EXTRA_ROOTS_ENV_VAR, str(tmp_path))
    folder = tmp_path / "resources_servers" / "longest"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(LONGEST.split("        lengths =")[0] + f"        return {returned}\n")
    async with (
        stub_endpoint(Model()) as endpoint,
        RolloutSession(config_at(endpoint.url, tmp_path, counter=SERVER)) as session,
    ):
        groups = session.groups({"a": Source(rows_of_groups(1))}, group_size=2)
        assert [group async for group in groups] == []
        stats = await asyncio.to_thread(groups.stats)
        assert stats["dropped"] == {"a": {"lost": 1}}

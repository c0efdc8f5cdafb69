"""The seam that a training framework uses: start servers from Python, hand in rows, await scored records."""

import pickle
import re
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from omegaconf import DictConfig

from nemo_gym import BaseServerConfig
from nemo_gym.cli import GlobalConfigDictParserConfig, RunHelper
from nemo_gym.config.keys import HEAD_SERVER_KEY_NAME
from nemo_gym.errors import RolloutError, StartupError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.testing import TRANSPORTS, Transport, example_row, running_servers
from tests.commands import free_port
from tests.stacks import scripted_servers, weather

AGENT = {"type": "responses_api_agents", "name": "simple_weather_simple_agent"}
MODEL = {
    "entrypoint": "app.py",
    "replies": [{"user": "fail", "status": 400}, {"user": "slow", "latency_s": 2, "say": "Late."}, {"say": "Cold."}],
}


@pytest.fixture(scope="module")
def head() -> Iterator[BaseServerConfig]:
    config = BaseServerConfig(host="127.0.0.1", port=free_port())
    settings = {
        "config_paths": ["resources_servers/example_simple_weather/configs/simple_weather.yaml"],
        "policy_model": {"responses_api_models": {"scripted_model": MODEL}},
        HEAD_SERVER_KEY_NAME: {"host": config.host, "port": config.port},
    }
    children = set(psutil.Process().children(recursive=True))
    helper = RunHelper()
    helper.start(
        GlobalConfigDictParserConfig(
            initial_global_config_dict=DictConfig(settings), skip_load_from_cli=True, skip_load_from_dotenv=True
        )
    )
    helper.poll()
    yield config
    helper.poll()
    helper.shutdown()
    assert set(psutil.Process().children(recursive=True)) <= children


def rows(*prompts: str) -> list[dict[str, Any]]:
    return [example_row(prompt, agent_ref=AGENT, _rowidx=index) for index, prompt in enumerate(prompts)]


async def test_a_trainer_awaits_rows_with_their_results_as_they_finish(head: BaseServerConfig) -> None:
    finished: list[int] = []
    failed: list[RolloutError] = []
    for future in RolloutCollectionHelper().run_examples(rows("slow", "hello", "fail"), head):
        try:
            row, result = await future
        except RolloutError as error:
            failed.append(pickle.loads(pickle.dumps(error)))
            continue
        assert result["reward"] == 1.0
        assert row["agent_ref"] == AGENT
        finished.append(row["_rowidx"])
    assert finished == [1, 0]
    assert [error.cause for error in failed] == ["model"]


def deeply_nested() -> list[Any]:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (example_row("hello", agent_ref=AGENT, note="\ud83d"), "cannot be written as JSON: .*surrogates"),
        (example_row("hello", agent_ref=AGENT, note=b"x"), "cannot be written as JSON: bytes"),
        (example_row("hello", agent_ref=AGENT, note=object()), "cannot be written as JSON: object"),
        (example_row("hello", agent_ref=AGENT, note=deeply_nested()), "cannot be written as JSON: .*recursion"),
        ("hello", "The row is 'hello'; expected a dict"),
        (None, "The row is None; expected a dict"),
        (example_row("hello"), "`agent_ref` None; expected one with a `name`"),
    ],
    ids=["surrogate", "bytes", "object", "nested", "text", "none", "no agent"],
)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_row_that_cannot_be_sent_is_a_failure_of_its_own(bad: Any, message: str, transport: Transport) -> None:
    good = [example_row("hello", agent_ref={"name": "agent"}, _rowidx=index) for index in (0, 1)]
    finished: list[int] = []
    async with running_servers(scripted_servers(weather(), [{"say": "Hm."}]), transport=transport) as client:
        for future in RolloutCollectionHelper().run_examples([good[0], bad, good[1]], client=client):
            try:
                finished.append((await future)[0]["_rowidx"])
            except RolloutError as error:
                failure = pickle.loads(pickle.dumps(error))
    assert sorted(finished) == [0, 1]
    assert (failure.cause, failure.status, failure.retryable) == ("input", 422, False)
    assert re.search(message, str(failure))


def test_plain_code_can_do_it_too(head: BaseServerConfig) -> None:
    futures = RolloutCollectionHelper().run_examples(rows("slow", "hello"), head)
    assert [future.result()[0]["_rowidx"] for future in futures] == [1, 0]


async def test_a_trainer_may_stop_early(head: BaseServerConfig) -> None:
    futures = RolloutCollectionHelper().run_examples(rows(*["slow"] * 20, "hello"), head, num_samples_in_parallel=21)
    row, _ = await next(futures)
    assert row["_rowidx"] == 20
    futures.close()  # type: ignore[attr-defined]


def test_servers_that_cannot_start_leave_nothing_behind() -> None:
    children = set(psutil.Process().children(recursive=True))
    broken = {"entrypoint": "app.py", "replies": "not a list"}
    settings = {
        "policy_model": {"responses_api_models": {"scripted_model": broken}},
        HEAD_SERVER_KEY_NAME: {"host": "127.0.0.1", "port": free_port()},
    }
    with pytest.raises(StartupError, match="replies"):
        RunHelper().start(
            GlobalConfigDictParserConfig(
                initial_global_config_dict=DictConfig(settings), skip_load_from_cli=True, skip_load_from_dotenv=True
            )
        )
    assert set(psutil.Process().children(recursive=True)) <= children

"""Rows of public datasets find who plays them, and a loaded agent replaces those of an environment."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym.compat.agent_swap import AgentCompositionError, UnsupportedAgentPairingError
from nemo_gym.compat.environment_server import BaseEnvironmentServer, BaseEnvironmentServerConfig, CleanupContext
from nemo_gym.compat.episodes import BaseEpisodeRequest, BaseEpisodeResponse, EpisodeFailure
from nemo_gym.compat.row_routing import AmbiguousEnvironmentServerError, RowRouter
from nemo_gym.config.sources import apply_directives
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.runtime.stack import ServerSpec
from nemo_gym.server.aggregate_metrics import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.testing import running_servers


def agent(environment: str = "env", implementation: str = "simple_agent", **more: Any) -> dict[str, Any]:
    ref = {"type": "resources_servers", "name": environment}
    return {"responses_api_agents": {implementation: {"entrypoint": "app.py", "resources_server": ref, **more}}}


def environment(**more: Any) -> dict[str, Any]:
    return {"resources_servers": {"env": {"entrypoint": "app.py", "domain": "other", **more}}}


def front(agent: str, implementation: str = "legacy_agent") -> dict[str, Any]:
    ref = {"type": "responses_api_agents", "name": agent}
    return {"environment_servers": {implementation: {"entrypoint": "app.py", "agent_server": ref}}}


def applied(**blocks: Any) -> Any:
    config = OmegaConf.create(blocks)
    apply_directives(config)
    return OmegaConf.to_container(config)


BLOCKS: dict[str, Any] = {
    "env": environment(),
    "two": environment(datasets=[{"name": "d", "agent": "b"}]),
    "a": agent(),
    "b": agent("two"),
    "c": agent("two"),
    "relay": front("a"),
    "turn": front("b", "turn"),
}


def named(name: str) -> dict[str, Any]:
    return {"agent_ref": {"name": name}}


@pytest.mark.parametrize(
    ("row", "options", "played_by"),
    [
        (named("a"), {}, ["a"]),
        (named("b"), {}, ["turn"]),
        (named("relay"), {}, ["a"]),
        ({"task_source": "a"}, {}, ["a"]),
        ({"task_source": "env"}, {}, ["a"]),
        ({"task_source": "turn"}, {}, ["turn"]),
        ({"task_source": "two"}, {}, ["turn"]),
        (named("a"), {"agent_map": {"a": "c"}}, ["c"]),
        (named("a"), {"agent_map": {"_default": "b"}}, ["turn"]),
        ({"task_source": "env"}, {"fan_out": {"env": ["a", "b"]}}, ["a", "turn"]),
        (named("a"), {"environment_server": "turn"}, ["turn"]),
        ({"task_id": {"taskset": "s"}, "task_input": {}}, {"taskset_routes": {"s": "turn"}}, ["turn"]),
        ({}, {}, "no `agent_ref`"),
        ({"task_source": "nobody"}, {}, "agent_map"),
        ({"task_id": {"taskset": "s"}, "task_input": {}}, {}, "environment_server_routes"),
    ],
)
def test_a_row_goes_to_who_plays_it(row: dict[str, Any], options: dict[str, Any], played_by: list[str] | str) -> None:
    router = RowRouter(applied(**BLOCKS), **options)
    if isinstance(played_by, str):
        with pytest.raises(ValueError, match=played_by):
            list(router.copies(row))
        return
    sent = list(router.copies(row))
    assert [each.get("_ng_environment_server") or each["agent_ref"]["name"] for each in sent] == played_by


def test_two_environment_servers_of_one_agent_are_an_error() -> None:
    router = RowRouter(applied(**BLOCKS, more=front("b")))
    with pytest.raises(AmbiguousEnvironmentServerError, match="turn, more"):
        list(router.copies(named("b")))


UNBOUND = agent("???", "hermes_agent", turns=3)


def test_an_unbound_agent_replaces_those_of_the_environment_and_keeps_what_is_theirs() -> None:
    config = applied(
        env=environment(), ag_simple_agent=agent(datasets=[1]), hermes=UNBOUND, relay=front("ag_simple_agent")
    )
    assert set(config) == {"env", "ag_hermes_agent", "agent_map", "environment_server_aliases"}
    block = config["ag_hermes_agent"]["responses_api_agents"]["hermes_agent"]
    assert (block["resources_server"]["name"], block["turns"], block["datasets"]) == ("env", 3, [1])
    assert config["environment_server_aliases"] == {"relay": "ag_hermes_agent"}
    (row,) = RowRouter(config, config["agent_map"]).copies(named("ag_simple_agent"))
    assert row["agent_ref"]["name"] == "ag_hermes_agent"


@pytest.mark.parametrize(
    ("blocks", "error"),
    [
        ({"one": UNBOUND, "two": UNBOUND}, AgentCompositionError),
        ({"one": UNBOUND, "ag_hermes_agent": environment()}, AgentCompositionError),
        ({"one": UNBOUND, "env": environment(allowed_agents=["simple_agent"])}, UnsupportedAgentPairingError),
    ],
)
def test_an_agent_that_does_not_fit_is_an_error(blocks: dict[str, Any], error: type[ConfigError]) -> None:
    common = {"env": environment(), "ag_simple_agent": agent(), "relay": front("ag_simple_agent")}
    with pytest.raises(error):
        applied(**{**common, **blocks})
    if error is UnsupportedAgentPairingError:
        assert "ag_hermes_agent" in applied(**{**common, **blocks}, allow_unsupported_pairing=True)


class ScriptedEpisodes(BaseEnvironmentServer[BaseEpisodeRequest[Any], BaseEpisodeResponse[Any]]):
    """Scores what the task says."""

    request_model = BaseEpisodeRequest[dict[str, Any]]
    response_model = BaseEpisodeResponse[dict[str, Any]]
    config: BaseEnvironmentServerConfig

    async def run(self, request: BaseEpisodeRequest[Any], cleanup: CleanupContext) -> BaseEpisodeResponse[Any]:
        task, ids = request.task.task_input, {"episode_id": request.episode_id, "task_id": request.task.task_id}
        if "fails" in task:
            return BaseEpisodeResponse(**ids, failure=EpisodeFailure(failure_reason=task["fails"], terminal=True))
        return BaseEpisodeResponse(**ids, result={"reward": task["reward"], "played": request.episode_id.rollout_id})

    async def aggregate_metrics(self, body: AggregateMetricsRequest) -> AggregateMetrics:
        return AggregateMetrics(agent_metrics={"records": len(body.verify_responses)})


def task(index: int, **task_input: Any) -> dict[str, Any]:
    return {"task_id": {"taskset": "set", "task_id": f"t{index}"}, "task_input": task_input}


async def test_a_collection_plays_tasks_with_the_environment_server_of_their_set(tmp_path: Path) -> None:
    rows = [task(0, reward=0.5), task(1, reward=1.0), task(2, fails="no luck")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "out.jsonl"
    files = {"input_jsonl_fpath": str(tmp_path / "rows.jsonl"), "output_jsonl_fpath": str(output)}
    routes = {"environment_server_routes": {"set": "played"}}
    options = RolloutCollectionConfig.model_validate({**files, **routes, "num_repeats": 2})
    spec = ServerSpec(
        name="played",
        server_type="environment_servers",
        implementation="scripted",
        entrypoint="app.py",
        folder=tmp_path,
        config={"host": "127.0.0.1", "port": 0, "entrypoint": "app.py", "cleanup_timeout_seconds": 5.0},
        served_class=ScriptedEpisodes,
    )
    failing = {**rows[2], "_ng_task_index": 7, "_ng_rollout_index": 0, "_ng_environment_server": "played"}
    async with running_servers([spec]) as client:
        helper = RolloutCollectionHelper()
        metrics = await helper.run_from_config(options, client=client)
        (failed,) = helper.run_examples([failing], client=client)
        with pytest.raises(RolloutError, match="no luck"):
            await failed
        (sidecar,) = helper.run_examples([failing], client=client, route_failures_to_sidecar=True)
        assert "no luck" in (await sidecar)[1]["_ng_failure_message"]
        (late,) = helper.run_examples([failing], client=client, dispatch_budget_s=0.0)
        assert (await late)[1]["_ng_failure_class"] == "cancelled"
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert sorted((each["_ng_task_index"], each["reward"], each["played"]) for each in records) == [
        (0, 0.5, "0-0"),
        (0, 0.5, "0-1"),
        (1, 1.0, "1-0"),
        (1, 1.0, "1-1"),
    ]
    assert {each["_ng_environment_server"] for each in records} == {"played"}
    assert records[0]["_ng_task_id"]["taskset"] == "set"
    failures = [json.loads(line) for line in (tmp_path / "out_failures.jsonl").read_text().splitlines()]
    assert [(each["code"], each["message"]) for each in failures] == [("environment_server_failed", "no luck")] * 2
    assert metrics.scored == 4

"""One rollout is one trace, wherever its servers run."""

from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from nemo_gym.client.server_client import ServerReply
from nemo_gym.common import tracing
from nemo_gym.config.loading import load_config
from nemo_gym.config.secrets import Secrets, set_process_secrets
from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.runtime.tracing import tracing_of
from nemo_gym.testing import TRANSPORTS, Transport, running_servers
from tests.commands import free_port
from tests.otlp_receiver import otlp_receiver
from tests.stacks import references, scripted_model, simple_agent, weather

REPLIES = [
    {"turn": 0, "call": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]},
    {"turn": 1, "say": "It is cold."},
]
TOOL = {"type": "function", "name": "get_weather", "parameters": {}, "strict": False}
ROW = {"responses_create_params": {"input": "How is the weather?", "tools": [TOOL]}}
STAGES = Counter(
    ["rollout", "agent/run", "weather/seed_session", "weather/get_weather", "weather/verify"]
    + 2 * ["policy_model/v1/responses"]
)


def weather_servers(**model: Any) -> list[Any]:
    return [weather(), scripted_model(**(model or {"replies": REPLIES})), simple_agent("weather")]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_every_step_is_a_span_inside_the_rollouts_own(transport: Transport) -> None:
    exporter = InMemorySpanExporter()
    with tracing_of({"tracing_enabled": True}, exporter=exporter):
        async with running_servers(weather_servers(), transport=transport) as client:
            for _ in range(2):
                await client.call("agent", "/run", ROW, answer=ServerReply)
    spans = exporter.get_finished_spans()
    traces = Counter(span.context.trace_id for span in spans if span.context)
    assert list(traces.values()) == [6, 6]
    [first, second] = [span for span in spans if span.parent is None]
    assert first.name == second.name == "agent/run"
    by_id = {span.context.span_id: span.name for span in spans if span.context}
    parents = {span.name: by_id[span.parent.span_id] for span in spans if span.parent}
    assert set(parents.values()) == {"agent/run"}


@pytest.mark.slow
async def test_one_trace_a_rollout_across_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_bytes(b"".join(orjson.dumps(ROW) + b"\n" for _ in range(3)))
    blocks: dict[str, Any] = {
        "weather": {
            "resources_servers": {"example_simple_weather": {"entrypoint": "app.py", "domain": "agent"}},
        },
        "policy_model": {"responses_api_models": {"scripted_model": {"entrypoint": "app.py", "replies": REPLIES}}},
        "agent": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", **references("weather")}}},
    }
    blocks["weather"]["resources_servers"]["example_simple_weather"]["isolation"] = "process"
    blocks["policy_model"]["responses_api_models"]["scripted_model"]["isolation"] = "process"
    with otlp_receiver() as receiver:
        settings = {"tracing_enabled": True, "tracing_endpoint": receiver.url, "config_paths": ["none.yaml"]}
        (tmp_path / "none.yaml").write_text("{}")
        config = load_config(
            initial={**blocks, **settings, "head_server": {"host": "127.0.0.1", "port": free_port()}},
            use_dotenv=False,
            fill_ports=False,
        )
        options = RolloutCollectionConfig(
            agent_name="agent", input_jsonl_fpath="rows.jsonl", output_jsonl_fpath="out.jsonl"
        )
        async with connect_servers(config) as client:
            await RolloutCollectionHelper().run_from_config(options, client=client)
        traces = receiver.by_trace()
    assert len(traces) == 3
    for spans in traces:
        assert Counter(span["name"] for span in spans) == STAGES
        assert len({span["pid"] for span in spans}) == 3  # three workers; the rollout begins in that of the agent
        [root] = [span for span in spans if not span["parent"]]
        assert root["name"] == "rollout"
        ids = {span["id"] for span in spans}
        assert all(span["parent"] in ids for span in spans if span is not root)


async def test_a_failure_is_marked_with_its_cause_and_without_secrets() -> None:
    exporter = InMemorySpanExporter()
    set_process_secrets(Secrets(frozenset(("sk-very-secret",))))
    try:
        with tracing_of({"tracing_enabled": True}, exporter=exporter):
            async with running_servers(weather_servers(replies=[{"status": 400}])) as client:
                with pytest.raises(RolloutError):
                    await client.call("agent", "/run", ROW, answer=ServerReply)
            with pytest.raises(ValueError, match="sk-very-secret"):
                await tracing.traced(_fail(), "step")
    finally:
        set_process_secrets(Secrets())
    failed = {span.name: span.status.description for span in exporter.get_finished_spans() if span.status.description}
    assert failed["agent/run"] == "model"
    assert failed["step"] == "ValueError: the key is ****"


async def _fail() -> None:
    raise ValueError("the key is sk-very-secret")


async def test_what_is_not_sampled_is_not_sent_by_any_server() -> None:
    exporter = InMemorySpanExporter()
    with tracing_of({"tracing_enabled": True, "tracing_sample_ratio": 0.0}, exporter=exporter):
        async with running_servers(weather_servers(), transport="http") as client:
            await client.call("agent", "/run", ROW, answer=ServerReply)
    assert exporter.get_finished_spans() == ()


async def test_tracing_is_off_by_default_and_ends_with_its_block() -> None:
    with tracing_of({}):
        assert tracing.active is None
    with tracing_of({"tracing_enabled": True}, exporter=InMemorySpanExporter()):
        assert tracing.active is not None
    assert tracing.active is None


@pytest.mark.parametrize("setting", [{"tracing_sample_ratio": 2}, {"tracing_endpoint": "localhost:4318"}])
def test_a_wrong_setting_is_named(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))), tracing_of(setting):
        pass


async def test_an_unreachable_collector_of_traces_costs_no_rollout() -> None:
    with tracing_of({"tracing_enabled": True, "tracing_endpoint": f"http://127.0.0.1:{free_port()}"}):
        async with running_servers(weather_servers()) as client:
            reply = await client.call("agent", "/run", ROW, answer=ServerReply)
    assert reply.status == 200
    assert tracing.active is None

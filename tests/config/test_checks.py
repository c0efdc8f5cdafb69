from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.checks import (
    almost_servers_report,
    check_references,
    drop_unused_references,
    server_blocks,
    valid_servers,
)
from nemo_gym.config.sources import read_sources
from nemo_gym.errors import ConfigError, UnknownServerError


def resources(**fields: Any) -> dict[str, Any]:
    return {"resources_servers": {"weather": {"entrypoint": "app.py", "domain": "agent", **fields}}}


def agent(**fields: Any) -> dict[str, Any]:
    return {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", **fields}}}


def ref(name: str, kind: str = "resources_servers") -> dict[str, str]:
    return {"type": kind, "name": name}


def check(config: DictConfig) -> None:
    check_references(server_blocks(config).servers)


def problem_with(config: DictConfig) -> ConfigError | None:
    try:
        check(config)
    except ConfigError as error:
        return error
    return None


def test_blocks_are_sorted_by_whether_they_can_be_started() -> None:
    config = OmegaConf.create(
        {
            "good": resources(),
            "wrong": resources(domain="x"),
            "partial": {"resources_servers": {"weather": {"domain": "agent"}}},
            "odd": {"resources_servers": "text"},
            "setting": {"a": 1},
            "text": "x",
            "unset": "${nowhere}",
            "mandatory": "???",
            5: resources(),
            "default_host": resources(),
            "copy": "${good}",
        }
    )
    blocks = server_blocks(config)
    assert [server.name for server in blocks.servers] == ["good", "copy"]
    assert [almost.name for almost in blocks.almost_servers] == ["wrong"]
    assert blocks.without_entrypoint == ["partial", "odd"]


def test_almost_servers_are_reported_with_the_source_of_each_mistake() -> None:
    initial = {"r": resources(), "a": agent(datasets=[{"name": "d", "type": "train", "jsonl_fpath": "x"}])}
    sources = read_sources(["r.resources_servers.weather.domain=agnet"], initial=initial, use_dotenv=False)
    almost = server_blocks(sources.merge(), sources=sources).almost_servers
    lines = almost_servers_report(almost).splitlines()
    assert lines[0] == "Configuration Warnings: Almost-Servers Detected"
    assert lines[1].startswith("Almost-Server Detected: 'r'.")
    assert lines[2].startswith("- resources_servers -> weather -> domain: Must be one of: 'math', 'coding', ")
    assert lines[2].endswith("found 'agnet'. Did you mean 'agent'? (in the command line)")
    assert lines[3].startswith("Almost-Server Detected: 'a'.")
    assert lines[4].startswith("- responses_api_agents -> simple_agent -> datasets -> 0: ")
    assert "license" in lines[4]
    assert lines[4].endswith("(in the config passed in from Python)")
    with pytest.raises(ValueError, match="almost-server") as raised:
        valid_servers(sources.merge(), error_on_almost_servers=True, sources=sources)
    first, _, rest = str(raised.value).partition("\n")
    assert first.startswith("Found 2 almost-server(s) with validation errors. ")
    assert "error_on_almost_servers=false" in first
    assert rest.splitlines() == lines


@pytest.mark.parametrize(
    "fields",
    [
        {"resources_server": ref("r")},
        {"resources_server": {**ref("r"), "extra": 1}},
        {"nested": {"deep": [{"er": ref("r")}]}},
        {"peer": ref("a", "responses_api_agents")},
        {"datasets": [{"name": "nobody", "type": "example", "jsonl_fpath": "x"}]},
        {"resources_server": {"type": "resources_servers", "name": "${which}"}},
    ],
)
def test_references_that_lead_to_a_server_are_fine(fields: dict[str, Any]) -> None:
    assert problem_with(OmegaConf.create({"r": resources(), "a": agent(**fields), "which": "r"})) is None


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"resources_server": ref("wether")}, "resources_server"),
    ],
)
def test_a_reference_to_nobody_names_the_place_and_the_nearest(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(UnknownServerError) as caught:
        check(OmegaConf.create({"weather": resources(), "a": agent(**fields)}))
    assert "resources_servers/wether" in str(caught.value)
    assert "[resources_servers/weather, responses_api_agents/a]" in str(caught.value)
    assert f"a.responses_api_agents.simple_agent.{place}" in str(caught.value)
    assert "'weather'?" in str(caught.value)
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, ConfigError)


def test_a_reference_of_the_wrong_type_names_the_right_one() -> None:
    with pytest.raises(AssertionError, match="'r' is one of resources_servers"):
        check(OmegaConf.create({"r": resources(), "a": agent(model_server=ref("r", "responses_api_models"))}))


def test_a_reference_to_an_almost_server_leads_nowhere() -> None:
    with pytest.raises(UnknownServerError, match="Could not find resources_servers/r "):
        check(OmegaConf.create({"r": resources(domain="x"), "a": agent(resources_server=ref("r"))}))


@pytest.mark.parametrize(
    ("fields", "is_dropped"),
    [
        ({"should_use_judge": False, "judge_model_server": {"type": "responses_api_models", "name": "???"}}, True),
        ({"should_use_grader": False, "grader_model_server": {"type": "responses_api_models", "name": "???"}}, True),
        ({"should_use_judge": True, "judge_model_server": {"type": "responses_api_models", "name": "???"}}, False),
        ({"should_use_judge": False, "other_model_server": {"type": "responses_api_models", "name": "???"}}, False),
        ({"judge_model_server": {"type": "responses_api_models", "name": "???"}}, False),
        ({"should_use_judge": "???", "judge_model_server": {"type": "responses_api_models", "name": "???"}}, False),
    ],
)
def test_a_model_server_that_is_switched_off_needs_no_name(fields: dict[str, Any], is_dropped: bool) -> None:
    config = OmegaConf.create({"r": resources(**fields), "other": "${nowhere}", "odd": {"resources_servers": "???"}})
    drop_unused_references(config)
    block = config.r.resources_servers.weather
    reference = next(block[key] for key in block if str(key).endswith("_model_server"))
    assert ("name" not in list(reference)) == is_dropped


def test_the_name_of_a_model_server_that_is_switched_off_is_kept_if_there_is_one() -> None:
    fields = {"should_use_judge": False, "judge_model_server": ref("judge", "responses_api_models")}
    config = OmegaConf.create({"r": resources(**fields)})
    drop_unused_references(config)
    assert config.r.resources_servers.weather.judge_model_server.name == "judge"


def test_an_unknown_server_type_is_an_error() -> None:
    block = {"mcqa": {"resource_servers": {"mcqa": {"entrypoint": "app.py", "domain": "knowledge"}}}}
    with pytest.raises(ConfigError) as raised:
        valid_servers(OmegaConf.create(block), error_on_almost_servers=True)
    message = str(raised.value)
    assert "'mcqa'" in message
    assert "'resource_servers'" in message
    assert "responses_api_models, resources_servers, responses_api_agents" in message
    assert message.endswith("'resources_servers'?")

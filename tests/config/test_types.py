import subprocess
import sys
from typing import Any

import pytest
from omegaconf import OmegaConf
from pydantic import ValidationError

from nemo_gym.config.types import (
    AgentServerRef,
    BaseRunServerConfig,
    BaseRunServerInstanceConfig,
    BaseServerConfig,
    DatasetConfig,
    Domain,
    ModelServerRef,
    ResourcesServerInstanceConfig,
    ResourcesServerRef,
    ResponsesAPIAgentServerInstanceConfig,
    ResponsesAPIModelServerInstanceConfig,
    ServerInstanceConfig,
    is_server_ref,
    maybe_get_server_instance_config,
)
from nemo_gym.config.validation import error_lines


def dataset(**fields: Any) -> DatasetConfig:
    return DatasetConfig.model_validate({"name": "rows", "type": "example", "jsonl_fpath": "rows.jsonl", **fields})


def agent_block(**fields: Any) -> dict[str, Any]:
    return {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", **fields}}}


def resources_block(**fields: Any) -> dict[str, Any]:
    return {"resources_servers": {"weather": {"entrypoint": "app.py", "domain": "agent", **fields}}}


def valid(name: str, block: Any) -> ServerInstanceConfig:
    instance, error = maybe_get_server_instance_config(name, block)
    assert error is None
    assert instance is not None
    return instance


def mistakes(block: Any) -> str:
    instance, error = maybe_get_server_instance_config("it", block)
    assert instance is None
    assert error is not None
    return "\n".join(error_lines(error))


def test_importing_the_types_loads_nothing_heavy() -> None:
    heavy = ("hydra", "omegaconf", "ray", "openai")
    code = f"import sys, nemo_gym.config.types; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("model", [BaseServerConfig, BaseRunServerConfig, BaseRunServerInstanceConfig])
def test_server_configs_accept_empty_values_and_ignore_unknown_ones(model: type[BaseServerConfig]) -> None:
    config = model.model_validate({"host": "", "port": 0, "entrypoint": "", "name": "", "unheard_of": 1})
    assert (config.host, config.port, config.num_workers) == ("", 0, None)
    assert not hasattr(config, "unheard_of")


def test_a_server_config_can_be_changed_by_code_in_the_field() -> None:
    config = BaseRunServerInstanceConfig(host="", port=0, entrypoint="", name="")
    config.host = "0.0.0.0"
    assert config.host == "0.0.0.0"


def test_domains_are_those_of_the_tables() -> None:
    names = "math coding agent knowledge instruction_following long_context safety games translation rlhf e2e other"
    assert {str(domain) for domain in Domain} == set(names.split())


@pytest.mark.parametrize(
    ("value", "ref"),
    [
        ({"type": "responses_api_models", "name": "m"}, ModelServerRef(type="responses_api_models", name="m")),
        ({"type": "resources_servers", "name": "r", "x": 1}, ResourcesServerRef(type="resources_servers", name="r")),
        ({"type": "responses_api_agents", "name": "a"}, AgentServerRef(type="responses_api_agents", name="a")),
        ({"type": "train", "name": "rows"}, None),
        ({"type": "resources_servers"}, None),
        ({"type": "resources_servers", "name": 5}, None),
        ("resources_servers", None),
        (None, None),
    ],
)
def test_a_server_reference_is_recognised_by_type_and_name(value: Any, ref: object) -> None:
    assert is_server_ref(value) == ref


def test_a_server_reference_may_be_an_omegaconf_container() -> None:
    config = OmegaConf.create({"ref": {"type": "resources_servers", "name": "${n}", "note": "${unset}"}, "n": "r"})
    assert is_server_ref(config.ref) == ResourcesServerRef(type="resources_servers", name="r")


@pytest.mark.parametrize("kind", ["train", "validation"])
def test_data_to_train_on_needs_a_license(kind: str) -> None:
    with pytest.raises(ValidationError, match=r"license .* rows"):
        dataset(type=kind)
    assert dataset(type=kind, license="MIT").gitlab_identifier is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_repeats": 0}, "Input should be greater than or equal to 1"),
        ({"start_idx": -1}, "Input should be greater than or equal to 0"),
        ({"start_idx": 3, "end_idx": 3}, "end_idx of rows is 3, expected more than start_idx"),
        ({"end_idx": 0}, "end_idx of rows is 0"),
        ({"gitlab_identifier": {"dataset_name": "d"}}, "version"),
        ({"license": "mit"}, "'MIT'"),
        ({"type": "test"}, "'train', 'validation', 'example' or 'benchmark'"),
    ],
)
def test_a_dataset_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        dataset(**fields)


def test_a_dataset_has_the_keys_of_the_documents() -> None:
    rows = dataset(
        start_idx=1,
        end_idx=3,
        gitlab_identifier={"dataset_name": "d", "version": "0.0.1", "artifact_fpath": "a.jsonl"},
        huggingface_identifier={"repo_id": "org/d"},
        dataset_url="ignored",
    )
    assert rows.model_dump(exclude_none=True) == {
        "name": "rows",
        "type": "example",
        "jsonl_fpath": "rows.jsonl",
        "num_repeats": 1,
        "start_idx": 1,
        "end_idx": 3,
        "gitlab_identifier": {"dataset_name": "d", "version": "0.0.1", "artifact_fpath": "a.jsonl"},
        "huggingface_identifier": {"repo_id": "org/d"},
    }


@pytest.mark.parametrize("value", [None, 5, "text", [1]])
def test_what_is_no_mapping_is_no_server_and_no_mistake(value: Any) -> None:
    assert maybe_get_server_instance_config("it", value) == (None, None)


def test_each_kind_of_block_becomes_its_kind_of_server() -> None:
    agent = valid("a", agent_block(max_steps=3, datasets=[dataset().model_dump()]))
    assert isinstance(agent, ResponsesAPIAgentServerInstanceConfig)
    assert agent.get_server_ref() == AgentServerRef(type="responses_api_agents", name="a")
    assert agent.implementation == "simple_agent"
    assert agent.datasets == [dataset()]
    inner = agent.get_inner_run_server_config()
    assert (inner.host, inner.port, inner.num_workers, inner.isolation) == (None, None, None, "shared")
    assert inner.model_extra == {"max_steps": 3}

    resources = valid("r", resources_block(isolation="process", num_workers=2))
    assert isinstance(resources, ResourcesServerInstanceConfig)
    assert resources.datasets is None
    assert resources.get_inner_run_server_config_dict() == {
        "entrypoint": "app.py",
        "domain": "agent",
        "isolation": "process",
        "num_workers": 2,
    }

    model = valid("m", {"responses_api_models": {"openai_model": {"entrypoint": "app.py"}}})
    assert isinstance(model, ResponsesAPIModelServerInstanceConfig)


def test_a_domain_is_dropped_where_it_has_no_meaning() -> None:
    agent = valid("a", agent_block(domain="not one"))
    assert "domain" not in agent.model_dump()["responses_api_agents"]["simple_agent"]


def test_a_block_may_be_an_omegaconf_container() -> None:
    config = OmegaConf.create({"a": agent_block(port="${p}"), "p": 8000})
    assert valid("a", config.a).get_inner_run_server_config().port == 8000


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            {"resources_servers": {"weather": {"entrypoint": "app.py", "domian": "math"}}},
            "- resources_servers -> weather -> domain: Field required; found only: entrypoint, domian.",
        ),
        (
            resources_block(domain="maths"),
            "- resources_servers -> weather -> domain: Must be one of: 'math', 'coding', 'agent', 'knowledge', "
            "'instruction_following', 'long_context', 'safety', 'games', 'translation', 'rlhf', 'e2e', 'other'; "
            "found 'maths'. Did you mean 'math'?",
        ),
        (
            agent_block(datasets=[{"name": "rows", "type": "train", "jsonl_fpath": "x"}]),
            "- responses_api_agents -> simple_agent -> datasets -> 0: A license is required for rows",
        ),
        (
            agent_block(isolation="proces"),
            "- responses_api_agents -> simple_agent -> isolation: Must be one of: 'shared', 'process'; "
            "found 'proces'. Did you mean 'process'?",
        ),
        (agent_block(port=70000), "simple_agent -> port: Input should be less than or equal to 65535; found 70000."),
        (agent_block(num_workers=0), "num_workers: expected a whole number of workers from 1, or 'auto'; found 0."),
        ({"responses_api_agents": {}}, "responses_api_agents: Dictionary should have at least 1 item"),
        (
            {"responses_api_agents": {name: {"entrypoint": "app.py"} for name in "ab"}},
            "responses_api_agents: Dictionary should have at most 1 item",
        ),
        (
            agent_block() | resources_block(),
            "; found: responses_api_agents, resources_servers",
        ),
        ({"resource_servers": {}}, "found: resource_servers"),
        ({}, "found: nothing"),
    ],
)
def test_a_block_that_is_no_server_says_what_was_found_and_expected(block: dict[str, Any], message: str) -> None:
    assert message in mistakes(block)


def test_only_the_mistakes_of_the_written_server_type_are_reported() -> None:
    assert mistakes(resources_block(domain="x")).count("\n") == 0

"""Blocks that start from other blocks."""

import logging
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym.config.loading import load_config
from nemo_gym.config.sources import apply_directives
from nemo_gym.config.types import DatasetConfig
from nemo_gym.errors import ConfigError, InheritPathNotFoundError

SRV = {"a": 5, "b": {"c": 2, "d": 3}, "l": [1, 2]}


def applied(**config: Any) -> Any:
    node = OmegaConf.create(config)
    apply_directives(node)
    return OmegaConf.to_container(node, resolve=True)


def test_a_block_inherits_and_its_source_is_gone() -> None:
    new = {"_inherit_from": "srv", "b": {"c": 9}, "l": [7]}
    assert applied(srv=SRV, new=new) == {"new": {"a": 5, "b": {"c": 9, "d": 3}, "l": [7]}}


def test_a_copy_keeps_its_source_and_several_may_inherit_from_one() -> None:
    assert applied(srv=SRV, new={"_copy": "srv", "a": 1}) == {"srv": SRV, "new": {**SRV, "a": 1}}
    both = applied(srv=SRV, one={"_inherit_from": "srv"}, two={"_inherit_from": "srv", "a": 0})
    assert both == {"one": SRV, "two": {**SRV, "a": 0}}


def test_a_chain_is_followed_to_its_end() -> None:
    found = applied(a=SRV, b={"_inherit_from": "a", "a": 6}, c={"_inherit_from": "b", "l": []})
    assert found == {"c": {"a": 6, "b": {"c": 2, "d": 3}, "l": []}}


def test_part_of_a_block_and_the_text_form() -> None:
    found = applied(srv=SRV, new={"x": {"_inherit_from": "srv.b", "e": 4}, "y": "${copy:srv.l}"})
    assert found == {"srv": {"a": 5, "l": [1, 2]}, "new": {"x": {"c": 2, "d": 3, "e": 4}, "y": [1, 2]}}


def test_keys_are_deleted_at_any_depth() -> None:
    new = {"_inherit_from": "srv", "_delete_key": "a, l", "b": {"_delete_key": "c"}}
    assert applied(srv=SRV, new=new) == {"new": {"b": {"d": 3}}}
    assert applied(srv={**SRV, "_delete_key": "b.c"}) == {"srv": {"a": 5, "b": {"d": 3}, "l": [1, 2]}}


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"_inherit_from": "srw"}, "there is no 'srw'. Did you mean 'srv'"),
        ({"_inherit_from": "srv", "_delete_key": "z"}, "names 'z'"),
    ],
)
def test_a_path_or_key_that_is_not_there_is_named(new: dict[str, Any], message: str) -> None:
    with pytest.raises(InheritPathNotFoundError, match=message):
        applied(srv=SRV, new=new)


def test_a_circle_is_an_error() -> None:
    with pytest.raises(ConfigError, match="inherits from itself"):
        applied(a={"_inherit_from": "b"}, b={"_inherit_from": "a"})


def test_a_dummy_model_lends_its_settings_to_the_one_beside_it() -> None:
    config = OmegaConf.create({"m": {"responses_api_models": {"dummy_model": {"a": 1, "b": 1}, "real": {"b": 2}}}})
    apply_directives(config)
    assert config == {"m": {"responses_api_models": {"real": {"a": 1, "b": 2}}}}


def environment(**more: Any) -> dict[str, Any]:
    return {"resources_servers": {"mcqa": {"entrypoint": "app.py", "domain": "rlhf", **more}}}


def load(**blocks: Any) -> Any:
    return load_config(initial=blocks, use_dotenv=False, fill_ports=False)


def test_a_benchmark_inherits_an_environment_and_overrides_what_it_must() -> None:
    config = load(base=environment(path="???", port=None), bench={"_inherit_from": "base", **environment(path="x")})
    assert "base" not in config
    assert config.bench.resources_servers.mcqa.path == "x"


def test_a_reference_to_a_removed_block_says_why_it_is_gone() -> None:
    agent = {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", "resources_server": {
        "type": "resources_servers", "name": "base"}}}}  # fmt: skip
    with pytest.raises(ConfigError, match=r"'base' was removed.*'bench'"):
        load(base=environment(), bench={"_inherit_from": "base"}, agent=agent)


def test_a_misspelt_directive_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"bench\._inherit_form .*'_inherit_from'"):
        load(base=environment(), bench={"_inherit_form": "base", **environment()})


def test_a_nested_reference_that_is_not_met_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    nested = {"verifiers": {"x": {"type": "resources_servers", "name": "nowhere"}}}
    with caplog.at_level(logging.WARNING):
        load(env=environment(**nested))
    assert "env.resources_servers.mcqa.verifiers.x" in caplog.text


def test_settings_of_agents_are_copied_into_those_that_do_not_set_them(tmp_path: Path) -> None:
    agent = {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py"}}}
    config = load(skip_verification=True, skip_verification_reward=0.5, agent=agent)
    inner = config.agent.responses_api_agents.simple_agent
    assert (inner.skip_verification, inner.skip_verification_reward) == (True, 0.5)


def test_a_key_without_effect_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load(nemo_gym_log_dir="logs")
        DatasetConfig.model_validate({"name": "x", "type": "example", "jsonl_fpath": "x.jsonl", "licence": "MIT"})
    assert "'nemo_gym_log_dir' has no effect" in caplog.text
    assert "keys without effect: licence" in caplog.text


def test_a_benchmark_dataset_has_a_script_a_prompt_and_any_licence() -> None:
    fields = {"name": "x", "type": "benchmark", "jsonl_fpath": "x.jsonl", "prepare_script": "prepare.py"}
    dataset = DatasetConfig.model_validate({**fields, "prompt_config": "p.yaml", "license": "whatever"})
    assert (dataset.prepare_script, dataset.prompt_config, dataset.license) == ("prepare.py", "p.yaml", None)


def test_a_source_is_one_of_the_identifiers() -> None:
    fields: dict[str, Any] = {"name": "x", "type": "train", "jsonl_fpath": "x.jsonl", "license": "CC BY-SA 4.0"}
    source = {"type": "huggingface", "repo_id": "a/b", "artifact_fpath": "x.jsonl"}
    dataset = DatasetConfig.model_validate({**fields, "source": source})
    assert dataset.huggingface_identifier is not None
    assert dataset.huggingface_identifier.repo_id == "a/b"
    for wrong, message in (
        ({"source": source, "huggingface_identifier": {"repo_id": "a/b"}}, "found both"),
        ({"source": {"type": "ftp"}}, "type .ftp.*huggingface"),
    ):
        with pytest.raises(ValueError, match=message):
            DatasetConfig.model_validate({**fields, **wrong})

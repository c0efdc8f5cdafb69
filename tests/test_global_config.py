import platform
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from nemo_gym import config_keys, global_config
from nemo_gym.config_loading import installed_pins
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import (
    GlobalConfigDictParser,
    GlobalConfigDictParserConfig,
    get_first_server_config_dict,
    get_global_config_dict,
    set_global_config_dict,
)


@pytest.fixture(autouse=True)
def _as_a_fresh_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without arguments in an empty folder, which has not read its configuration yet."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.yaml").touch()
    monkeypatch.setattr(sys, "argv", ["ng_run"])
    monkeypatch.setattr(global_config, "_GLOBAL_CONFIG_DICT", None)
    monkeypatch.delenv(global_config.NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME, raising=False)


def write(name: str, content: dict[str, Any]) -> None:
    Path(name).write_text(yaml.safe_dump(content))


def weather(**fields: Any) -> dict[str, Any]:
    return {"resources_servers": {"weather": {"entrypoint": "app.py", "domain": "agent", **fields}}}


def test_an_empty_parse_gives_exactly_the_computed_keys() -> None:
    assert GlobalConfigDictParser().parse_no_environment() == {
        "head_server": {"host": "127.0.0.1", "port": 11000},
        "disallowed_ports": [11000],
        "port_range_low": 10001,
        "port_range_high": 20000,
        "head_server_deps": installed_pins(),
        "python_version": platform.python_version(),
        "skip_venv_if_present": False,
    }


def test_command_line_env_file_and_python_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    write("env.yaml", {"k": "env", "e": 1, "config_paths": ["a.yaml"]})
    write("a.yaml", {"k": "file", "f": 1})
    monkeypatch.setattr(sys, "argv", ["ng_run", "+c=1"])
    config = GlobalConfigDictParser().parse(
        GlobalConfigDictParserConfig(initial_global_config_dict=DictConfig({"k": "python"}))
    )
    assert (config.k, config.e, config.f, config.c) == ("python", 1, 1, 1)


def test_command_line_and_env_file_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    write("env.yaml", {"e": 1})
    monkeypatch.setattr(sys, "argv", ["ng_run", "+c=1"])
    without_cli = GlobalConfigDictParser().parse(GlobalConfigDictParserConfig(skip_load_from_cli=True))
    assert ("c" in without_cli, "e" in without_cli) == (False, True)
    without_env = GlobalConfigDictParser().parse(GlobalConfigDictParserConfig(skip_load_from_dotenv=True))
    assert ("c" in without_env, "e" in without_env) == (True, False)
    alone = GlobalConfigDictParser().parse_no_environment(DictConfig({"p": 1}))
    assert ("c" in alone, "e" in alone, "p" in alone) == (False, False, True)


def test_another_env_file_can_be_given() -> None:
    write("env.yaml", {"e": 1})
    write("mine.yaml", {"m": 1})
    config = GlobalConfigDictParser().parse(GlobalConfigDictParserConfig(dotenv_path=Path("mine.yaml")))
    assert ("m" in config, "e" in config) == (True, False)


def test_the_initial_config_may_be_a_plain_dict() -> None:
    options = GlobalConfigDictParserConfig.model_validate({"initial_global_config_dict": {"k": 1}})
    assert GlobalConfigDictParser().parse(options).k == 1


def test_work_without_a_model_needs_no_model_settings() -> None:
    model = {"responses_api_models": {"m": {"entrypoint": "app.py", "base_url": "${policy_base_url}"}}}
    initial = OmegaConf.merge(GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT, {"m": model})
    assert isinstance(initial, DictConfig)
    assert GlobalConfigDictParser().parse_no_environment(initial).m.responses_api_models.m.base_url == ""
    assert GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT == {
        "policy_base_url": "",
        "policy_api_key": "",
        "policy_model_name": "",
    }


def test_secrets_can_be_hidden() -> None:
    options = GlobalConfigDictParserConfig(
        initial_global_config_dict=DictConfig({"hf_token": "abc", "max_tokens": 5}),
        skip_load_from_dotenv=True,
        hide_secrets=True,
    )
    config = GlobalConfigDictParser().parse(options)
    assert (config.hf_token, config.max_tokens) == ("****", 5)


def test_ports_can_be_left_open() -> None:
    options = GlobalConfigDictParserConfig(
        initial_global_config_dict=DictConfig({"sky": weather()}), skip_load_from_dotenv=True, fill_ports=False
    )
    assert "port" not in GlobalConfigDictParser().parse(options).sky.resources_servers.weather


def test_the_command_line_can_be_read_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ng_run", "+a.b=1"])
    assert GlobalConfigDictParser().parse_global_config_dict_from_cli() == {"a": {"b": 1}}


def test_extra_config_paths_are_loaded_in_the_order_of_merging(tmp_path: Path) -> None:
    write("a.yaml", {"config_paths": ["b.yaml"], "a": 1})
    write("b.yaml", {"b": 1})
    paths, configs = GlobalConfigDictParser().load_extra_config_paths([str(tmp_path / "a.yaml")])
    assert paths == ["b.yaml", str(tmp_path / "a.yaml")]
    assert configs == [{"b": 1}, {"config_paths": ["b.yaml"], "a": 1}]


def test_the_steps_of_the_parser_can_be_taken_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    parser = GlobalConfigDictParser()
    config = OmegaConf.create({"sky": weather(port=9000), "wrong": weather(domain="x"), "note": 1})
    ((name, error),) = parser.detect_and_report_almost_servers(config)
    assert (name, error.error_count()) == ("wrong", 1)
    assert "Almost-Server Detected: 'wrong'" in caplog.text
    servers = parser.filter_for_server_instance_configs(config)
    assert [server.name for server in servers] == ["sky"]
    assert parser.validate_and_populate_defaults(config, servers, "10.0.0.1") == [11000, 9000]
    assert config.sky.resources_servers.weather.host == "10.0.0.1"


def test_the_config_is_cached_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    cached = DictConfig({"h": True})
    monkeypatch.setattr(global_config, "_GLOBAL_CONFIG_DICT", cached)
    assert get_global_config_dict() is cached
    assert cached == {"h": True}


def test_the_config_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ng_run", "+k=1"])
    first = get_global_config_dict()
    monkeypatch.setattr(sys, "argv", ["ng_run", "+k=2"])
    assert get_global_config_dict() is first
    assert first.k == 1
    set_global_config_dict()
    assert get_global_config_dict().k == 2


def test_a_config_handed_down_by_the_parent_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(global_config.NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME, "a: 1\nb: ${a}\n")
    config = get_global_config_dict()
    assert config == {"a": 1, "b": 1}
    assert get_global_config_dict() is config


def test_a_parser_of_another_class_can_be_used() -> None:
    class Fixed(GlobalConfigDictParser):
        def parse(self, global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None) -> DictConfig:
            return DictConfig({"fixed": global_config_dict_parser_config is not None})

    assert get_global_config_dict(GlobalConfigDictParserConfig(), Fixed) == {"fixed": True}
    set_global_config_dict(global_config_dict_parser_cls=Fixed)
    assert get_global_config_dict() == {"fixed": False}


def test_the_innermost_block_of_a_server_is_found_by_its_name() -> None:
    config = OmegaConf.create({"sky": weather(port=1)})
    assert get_first_server_config_dict(config, "sky") == weather(port=1)["resources_servers"]["weather"]
    with pytest.raises(ConfigError, match=r"No server 'skye' in the configuration\. Did you mean 'sky'\?"):
        get_first_server_config_dict(config, "skye")


def test_the_names_that_outside_code_imports_are_here() -> None:
    names = [name for name in vars(config_keys) if name.endswith(("KEY_NAME", "ENV_VAR_NAME", "KEYS"))]
    assert len(names) > 20
    for name in [*names, "DEFAULT_HEAD_SERVER_PORT", "find_open_port"]:
        assert hasattr(global_config, name)
    assert global_config.DEFAULT_HEAD_SERVER_PORT == 11000
    assert global_config.TASK_INDEX_KEY_NAME == "_task_index"
    assert "port_range_low" in global_config.NEMO_GYM_RESERVED_TOP_LEVEL_KEYS

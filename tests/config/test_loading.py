import logging
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from nemo_gym import global_config as public_global_config
from nemo_gym.compat import global_config
from nemo_gym.compat.global_config import (
    GlobalConfigDictParser,
    GlobalConfigDictParserConfig,
    get_global_config_dict,
    set_global_config_dict,
)
from nemo_gym.config import keys as config_keys
from nemo_gym.config.loading import (
    complete,
    dump,
    get_first_server_config_dict,
    installed_pins,
    load_config,
)
from nemo_gym.config.sources import UnsetKeyError, resolve
from nemo_gym.errors import ConfigError

MODEL = {
    "policy_model": {
        "responses_api_models": {
            "openai_model": {
                "entrypoint": "app.py",
                "openai_base_url": "${policy_base_url}",
                "openai_api_key": "${policy_api_key}",
            }
        }
    }
}


@pytest.fixture(autouse=True)
def _as_a_fresh_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without arguments in an empty folder, which has not read its configuration yet."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.yaml").touch()
    monkeypatch.setattr(sys, "argv", ["ng_run"])
    monkeypatch.setattr(global_config, "_GLOBAL_CONFIG_DICT", None)
    monkeypatch.delenv(config_keys.NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME, raising=False)


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
        "policy_model": {"responses_api_models": {"dummy_model": {"entrypoint": "app.py"}}},
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
    monkeypatch.setenv(config_keys.NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME, "a: 1\nb: ${a}\n")
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
    with pytest.raises(ConfigError, match=r"'skye'.* 'sky'\?"):
        get_first_server_config_dict(config, "skye")


def test_the_names_that_outside_code_imports_are_here() -> None:
    names = [name for name in vars(config_keys) if name.endswith(("KEY_NAME", "ENV_VAR_NAME", "KEYS"))]
    assert len(names) > 20
    for name in [*names, "DEFAULT_HEAD_SERVER_PORT", "find_open_port"]:
        assert hasattr(public_global_config, name)
    assert config_keys.DEFAULT_HEAD_SERVER_PORT == 11000
    assert config_keys.TASK_INDEX_KEY_NAME == "_ng_task_index"
    assert "port_range_low" in config_keys.NEMO_GYM_RESERVED_TOP_LEVEL_KEYS


# Reading, checking and completing


def load(*arguments: str, **initial: Any) -> Any:
    return load_config(arguments, initial=initial, use_dotenv=False)


def test_computed_keys_are_overwritten_and_settings_kept() -> None:
    config = load("disallowed_ports=[1]", "python_version=x", "port_range_low=15000", "skip_venv_if_present=true")
    assert config.disallowed_ports == [11000]
    assert config.python_version == platform.python_version()
    assert (config.port_range_low, config.skip_venv_if_present) == (15000, True)


def test_only_what_is_installed_is_pinned() -> None:
    pins = installed_pins()
    assert f"openai=={metadata.version('openai')}" in pins
    installed = {distribution.name for distribution in metadata.distributions()}
    assert any(pin.startswith("ray[default]==") for pin in pins) is ("ray" in installed)


def test_loading_imports_neither_ray_nor_openai_and_writes_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    code = (
        "import sys\n"
        "from nemo_gym.config.loading import load_config\n"
        "assert 'hydra' not in sys.modules\n"
        "load_config(['+a=1'], use_dotenv=False)\n"
        "print([name for name in ('ray', 'openai') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=empty)
    assert done.stdout.strip() == "[]"
    assert list(empty.iterdir()) == []


def test_loading_twice_gives_two_configs() -> None:
    first = load(a=1)
    first.a = 2
    assert load(a=1).a == 1


def test_a_completed_config_can_be_completed_again() -> None:
    config = load(sky=weather())
    again = config.copy()
    complete(again)
    assert again == config


def test_an_unset_url_names_the_server_that_needs_it_and_where_to_put_it(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(MODEL)))
    with pytest.raises(UnsetKeyError) as caught:
        load(f"config_paths=[{path}]", "policy_api_key=k")
    message = str(caught.value)
    assert (
        f"policy_model.responses_api_models.openai_model.openai_base_url (in {path}) is '${{policy_base_url}}'"
        in message
    )
    assert "'policy_base_url: <value>' in env.yaml" in message


def test_almost_servers_are_refused_with_everything_that_is_wrong(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        ConfigError, match=r"almost-server.*validation errors.*error_on_almost_servers=false"
    ) as caught:
        load(sky=weather(domain="x"), agent={"responses_api_agents": {"a": {"entrypoint": 5}}})
    assert "'sky'" in str(caught.value)
    assert "'agent'" in str(caught.value)
    assert caplog.records == []


def test_almost_servers_are_left_out_with_a_warning_if_that_is_wanted(caplog: pytest.LogCaptureFixture) -> None:
    config = load("error_on_almost_servers=false", sky=weather(domain="x"), land=weather())
    (record,) = caplog.records
    assert (record.name.partition(".")[0], record.levelno) == ("nemo_gym", logging.WARNING)
    assert "Configuration Warnings: Almost-Servers Detected" in record.getMessage()
    assert "Almost-Server Detected: 'sky'" in record.getMessage()
    assert "host" not in config.sky.resources_servers.weather
    assert len(config.disallowed_ports) == 2


def test_an_override_of_a_misspelt_server_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    load("my_wether.resources_servers.weather.verified=true", my_weather=weather())
    (record,) = caplog.records
    assert "'my_wether' is ignored" in record.getMessage()
    assert "Did you mean 'my_weather'?" in record.getMessage()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("port_range_low=x", "port_range_low: Input should be a valid integer.*found 'x'. .in the command line"),
        ("port_range_low=0", "greater than or equal to 1; found 0"),
        ("port_range_low=30000", "port_range_low is 30000, expected at most port_range_high, 20000"),
        ("error_on_almost_servers=flase", "error_on_almost_servers: Input should be a valid boolean.*found 'flase'"),
        ("default_host=${unset}", "'unset' not found: default_host"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(argument: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(argument)


def test_a_setting_that_is_null_counts_as_absent() -> None:
    assert load("port_range_low=null", "default_host=null").port_range_low == 10001


def test_the_default_host_is_that_of_all_servers() -> None:
    config = load("default_host=10.0.0.1", sky=weather())
    assert config.head_server.host == "10.0.0.1"
    assert config.sky.resources_servers.weather.host == "10.0.0.1"


def test_the_url_of_a_model_may_be_a_list() -> None:
    urls = ["http://a:1/v1", "http://b:2/v1"]
    config = load(
        **MODEL, policy_base_url=urls, policy_api_key="dummy_key", head_server={"host": "0.0.0.0", "port": 5}
    )
    assert config.policy_model.responses_api_models.openai_model.openai_base_url == urls


def test_a_dump_is_resolved_and_without_secrets() -> None:
    config = load(**MODEL, policy_base_url="http://me:pw@host/v1", policy_api_key="sk-abcdef", note="key: sk-abcdef")
    text = dump(config)
    shown = OmegaConf.create(text)
    assert "sk-abcdef" not in text
    assert "pw" not in text
    model = shown.policy_model.responses_api_models.openai_model
    assert (model.openai_base_url, model.openai_api_key) == ("http://****@host/v1", "****")
    assert shown.note == "key: ****"
    assert shown.head_server == config.head_server
    assert "sk-abcdef" in dump(config, masked=False)


def test_a_dump_names_what_cannot_be_resolved() -> None:
    with pytest.raises(UnsetKeyError, match=r"a\.b is '\$\{unset\}'"):
        dump(load("a.b=${unset}"))


FRAGMENTS = ["\\${a}", "\\${", "a", "1e3", "07", ": ", "#", "\n", "'", '"', "\\ ", "null", "-", "}"]
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=4).map("".join)
VALUES = st.recursive(
    TEXTS | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(values=st.dictionaries(TEXTS, VALUES, max_size=3))
def test_what_was_dumped_reads_back_the_same(values: dict[str, Any]) -> None:
    config = OmegaConf.create(values)
    copy = OmegaConf.create(dump(config, masked=False))
    assert isinstance(copy, DictConfig)
    assert resolve(copy) == resolve(config)


WEATHER = "resources_servers/example_simple_weather/configs/simple_weather.yaml"


def test_without_a_word_on_the_model_it_is_the_one_on_this_machine() -> None:
    config = load_config([f"config_paths=[{WEATHER}]"], use_dotenv=False)
    assert list(config.policy_model.responses_api_models) == ["local_model"]


@pytest.mark.parametrize("warnings", ["policy_base_url=http://x/v1", "policy_base_url=''"])
def test_with_a_word_on_the_model_its_config_must_be_named(warnings: str) -> None:
    with pytest.raises(ConfigError, match="policy_model"):
        load_config([f"config_paths=[{WEATHER}]", warnings], use_dotenv=False)


@pytest.mark.parametrize("given", ["policy_api_key=sk-1", "policy_model_name=gpt-4.1"])
def test_half_an_endpoint_is_not_replaced_by_the_model_of_this_machine(given: str) -> None:
    with pytest.raises(ConfigError, match=r"no policy_base_url.* 'policy_base_ulr'\?"):
        load_config([f"config_paths=[{WEATHER}]", given, "policy_base_ulr=http://x/v1"], use_dotenv=False)


def test_what_is_left_out_is_reported_once_when_the_local_model_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unfinished = {"resources_servers": {"weather": {"domain": "agent"}}}
    load_config([f"config_paths=[{WEATHER}]"], initial={"unfinished": unfinished}, use_dotenv=False)
    warnings = [message for message in caplog.messages if "'unfinished' is ignored" in message]
    assert len(warnings) == 1

"""`ng_bench` measures the real commands."""

from pathlib import Path

import orjson
import pytest

from nemo_gym.cli.capacity import BenchConfig, environment_of, points_of
from nemo_gym.errors import ConfigError
from tests.commands import ng

WEATHER = "resources_servers/example_simple_weather/configs/simple_weather.yaml"


def test_the_points_are_all_combinations() -> None:
    points = points_of(BenchConfig(in_flight=[1, 2], turns=[3], payload_bytes=[4, 5], rollouts=6))
    assert [(each.in_flight, each.turns, each.payload_bytes) for each in points] == [
        *((1, 3, 4), (2, 3, 4)),
        *((1, 3, 5), (2, 3, 5)),
    ]
    assert [each.rollouts for each in points_of(BenchConfig(in_flight=[1, 1024]))] == [100, 2048]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"in_flight": [0]}, "in_flight"),
        ({"in_flight": [100_000]}, "65536"),
        ({"turns": [0]}, "turns"),
        ({"latency": "slow"}, "is not a latency"),
        ({"faults": ["418"]}, "There is no fault 418"),
    ],
)
def test_a_wrong_load_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        points_of(BenchConfig.model_validate(options))


def test_the_agent_and_its_example_rows_are_found() -> None:
    environment = environment_of(BenchConfig())
    assert environment.agent_name == "simple_weather_simple_agent"
    assert environment.tool_arguments().keys() == {"get_weather"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"agent_name": "nobody"}, "simple_weather_simple_agent"),
        ({"config_paths": ["nowhere.yaml"]}, "nowhere.yaml"),
        ({"input_jsonl_fpath": "nowhere.jsonl"}, "nowhere.jsonl"),
    ],
)
def test_what_cannot_be_measured_is_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        environment_of(BenchConfig.model_validate(options))


@pytest.mark.slow
@pytest.mark.parametrize("through", ["false", "true"])
def test_rollouts_of_several_turns_with_faults_are_measured(through: str, tmp_path: Path) -> None:
    options_given = [
        "+in_flight=[20]",
        "+turns=[3]",
        "+payload_bytes=[2000]",
        "+latency=uniform:0:0.02",
        "+rollouts=60",
    ]
    done = ng(
        *("ng_bench", *options_given, "+fault_rate=0.05", "+faults=[503]"),
        *(f"+through_ng_run={through}", "+output_fpath=out.json"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "saturates first" in done.stdout
    [metrics] = orjson.loads((tmp_path / "out.json").read_bytes())
    assert metrics["scored"] == 60
    assert metrics["faults"] > 0
    assert metrics["most_in_flight"] > 1


@pytest.mark.slow
def test_sessions_are_measured(tmp_path: Path) -> None:
    options_given = ["+mode=sessions", "+sessions=[5,20]", "+steps=2", "+step_wait_s=0.01", "+output_fpath=out.json"]
    done = ng("ng_bench", *options_given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = orjson.loads((tmp_path / "out.json").read_bytes())
    assert [(each["sessions"], each["succeeded"]) for each in metrics] == [(5, 5), (20, 20)]

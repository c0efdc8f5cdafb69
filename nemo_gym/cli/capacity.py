"""Measure what an environment carries, with a simulated model endpoint."""

import contextlib
import itertools
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson
from pydantic import Field

from nemo_gym.cli.command import command
from nemo_gym.common.atomic_files import atomic_write, read_jsonl
from nemo_gym.common.paths import find
from nemo_gym.config.command_options import CommandConfig
from nemo_gym.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from nemo_gym.bench.measure import Environment, Measured, Point

MIN_ROLLOUTS = 100
MAX_IN_FLIGHT = 65_536


class BenchConfig(CommandConfig):
    """Measure how many rollouts of an environment this machine carries, and what saturates first.

    The real `ng_collect_rollouts` runs against a simulated model endpoint, once for each combination of `in_flight`,
    `turns` and `payload_bytes`. With nine points or more, a model of capacity is fitted to two thirds of them and
    checked against the others.

    Examples:

    ```bash
    ng_bench "+in_flight=[64,1024]" "+turns=[1,10]" +latency=lognormal:2:0.8
    ng_bench "+config_paths=[resources_servers/mcqa/configs/mcqa.yaml]" "+in_flight=[1024]" +fault_rate=0.02
    ng_bench +mode=sessions "+sessions=[128,2048]"
    ng_bench +mode=groups +latency=lognormal:1:0.8 "+turns=[4]" +steps=3
    ```
    """

    mode: Literal["rollouts", "sessions", "groups"] = "rollouts"
    """Measure rollouts; or sessions of an environment: each opens, makes steps that wait on the server, and ends; or
    how long a trainer waits for complete groups of eight, with several ways to wait less."""

    config_paths: list[str] = Field(
        default=["resources_servers/example_simple_weather/configs/simple_weather.yaml"], min_length=1
    )
    """The environment and its agent. The model is the simulated endpoint."""

    agent_name: str | None = None
    """The agent to run. Needed if the configuration has several."""

    input_jsonl_fpath: str | None = None
    """Rows, used again and again. By default the example rows of the agent."""

    in_flight: list[int] = Field(default=[1, 64, 1024], min_length=1)
    """Rollouts in flight."""

    turns: list[int] = Field(default=[1], min_length=1)
    """Model calls of a rollout. All but the last call a tool of the row."""

    payload_bytes: list[int] = Field(default=[1024], min_length=1)
    """Size of the text in each reply of the model."""

    prompt_bytes: int = Field(default=0, ge=0, le=2**26)
    """Pad the input of each row to this size."""

    latency: str = "constant:1"
    """Seconds that the model takes: constant:1, uniform:0.5:2, exponential:1 or lognormal:2:0.8 (median, sigma)."""

    fault_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of model calls that fail."""

    faults: list[str | int] = Field(default=[])
    """Kinds of failures: 429, 500, 503, garbage, cut, hang_up, stall. By default all except the last."""

    rollouts: int | None = Field(default=None, ge=1)
    """Rollouts of each point. By default twice as many as are in flight, and at least 100."""

    through_ng_run: bool = False
    """Let `ng_run` hold the servers, not the collector."""

    overrides: list[str] = Field(default=[])
    """More arguments for the measured command, such as "+num_workers=4"."""

    sessions: list[int] = Field(default=[128, 1024], min_length=1)
    """Sessions at once, with mode=sessions."""

    steps: int = Field(default=1, ge=1)
    """Steps of a session, with mode=sessions; or of the training, of which mode=groups shows the mean."""

    step_wait_s: float = Field(default=1.0, ge=0)
    """With mode=sessions: seconds that the server waits in a step."""

    groups: int = Field(default=64, ge=1)
    """Groups of a training step, with mode=groups."""

    nodes: int = Field(default=1, ge=1)
    """Estimate the capacity of this many nodes like this one."""

    output_fpath: str | None = None
    """Write all measurements to this file, as JSON."""


@command(BenchConfig)
def bench(options: BenchConfig) -> None:
    """Measure what an environment carries, with a simulated model endpoint."""
    try:
        import psutil  # noqa: F401 - what is used below
    except ImportError as error:
        raise MissingExtraError("ng_bench", "bench") from error
    measured = _BENCHES[options.mode](options)
    if options.output_fpath is not None:
        with atomic_write(Path(options.output_fpath)) as file:
            file.write(orjson.dumps(measured, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _bench_sessions(options: BenchConfig) -> list[dict[str, Any]]:
    from nemo_gym.bench.processes import Machine
    from nemo_gym.bench.report import about
    from nemo_gym.bench.sessions import measure_sessions, sessions_table

    if min(options.sessions) < 1:
        raise ConfigError(f"sessions is {options.sessions}; expected numbers of at least 1.")
    measured = measure_sessions(
        options.sessions, steps=options.steps, wait_s=options.step_wait_s, overrides=options.overrides
    )
    print(f"{about(Machine.here())}\n\n{sessions_table(measured)}")
    return [asdict(each) for each in measured]


def _bench_groups(options: BenchConfig) -> list[dict[str, Any]]:
    from nemo_gym.bench.endpoint import EndpointSpec, Latency
    from nemo_gym.bench.groups import groups_table, measure_groups
    from nemo_gym.bench.processes import Machine
    from nemo_gym.bench.report import about

    environment, latency = environment_of(options), str(Latency.parse(options.latency))
    spec = EndpointSpec(latency, options.turns[0], tool_arguments=environment.tool_arguments())
    measured = measure_groups(environment, spec, groups=options.groups, steps=options.steps)
    print(f"{about(Machine.here())}\n\n{groups_table(measured)}")
    return [asdict(each) for each in measured]


def _bench_rollouts(options: BenchConfig) -> list[dict[str, Any]]:
    from nemo_gym.bench.measure import Bench
    from nemo_gym.bench.processes import Machine
    from nemo_gym.bench.report import MIN_POINTS, about, capacity_table, shown

    points, machine, measured = points_of(options), Machine.here(), []
    bench = Bench(environment_of(options))
    for number, point in enumerate(points, 1):
        print(f"Measuring {number} of {len(points)}: {shown(point)}", file=sys.stderr)
        measured.append(bench.measure(point))
    print(f"{about(machine)}\n\n{capacity_table(measured, machine)}")
    if len(measured) >= MIN_POINTS:
        _print_model(measured, options)
    return [asdict(each) for each in measured]


_BENCHES = {"rollouts": _bench_rollouts, "sessions": _bench_sessions, "groups": _bench_groups}


def _print_model(measured: "list[Measured]", options: BenchConfig) -> None:
    from nemo_gym.bench.processes import Machine
    from nemo_gym.bench.report import CapacityModel, forecast_table, model_page

    model = CapacityModel.of(measured)
    print(f"\n{model_page(model)}\n\n{forecast_table(model, measured, Machine.here(), nodes=options.nodes)}")


def points_of(options: BenchConfig) -> "list[Point]":
    """Every combination of the parameters, checked."""
    from nemo_gym.bench.endpoint import FAULTS, Latency
    from nemo_gym.bench.measure import Point

    _check_range("in_flight", options.in_flight, 1, MAX_IN_FLIGHT)
    _check_range("turns", options.turns, 1, 1000)
    _check_range("payload_bytes", options.payload_bytes, 0, 2**26)
    faults = [str(name) for name in options.faults]
    unknown = sorted(set(faults) - set(FAULTS))
    if unknown:
        raise ConfigError(f"There is no fault {', '.join(unknown)}. Faults: {', '.join(FAULTS)}.")
    latency = str(Latency.parse(options.latency))
    return [
        Point(
            in_flight=in_flight,
            turns=turns,
            payload_bytes=payload,
            latency=latency,
            rollouts=options.rollouts or max(MIN_ROLLOUTS, 2 * in_flight),
            fault_rate=options.fault_rate,
            faults=faults,
        )
        for turns, payload, in_flight in itertools.product(options.turns, options.payload_bytes, options.in_flight)
    ]


def _check_range(name: str, values: list[int], low: int, high: int) -> None:
    if not all(low <= value <= high for value in values):
        raise ConfigError(f"{name} is {values}; expected numbers from {low} to {high}.")


def environment_of(options: BenchConfig) -> "Environment":
    """The agent and its rows."""
    from nemo_gym.bench.measure import MODEL_CONFIG, Environment, padded
    from nemo_gym.config.loading import load_config, server_instances

    paths = [str(find(path, what="config").resolve()) for path in options.config_paths]
    policy = {"policy_base_url": "http://127.0.0.1:1/v1", "policy_api_key": "none", "policy_model_name": "simulated"}
    config = load_config(
        initial={"config_paths": [*paths, MODEL_CONFIG], **policy}, use_dotenv=False, fill_ports=False
    )
    agents = {each.name: each for each in server_instances(config) if each.server_type == "responses_api_agents"}
    name = options.agent_name or next(iter(agents), "")
    if name not in agents or (options.agent_name is None and len(agents) > 1):
        raise ConfigError(f"Name the agent to measure with +agent_name=... Agents: {', '.join(agents) or 'none'}.")
    rows = _rows(options.input_jsonl_fpath or _example_rows(agents[name].config))
    return Environment(
        config_paths=paths,
        agent_name=name,
        rows=padded(rows, options.prompt_bytes),
        overrides=options.overrides,
        through_ng_run=options.through_ng_run,
    )


def _example_rows(agent: dict[str, Any]) -> str:
    datasets = sorted(agent.get("datasets") or (), key=lambda each: each.get("type") != "example")
    paths = [str(dataset["jsonl_fpath"]) for dataset in datasets if dataset.get("jsonl_fpath")]
    for path in paths:
        with contextlib.suppress(ConfigError):
            return str(find(path, what="dataset"))
    found = f"Its datasets are not here: {', '.join(paths)}." if paths else "It has no dataset."
    raise ConfigError(f"There are no rows for the agent. {found} Give some with +input_jsonl_fpath=<file>.")


def _rows(path: str) -> list[dict[str, Any]]:
    rows = read_jsonl(find(path, what="dataset"))
    if not rows or not all(isinstance(row, dict) and "responses_create_params" in row for row in rows):
        raise ConfigError(f"{path} has no rows with `responses_create_params`.")
    return rows

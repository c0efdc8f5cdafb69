"""The registry of runs: one JSON file for each output that collections of this user wrote, in a state folder.

What it says of a run comes from the manifest and the metrics beside the output. So a folder of rollouts from another
machine describes itself the same way, and a run whose output is gone is still known."""

import contextlib
import hashlib
import logging
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson
from pydantic import BaseModel, Field

from nemo_gym.common.atomic_files import write_json
from nemo_gym.common.paths import state_dir
from nemo_gym.config.keys import blocks_in
from nemo_gym.errors import ConfigError, GymError, SetupError
from nemo_gym.rollouts.config import TokenPrices
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.resume import MODEL_NAMES, Manifest, read_manifest
from nemo_gym.rollouts.store import metrics_path

logger = logging.getLogger(__name__)

RunState = Literal["running", "complete", "interrupted"]
ID_LENGTH = 8


class RunSummary(BaseModel):
    """What is known of a run without reading its rollouts."""

    id: str
    """The same for every run that wrote this output."""
    output: str
    state: RunState = "complete"
    environment: str = ""
    model: str = ""
    agent: str = ""
    dataset: str = ""
    commit: str | None = None
    """The commit that was checked out in the working directory."""
    config_hash: str | None = None
    """Of the dataset, options, configuration and code: runs with the same hash were made the same way."""
    command: list[str] = Field(default_factory=list)
    tags: list[str] = Field(default_factory=list)
    started_at: float | None = None
    seconds: float | None = None
    total: int | None = None
    scored: int | None = None
    failed: int | None = None
    mean: float | None = None
    interval_95: list[float] | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    cost: float | None = None
    """In US dollars, if the prices of tokens are known."""
    host: str | None = None
    pid: int | None = None
    process_start: str | None = None
    """Tells the process apart from a later one with the same number."""

    @property
    def name(self) -> str:
        """The environment or, if it is unknown, the file."""
        return self.environment or Path(self.output).name


def run_id(output: Path) -> str:
    """Return the id of the run that writes an output."""
    return hashlib.sha256(os.fsencode(output.absolute())).hexdigest()[:ID_LENGTH]


def registry_folder() -> Path:
    """Return the folder of the registry."""
    return state_dir() / "runs"


# What the files beside an output say


def describe_output(output: Path) -> RunSummary:
    """Describe the run of an output by its manifest and metrics. Without them only the file is known."""
    facts: dict[str, Any] = {"id": run_id(output), "output": str(output.absolute())}
    with contextlib.suppress(ConfigError, ValueError):  # the manifest cannot be read
        if (manifest := read_manifest(output)) is not None:
            facts = RunSummary(**facts, **_facts_of_manifest(manifest)).model_dump()
    with contextlib.suppress(OSError, ValueError, AttributeError):  # nor the metrics
        facts |= _facts_of_metrics(orjson.loads(metrics_path(output).read_bytes()))
    return RunSummary(**facts)


class Players(NamedTuple):
    """Who took part in a run."""

    environment: str
    model: str
    agent: str


def players_of(servers: Mapping[str, Any], agent_name: str | None) -> Players:
    """Return the names of the environment, the model and the agent; of several, all of them."""
    blocks = {block.name: block for block in blocks_in(servers)}
    agents = [block for block in blocks.values() if block.server_type == "responses_api_agents"]
    agents = [block for block in agents if agent_name in (None, block.name)]

    def referenced(key: str, server_type: str) -> list[str]:
        references = [block.config.get(key) for block in agents if isinstance(block.config, Mapping)]
        names = [each["name"] for each in references if isinstance(each, Mapping) and each.get("name") in blocks]
        return names or [block.name for block in blocks.values() if block.server_type == server_type]

    environments = [
        name.removesuffix("_resources_server") for name in referenced("resources_server", "resources_servers")
    ]
    models = [
        _model_name(blocks[name].config, blocks[name].implementation)
        for name in referenced("model_server", "responses_api_models")
    ]
    names = [agent_name] if agent_name is not None else [block.name for block in agents]
    return Players(*(", ".join(dict.fromkeys(each)) for each in (environments, models, names)))


def _model_name(config: Any, implementation: str) -> str:
    names = (config.get(key) for key in MODEL_NAMES) if isinstance(config, Mapping) else ()
    return next((str(name) for name in names if name and isinstance(name, str)), implementation)


def _facts_of_manifest(manifest: Manifest) -> dict[str, Any]:
    return {
        **players_of(manifest.servers, manifest.options.get("agent_name"))._asdict(),
        "dataset": manifest.input.path,
        "commit": manifest.commit,
        "config_hash": manifest.digest(),
        "command": manifest.command,
        "started_at": manifest.created_at or None,
    }


METRICS = {"scored", "failed", "mean", "interval_95", "input_tokens", "output_tokens"}


def _facts_of_metrics(summary: Mapping[str, Any]) -> dict[str, Any]:
    reward, tokens = summary.get("reward") or {}, summary.get("tokens") or {}
    totals = {name: (tokens.get(name) or {}).get("total") for name in ("input", "output")}
    found = RunSummary(
        id="",
        output="",
        scored=summary.get("scored"),
        failed=summary.get("failed"),
        mean=reward.get("mean"),
        interval_95=reward.get("interval_95"),
        input_tokens=totals["input"],
        output_tokens=totals["output"],
    )
    return found.model_dump(include=METRICS)


# The registry


@contextlib.contextmanager
def registered(
    output: Path, metrics: RunningMetrics, *, total: int, tags: Iterable[str], token_prices: TokenPrices
) -> Iterator[None]:
    """Register a run while the block makes its rollouts, and store its metrics at the end. A registry that cannot be
    written stops no run. A run whose servers did not start is not registered."""
    known, started = find_entry(run_id(output)), time.monotonic()
    found = describe_output(output).model_copy(
        update={
            "state": "running",
            "tags": list(dict.fromkeys([*(known.tags if known else ()), *tags])),
            "total": total,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "process_start": _process_start(os.getpid()),
        }
    )
    before = (known.seconds if known else None) or 0.0
    _store(found)
    state: RunState = "interrupted"
    try:
        yield
        state = "complete"
    except SetupError:
        if not output.exists():
            forget(found.id)
        raise
    finally:
        facts = _facts_of_metrics(metrics.summary())
        facts |= {"state": state, "seconds": round(before + time.monotonic() - started, 3)}
        facts["cost"] = _cost(facts, token_prices)
        if (registry_folder() / f"{found.id}.json").exists():
            _store(found.model_copy(update=facts))


def _cost(facts: Mapping[str, Any], prices: TokenPrices) -> float | None:
    """Return the cost of the tokens of the scored rollouts; None if prices or tokens are unknown."""
    costs = [price * facts[f"{name}_tokens"] for name, price in prices.items() if facts[f"{name}_tokens"] is not None]
    return sum(costs) / 1e6 if costs else None


def _store(run: RunSummary) -> None:
    try:
        registry_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(registry_folder() / f"{run.id}.json", run.model_dump(mode="json"))
    except (OSError, GymError) as error:
        logger.info("the run is not registered: %s", error)


def registered_runs() -> list[RunSummary]:
    """Return all runs in the registry, the newest first."""
    found = [run for place in registry_folder().glob("*.json") if (run := _read(place)) is not None]
    return sorted(found, key=lambda run: -(run.started_at or 0.0))


def find_entry(identifier: str) -> RunSummary | None:
    """Return a run of the registry by its id. None if there is none."""
    return _read(registry_folder() / f"{identifier}.json") if identifier.isalnum() else None


def find_output(path: str) -> Path | None:
    """Return the output of a run that is named by its id, or by the start of it. None if there is not exactly one."""
    found = [run for run in registered_runs() if path and path.isalnum() and run.id.startswith(path)]
    return Path(found[0].output) if len(found) == 1 else None


def set_tags(identifier: str, tags: Iterable[str]) -> RunSummary:
    """Replace the tags of a registered run."""
    run = find_entry(identifier)
    if run is None:
        raise ConfigError(f"There is no run '{identifier}' in the registry. `ng runs` lists them.")
    changed = run.model_copy(update={"tags": list(dict.fromkeys(filter(None, map(str.strip, tags))))})
    _store(changed)
    return changed


def forget(identifier: str) -> None:
    """Remove a run from the registry. Its files stay."""
    (registry_folder() / f"{identifier}.json").unlink(missing_ok=True)


def _read(place: Path) -> RunSummary | None:
    try:
        run = RunSummary.model_validate_json(place.read_bytes())
    except (OSError, ValueError):
        return None
    if run.state == "running" and run.host == socket.gethostname() and not _is_process(run):
        return run.model_copy(update={"state": "interrupted"})
    return run


def _is_process(run: RunSummary) -> bool:
    """True if the process that wrote the entry still runs."""
    if run.pid is None:
        return False
    try:
        os.kill(run.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return run.process_start == _process_start(run.pid)


def _process_start(pid: int) -> str | None:
    """Return when a process started, in the clock ticks of Linux. None on other systems."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None

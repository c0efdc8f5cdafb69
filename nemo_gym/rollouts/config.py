"""The options of a collection."""

import os
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from nemo_gym.config.types import CommandConfig, NumWorkers
from nemo_gym.errors import ConfigError

WEEK_S = 7 * 86400.0
MIN_PARALLEL = 8
MAX_PARALLEL = 4096
"""The default bounds of adaptive concurrency."""

MAX_ATTEMPTS = 3


def _get_max_rollout_attempts() -> int:
    """Return the default number of attempts, which an environment variable can set."""
    return int(os.environ.get("NEMO_GYM_MAX_ROLLOUT_ATTEMPTS", MAX_ATTEMPTS))


OTHER_AGENTS = "_default"

TokenPrices = dict[Literal["input", "output"], float]
"""US dollars per million tokens."""


def _checked_repeats(given: int | dict[str, int]) -> int | dict[str, int]:
    numbers = given.values() if isinstance(given, dict) else (given,)
    if not numbers or min(numbers) < 1:
        raise ValueError("expected a number from 1, or such a number for each agent")
    return given


class RolloutCollectionConfig(CommandConfig):
    """Run an agent on every row of a dataset and write the scored rollouts.

    With config_paths, this command starts the servers itself. With `+use_running_servers=true` it uses those of the
    running `ng_run` instead, if they have the same configuration. Without config_paths, it always uses them. After an
    interruption, run the same command again to complete what is missing.
    """

    SHORT_OPTIONS = {"n": "limit", "o": "output_jsonl_fpath"}  # noqa: RUF012 -- a ClassVar of the base

    config_paths: list[str] | None = None
    """YAML files that define the servers to start. If not set, the servers of the running `ng_run` are used."""

    agent_name: str | None = None
    """Name of the agent in the config. If not set, every row must name its agent in `agent_ref`."""

    agent_map: dict[str, str] = Field(default_factory=dict)
    """Other agents for rows, by the agent or `task_source` that a row names, and `_default` for all others."""

    fan_out: dict[str, list[str]] = Field(default_factory=dict)
    """Several agents for rows, by the same names. Each gets a copy of the row."""

    environment_routing_mode: Literal["agent", "legacy", "taskset"] = "agent"
    """Accepted for configurations of the public NeMo Gym. The two options below are enough here."""

    environment_server_name: str | None = None
    """The environment server that plays all rows, instead of the one in front of each row's agent."""

    environment_server_routes: dict[str, str] = Field(default_factory=dict)
    """The environment server of each task set, for rows with `task_id` and `task_input`."""

    input_jsonl_fpath: str
    """The dataset: one JSON object per line, with `responses_create_params` and the fields its environment needs."""

    output_jsonl_fpath: str
    """Scored rollouts are appended to this file. Failed attempts go to `<name>_failures.jsonl` beside it."""

    limit: int | None = Field(default=None, ge=0)
    """Use only the first N rows of the dataset. 0 means all."""

    num_repeats: Annotated[
        int | dict[str, int],
        BeforeValidator(lambda given: 1 if given is None else given),
        AfterValidator(_checked_repeats),
    ] = 1
    """Number of rollouts per row. Repeats of a row are consecutive: abc becomes aabbcc. Or one number for each agent,
    such as +num_repeats.my_agent=4, and `_default` for all others."""

    num_samples_in_parallel: int | None = Field(default=None, ge=1)
    """Number of rollouts in flight. By default it adapts to the endpoint."""

    num_workers: NumWorkers = None
    """Number of worker processes that make the rollouts, if this command starts the servers itself. `auto`: one per
    core. By default this process makes them."""

    max_samples_in_parallel: int = Field(default=MAX_PARALLEL, ge=1)
    """Upper bound for adaptive concurrency. Each rollout in flight needs an open file."""

    responses_create_params: dict[str, Any] = Field(default_factory=dict)
    """Fields that override those of every row, such as +responses_create_params.temperature=0.7."""

    prompt_config: str | None = None
    """A YAML file with `user` and `system` templates, filled in with each row's fields. It becomes the row's input."""

    disable_aggregation: bool = False
    """Do not ask environments for metrics of their own when all rollouts are made."""

    split: str | None = None
    """Without an input: collect with the agent's dataset of this type."""

    seed_per_repeat: int | None = None
    """Base sampling seed. Repeat i is sent with `metadata.seed` set to this number plus i."""

    num_repeats_add_seed: bool = False
    """Send repeat i with the sampling seed i, in `metadata.extra_body`."""

    materialize_inputs: bool = False
    """Write the rows as they are sent to `<name>_materialized_inputs.jsonl`, before the first request."""

    max_attempts: int = Field(default_factory=_get_max_rollout_attempts, ge=1)
    """Maximum number of attempts per rollout if the failure is retryable."""

    rollout_timeout_s: float = Field(default=3600.0, gt=0)
    """Time limit for one attempt at a rollout, in seconds."""

    run_timeout_s: float = Field(default=WEEK_S, gt=0)
    """Time limit for the whole command, in seconds. Run it again to complete what is missing."""

    tolerated_failures: int = Field(default=0, ge=0)
    """Exit with code 0 if at most this many rollouts have no result."""

    group_output: bool = False
    """Write the repeats of a row together, when all of them are complete."""

    record: str | None = None
    """Record all calls of models, judges and tools, with requests and replies, in this new folder. If this command is
    killed and run again, it goes on with the recording, and with unfinished rollouts as with +journal."""

    replay: str | None = None
    """Replay a folder written with +record: models and judges answer from it; the first difference is an error."""

    journal: bool = False
    """Write every call of a rollout to `<name>_journal.jsonl` as it completes. If a worker dies, or this command is
    killed and run again, unfinished rollouts go on with the replies in it: no completed model call is made twice."""

    tokens_output: str | None = None
    """Write token ids, log-probs and policy versions of scored rollouts to this Arrow file, one row for each segment,
    and only text to the output. Needs nemo-gym[tokens]."""

    log_to: str | None = None
    """Log metrics while rollouts are made: `tensorboard:DIR`, `wandb:PROJECT` or `mlflow:URI`. Needs the extra of that
    name, such as nemo-gym[tensorboard]."""

    tags: Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)] = Field(
        default_factory=list
    )
    """Words to find this run by in `ng runs` and the viewer."""

    token_prices: TokenPrices = Field(default_factory=dict)
    """US dollars per million tokens, such as {input: 2.0, output: 8.0}. `ng runs` shows the cost of each run."""

    resume: Literal["ask", "continue", "restart"] = "ask"
    """If the output contains rollouts from a different input or configuration: `ask` stops with an error, `continue`
    keeps them, `restart` moves them aside."""

    @property
    def max_repeats(self) -> int:
        """The largest number of rollouts that a row may get."""
        return max(self.num_repeats.values()) if isinstance(self.num_repeats, dict) else self.num_repeats

    def repeats_of(self, agent: str) -> int:
        """Return the number of rollouts for a row of this agent."""
        if not isinstance(self.num_repeats, dict):
            return self.num_repeats
        found = self.num_repeats.get(agent, self.num_repeats.get(OTHER_AGENTS))
        if found is None:
            named = ", ".join(self.num_repeats)
            raise ConfigError(f"num_repeats has no number for '{agent}', and no '{OTHER_AGENTS}'. It names: {named}.")
        return found

    @property
    def routes_rows(self) -> bool:
        """True if rows may go to other servers than the agents that they name."""
        server = self.environment_server_name
        return bool(self.agent_map or self.fan_out or server or self.environment_server_routes)

    @property
    def changes_rows(self) -> bool:
        """True if rows are not sent as they are."""
        added = self.prompt_config, self.seed_per_repeat, self.num_repeats_add_seed or None
        return bool(self.responses_create_params) or any(each is not None for each in added)

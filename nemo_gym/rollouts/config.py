"""The options of a collection."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from nemo_gym.config.types import CommandConfig
from nemo_gym.rollouts.stragglers import Action

WEEK_S = 7 * 86400.0
MIN_PARALLEL = 8
MAX_PARALLEL = 4096
"""The default bounds of adaptive concurrency."""


class RolloutCollectionConfig(CommandConfig):
    """Run an agent on every row of a dataset and write the scored rollouts.

    With config_paths this command starts the servers itself, unless `ng_run` is running with the same configuration;
    without, it uses the servers of a running `ng_run`. After an interruption, run the same command again: it makes
    only the missing rollouts.
    """

    agent_name: str | None = None
    """The agent, by its name in the config. Without it every row must name one in its `agent_ref`."""

    input_jsonl_fpath: str
    """The dataset: one JSON object per line, with `responses_create_params` and the fields its environment needs."""

    output_jsonl_fpath: str
    """The file to which scored rollouts are appended. Failed attempts go to `<name>_failures.jsonl` beside it."""

    limit: int | None = Field(default=None, ge=0)
    """Use only this many rows from the start of the dataset. 0 means all."""

    num_repeats: Annotated[int, BeforeValidator(lambda given: 1 if given is None else given)] = Field(default=1, ge=1)
    """Rollouts per row: abc becomes aabbcc."""

    num_samples_in_parallel: int | None = Field(default=None, ge=1)
    """Rollouts in flight at once. By default the number adapts to what the endpoint takes without throttling."""

    max_samples_in_parallel: int = Field(default=MAX_PARALLEL, ge=1)
    """Upper bound for adaptive concurrency. Each rollout in flight costs open files."""

    responses_create_params: dict[str, Any] = Field(default_factory=dict)
    """Fields that replace those of every row, such as +responses_create_params.temperature=0.7"""

    seed_per_repeat: int | None = None
    """Give each repeat a sampling seed: this number plus the index of the repeat, as `metadata.seed`."""

    max_attempts: int = Field(default=3, ge=1)
    """Attempts per rollout. A failure that would occur again is not retried."""

    rollout_timeout_s: float = Field(default=3600.0, gt=0)
    """Time limit for one attempt at a rollout, all its steps together."""

    run_timeout_s: float = Field(default=WEEK_S, gt=0)
    """Time limit for the whole command. Run it again to make the missing rollouts."""

    tolerated_failures: int = Field(default=0, ge=0)
    """Exit with code 0 even if this many rollouts have no result."""

    straggler_percentile: float | None = Field(default=None, gt=0, lt=100)
    """A rollout that takes longer than this percentage of the others is a straggler."""

    straggler_action: Action = "hedge"
    """hedge: run a straggler a second time and take whichever scores first. give_up: end it without a result."""

    group_output: bool = False
    """Write the repeats of a row together, when all of them have ended."""

    record: str | None = None
    """A new folder in which to record all requests to models, judges and tools, and their replies."""

    replay: str | None = None
    """A folder written with +record: models and judges reply from it, and the first difference is an error."""

    resume: Literal["ask", "continue", "restart"] = "ask"
    """What to do if the output contains rollouts from a different input or configuration."""

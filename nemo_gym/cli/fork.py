"""Run a stored rollout again from one of its steps."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from pydantic import Field

from nemo_gym.cli.command import config_command
from nemo_gym.common import event_loop
from nemo_gym.common.paths import find
from nemo_gym.common.words import count_of
from nemo_gym.config.types import CommandConfig
from nemo_gym.rollouts.types import Outcome
from nemo_gym.runtime.connect import connect_servers
from nemo_gym.training.stored_rollouts import StoredRollout, fork, stored_rollout


class ForkConfig(CommandConfig):
    """Run a stored rollout again from one of its steps, also with another model or prompt.

    The rollout must have been collected with `+journal=true`. Its model calls before the step are not made again, and
    its environment is brought back there; where that fails, the rollout has no result.

    Examples:

    ```bash
    ng_fork "+config_paths=[my_config.yaml]" +rollouts_jsonl_fpath=rollouts.jsonl +row=3 +step=2 +n=8 \\
        +output_jsonl_fpath=forks.jsonl
    ng_fork "+config_paths=[my_config.yaml]" +rollouts_jsonl_fpath=rollouts.jsonl +row=3 +step=2 \\
        +output_jsonl_fpath=forks.jsonl '+responses_create_params={instructions: "Check your result."}'
    ```
    """

    rollouts_jsonl_fpath: str
    """Scored rollouts, with their journal and manifest beside them."""

    row: int = Field(ge=0)
    """The line of the rollout in the file, counted from 0, as the viewer numbers them."""

    step: int = Field(default=0, ge=0)
    """Go on before this model call, counted from 0."""

    n: int = Field(default=1, ge=1)
    """How many rollouts to make from there."""

    responses_create_params: dict[str, Any] = Field(default_factory=dict)
    """Fields that override those of the row, such as another prompt. The replies before the step stay."""

    output_jsonl_fpath: str
    """New rollouts are appended to this file, failed ones included."""


@config_command(ForkConfig)
def fork_rollout(options: ForkConfig, config: DictConfig) -> int:
    """Run a stored rollout again from one of its steps."""
    rollout = stored_rollout(find(options.rollouts_jsonl_fpath, what="rollouts file"), options.row)
    outcomes = event_loop.run(_fork(options, rollout, config))
    output = Path(options.output_jsonl_fpath)
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("ab") as file:
        file.writelines(outcome.line() for outcome in outcomes)
    failed = sum(outcome.error is not None for outcome in outcomes)
    print(f"{count_of(options.n, 'rollout')} in {options.output_jsonl_fpath}, {failed} without a result")
    return int(failed > 0)


async def _fork(options: ForkConfig, rollout: StoredRollout, config: DictConfig) -> list[Outcome]:
    async with connect_servers(config) as client:
        request = options.responses_create_params
        return await fork(client, rollout, step=options.step, n=options.n, responses_create_params=request)

"""The one table of commands. To add one, write its function, add a line here, and add its two scripts to
pyproject.toml (a test compares the two). Importing this module imports none of the commands."""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from nemo_gym.common.interrupts import INTERRUPTED
from nemo_gym.common.paths import nearest
from nemo_gym.errors import ConfigError


class Command(NamedTuple):
    """One command: `ng <name>`, `ng_<name>` and `nemo_gym_<name>`."""

    name: str
    summary: str

    target: str
    """The function that implements it, as 'module:function' below `nemo_gym.cli`."""

    def load(self) -> Callable[[], None]:
        """Import the function that implements it."""
        module, _, name = self.target.partition(":")
        with exit_if_interrupted():
            function: Callable[[], None] = getattr(importlib.import_module(f"nemo_gym.cli.{module}"), name)
        return function

    @property
    def function(self) -> str:
        """Its name in `nemo_gym.cli`."""
        return self.target.rpartition(":")[2]


GROUPS: dict[str, tuple[Command, ...]] = {
    "Evaluate and collect": (
        Command("eval", "Evaluate a model in an environment, by its name.", "evaluate:evaluate_model"),
        Command("list", "List environments, agents, models and datasets.", "catalog:list_all"),
        Command(
            "collect_rollouts", "Run an agent on a dataset and write scored rollouts.", "collect:collect_rollouts"
        ),
        Command("prepare_benchmark", "Write the rows of benchmarks.", "data:prepare_benchmark"),
    ),
    "Look at results": (
        Command("runs", "List your runs: environment, model, mean, failures, cost.", "view:runs"),
        Command("viewer", "Look at rollouts and datasets in a browser or the terminal.", "view:viewer"),
        Command("compare", "Compare two runs on the same tasks.", "analyze:compare_runs"),
        Command("profile", "Compute how hard each row of a dataset is.", "analyze:profile"),
        Command("reward_profile", "Compute statistics of rollouts by task and agent.", "analyze:reward_profile"),
        Command("aggregate_rollouts", "Compute an environment's own metrics.", "analyze:aggregate_rollouts"),
        Command("reverify", "Score stored rollouts again and show changed rewards.", "analyze:reverify"),
        Command("fork", "Run a stored rollout again from one of its steps.", "fork:fork_rollout"),
        Command("export", "Convert scored rollouts to training data.", "analyze:export"),
        Command("check_rollouts", "Check stored rollouts for failed calls and empty turns.", "analyze:check_rollouts"),
        Command("check_tokens", "Check that the tokens of each turn extend those before.", "analyze:check_tokens"),
    ),
    "Environments and data": (
        Command("init_resources_server", "Create a new environment.", "environments:init_resources_server"),
        Command("init_agent", "Create a new agent.", "environments:init_agent"),
        Command("test", "Run the tests of one server folder.", "environments:test"),
        Command("test_all", "Run the tests of all server folders.", "environments:test_all"),
        Command("check_verifier", "Measure how often verifiers are wrong and can be cheated.", "trust:check_verifier"),
        Command("check_judge", "Measure a judge on labelled examples.", "judge:check_judge"),
        Command("check_compat", "Check a folder written for the public package.", "environments:check_compat"),
        Command("prepare_data", "Check, measure and collate datasets for training.", "data:prepare_data"),
        Command("import", "Convert another dataset to rows.", "data:import_dataset"),
        Command("generate_data", "Generate training data from a seed.", "data:generate_data"),
        Command("materialize_prompts", "Fill in a prompt for every row.", "data:materialize_prompts"),
        Command("update_readme", "Update the README's tables of environments.", "data:update_readme"),
        Command("upload_dataset_to_hf", "Upload a dataset to Hugging Face.", "data:upload_dataset_to_hf"),
        Command("download_dataset_from_hf", "Download a dataset from Hugging Face.", "data:download_dataset_from_hf"),
        Command("gitlab_to_hf_dataset", "Move a dataset from GitLab to Hugging Face.", "data:gitlab_to_hf_dataset"),
        Command("upload_dataset_to_gitlab", "Upload a dataset to GitLab.", "data:upload_dataset_to_gitlab"),
        Command(
            "download_dataset_from_gitlab", "Download a dataset from GitLab.", "data:download_dataset_from_gitlab"
        ),
        Command("delete_dataset_from_gitlab", "Delete a dataset from GitLab.", "data:delete_dataset_from_gitlab"),
    ),
    "Servers and scale": (
        Command("run", "Start the servers of a configuration and keep them running.", "servers:run"),
        Command("status", "Show the running servers and their health.", "servers:status"),
        Command("stop", "Stop a run from another terminal.", "servers:stop"),
        Command("worker", "Start a worker on this machine that joins a run.", "servers:worker"),
        Command("bench", "Measure what an environment carries, and what saturates first.", "capacity:bench"),
    ),
    "Set up": (
        Command("doctor", "Show which sandbox works on this machine, and how to get a better one.", "info:doctor"),
        Command("dump_config", "Print the merged configuration.", "info:dump_config"),
        Command("pip_list", "List the packages that a server folder runs with.", "info:pip_list"),
        Command("version", "Show the versions of NeMo Gym and its dependencies.", "info:version"),
        Command("completion", "Print a shell completion script.", "app:completion"),
        Command("help", "List the commands, or show the parameters of one.", "app:display_help"),
        Command("dev_test", "Run the tests of NeMo Gym itself.", "environments:dev_test"),
    ),
}
"""The commands, by what people do with them."""
COMMANDS = {each.name: each for group in GROUPS.values() for each in group}
ALIASES = {"view": "viewer", "trust": "check_verifier"}
"""Short names for `ng`."""


@contextlib.contextmanager
def exit_if_interrupted() -> Iterator[None]:
    """Ctrl+C while the modules of a command are imported ends the process without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        raise SystemExit(INTERRUPTED) from None


def find_command(name: str) -> Command:
    """The command of that name, written with underscores or with dashes."""
    found = COMMANDS.get(ALIASES.get(name, name).replace("-", "_"))
    if found is None:
        raise ConfigError(f"There is no command '{name}'.{nearest(name, COMMANDS)} `ng help` lists them all.")
    return found

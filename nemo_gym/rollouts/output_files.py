"""The files of a collection: the output a user names, and the files beside it. Every name is made here."""

from datetime import datetime
from functools import partial
from pathlib import Path

from nemo_gym.errors import ConfigError

SPECIAL_FOLDERS = (Path("/dev"), Path("/proc"))


def sibling_path(output: str | Path, word: str, suffix: str) -> Path:
    """The file beside an output that has `word` in its name. Outputs that differ only in their suffix share none."""
    output = Path(output)
    if output.suffix == ".jsonl":
        return output.with_name(f"{output.stem}_{word}{suffix}")
    return output.with_name(f"{output.name}.{word}{suffix}")


failures_path = failures_path_for = partial(sibling_path, word="failures", suffix=".jsonl")
manifest_path = partial(sibling_path, word="manifest", suffix=".json")
"""The input and configuration that the rollouts were made with."""
metrics_path = partial(sibling_path, word="metrics", suffix=".json")
plots_path = partial(sibling_path, word="plots", suffix=".svg")
aggregate_metrics_path = partial(sibling_path, word="aggregate_metrics", suffix=".json")
"""The metrics that environments compute themselves."""
materialized_inputs_path = partial(sibling_path, word="materialized_inputs", suffix=".jsonl")
"""The rows as they were sent."""
collated_inputs_path = partial(sibling_path, word="collated_inputs", suffix=".jsonl")
"""The rows of several datasets, or rows with skills."""
journal_path = partial(sibling_path, word="journal", suffix=".jsonl")
"""The replies of models, to resume inside a rollout."""
export_path = partial(sibling_path, word="export", suffix=".json")
"""What an export used and dropped."""


def scored_path(failures: Path) -> Path | None:
    """The output that a file of failures belongs to, if its name is that of one."""
    name = failures.name.removesuffix("_failures.jsonl")
    return None if name == failures.name else failures.with_name(f"{name}.jsonl")


def all_paths(output: Path) -> tuple[Path, ...]:
    """Everything that a collection writes."""
    metrics = metrics_path(output), aggregate_metrics_path(output)
    inputs = manifest_path(output), materialized_inputs_path(output)
    return output, failures_path(output), journal_path(output), *inputs, *metrics


def check_paths(output: Path, *, dataset: Path) -> None:
    """Refuse to write into the dataset, or into anything but regular files: records are read again on a resume."""
    if any(output.absolute().is_relative_to(folder) for folder in SPECIAL_FOLDERS):
        raise ConfigError(f"{output} is not a regular file. Choose another output_jsonl_fpath.")
    for path in all_paths(output):
        if path.exists() and not path.is_file():
            what = "a directory" if path.is_dir() else "not a regular file"
            raise ConfigError(f"{path}, which is to be written, is {what}. Choose another output_jsonl_fpath.")
        if path.exists() and path.samefile(dataset):
            raise ConfigError(f"{path}, which is to be written, is the dataset. Choose another output_jsonl_fpath.")
        if path != output and manifest_path(path).exists():
            raise ConfigError(
                f"{path}, which is to be written, is the output of another collection. Choose another "
                "output_jsonl_fpath."
            )


def archive_paths(output: Path) -> list[tuple[Path, Path]]:
    """The existing files of an earlier run, each with a name under which it can be kept."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S-%f")
    existing = (path for path in all_paths(output) if path.exists())
    return [(path, path.with_name(f"{path.stem}.{stamp}{path.suffix}")) for path in existing]

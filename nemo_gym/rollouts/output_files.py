"""The files of a collection: the output a user names, and the files beside it. Every name is made here."""

import itertools
import time
from pathlib import Path

from nemo_gym.errors import ConfigError

SPECIAL_FOLDERS = (Path("/dev"), Path("/proc"))


def sibling_path(output: Path, word: str, suffix: str) -> Path:
    """The file beside an output that has `word` in its name. Outputs that differ only in their suffix share none."""
    if output.suffix == ".jsonl":
        return output.with_name(f"{output.stem}_{word}{suffix}")
    return output.with_name(f"{output.name}.{word}{suffix}")


def failures_path(output: Path) -> Path:
    """Failed attempts."""
    return sibling_path(output, "failures", ".jsonl")


def failures_path_for(output: str | Path) -> Path:
    """The same for a path given as a text."""
    return failures_path(Path(output))


def manifest_path(output: Path) -> Path:
    """The input and configuration that the rollouts were made with."""
    return sibling_path(output, "manifest", ".json")


def metrics_path(output: Path) -> Path:
    """Averages, estimates and counts."""
    return sibling_path(output, "metrics", ".json")


def plots_path(output: Path) -> Path:
    """The plots of a profile."""
    return sibling_path(output, "plots", ".svg")


def aggregate_metrics_path(output: Path) -> Path:
    """The figures that environments compute themselves."""
    return sibling_path(output, "aggregate_metrics", ".json")


def materialized_inputs_path(output: Path) -> Path:
    """The rows as they were sent."""
    return sibling_path(output, "materialized_inputs", ".jsonl")


def collated_inputs_path(output: Path) -> Path:
    """The rows of several datasets, or rows with skills."""
    return sibling_path(output, "collated_inputs", ".jsonl")


def journal_path(output: Path) -> Path:
    """The replies of models, to resume inside a rollout."""
    return sibling_path(output, "journal", ".jsonl")


def export_path(output: Path) -> Path:
    """What an export used and dropped."""
    return sibling_path(output, "export", ".json")


def scored_path(failures: Path) -> Path | None:
    """The output that a file of failures belongs to, if its name is that of one."""
    name = failures.name.removesuffix("_failures.jsonl")
    return None if name == failures.name else failures.with_name(f"{name}.jsonl")


def all_paths(output: Path) -> tuple[Path, ...]:
    """Everything that a collection writes."""
    figures = metrics_path(output), aggregate_metrics_path(output)
    inputs = manifest_path(output), materialized_inputs_path(output)
    return output, failures_path(output), journal_path(output), *inputs, *figures


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


def archive_paths(output: Path) -> list[tuple[Path, Path]]:
    """The existing files of an earlier run, each with a free name under which it can be kept."""
    files = [path for path in all_paths(output) if path.exists()]
    stamp = time.strftime("%Y%m%d-%H%M%S")
    endings = (f".{stamp}{number}" for number in itertools.chain([""], map("-{}".format, itertools.count(2))))
    ending = next(ending for ending in endings if not any(_with_ending(path, ending).exists() for path in files))
    return [(path, _with_ending(path, ending)) for path in files]


def _with_ending(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.stem}{ending}{path.suffix}")

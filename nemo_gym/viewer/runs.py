"""Find runs: in the registry by words, and in folders by their files."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from nemo_gym.rollouts.registry import RunSummary, describe_output, find_entry, run_id


def matching(runs: Iterable[RunSummary], words: Iterable[str]) -> Iterator[RunSummary]:
    """Yield the runs that have every word: in the environment, model, agent, dataset, output, commit, state, a tag or
    the id. `model:gpt` looks in one of these only."""
    asked = [word.lower() for word in words]
    for run in runs:
        texts = {**run.model_dump(include=SEARCHED), "tag": " ".join(run.tags)}
        lowered = {name: str(text or "").lower() for name, text in texts.items()}
        if all(_has(lowered, word) for word in asked):
            yield run


SEARCHED = {"id", "environment", "model", "agent", "dataset", "output", "commit", "config_hash", "state"}


def _has(texts: Mapping[str, str], word: str) -> bool:
    name, colon, text = word.partition(":")
    return text in texts[name] if colon and name in texts else any(word in each for each in texts.values())


BESIDE_OUTPUTS = ("_failures", "_journal", "_materialized_inputs", "_collated_inputs", "_routed_inputs")
"""Suffixes of the files that a collection writes beside its rollouts."""
ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst")
MAX_OUTPUTS = 2000


def outputs_below(folder: Path) -> list[Path]:
    """Return the files of rollouts in a folder and all below it, the newest first."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(parent, name) for name in names if _is_output(name)]
    return sorted(filter(Path.is_file, found), key=lambda file: -file.stat().st_mtime)[:MAX_OUTPUTS]


def _is_output(name: str) -> bool:
    stem = next((name.removesuffix(ending) for ending in ENDINGS if name.endswith(ending)), None)
    return stem is not None and not stem.endswith(BESIDE_OUTPUTS) and not name.startswith(".")


def runs_below(folder: Path) -> list[RunSummary]:
    """Describe the outputs in a folder and below it: by the registry or, if it does not know them, by their files."""
    return [_known_or_described(output) for output in outputs_below(folder)]


def _known_or_described(output: Path) -> RunSummary:
    found = find_entry(run_id(output)) or describe_output(output)
    return found if found.started_at else found.model_copy(update={"started_at": output.stat().st_mtime})

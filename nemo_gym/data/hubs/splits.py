"""Which files of a dataset repository belong to which split, by their names, as Hugging Face does it."""

import re
from collections.abc import Sequence

from nemo_gym.data.hubs.base import HubError
from nemo_gym.data.records import SUFFIXES

_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}


def files_of_splits(names: Sequence[str], *, wanted: str | None, repo_id: str) -> dict[str, list[str]]:
    """The data files of each split, or of the one that is wanted. Files whose names tell no split are for training."""
    data = sorted(name for name in names if name.endswith(SUFFIXES) and not name.startswith("."))
    found = {split: [name for name in data if _is_named_after(name, words)] for split, words in _WORDS.items()}
    found = {split: files for split, files in found.items() if files} or ({"train": data} if data else {})
    if not found:
        raise HubError(f"{repo_id} has no data files that can be read ({', '.join(SUFFIXES)}).")
    if wanted is None:
        return found
    if wanted not in found:
        raise HubError(f"{repo_id} has no split '{wanted}'. It has: {', '.join(found)}.")
    return {wanted: found[wanted]}


def _is_named_after(name: str, words: Sequence[str]) -> bool:
    """Whether a folder or the file itself is named after a split, as in data/train-00000-of-00001.parquet."""
    parts = re.split(r"[/._\-\s]|\d+", name.lower())
    return any(word in parts for word in words)

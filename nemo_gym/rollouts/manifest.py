"""The manifest beside an output: the input, configuration and code that its rollouts were made with. A resumed run
compares it with its own, so that rollouts of two kinds do not mix unnoticed. The code is that of the servers' folders,
and the files that their configuration names."""

import hashlib
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from nemo_gym import __version__
from nemo_gym.common.atomic_files import write_json
from nemo_gym.common.paths import PARENT_DIR, search_roots
from nemo_gym.common.words import count_of
from nemo_gym.config.overrides import shown_arguments
from nemo_gym.config.secrets import masked
from nemo_gym.config.tree import blocks_in, dotted, leaves
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.output_files import manifest_path

VOLATILE = frozenset(("host", "port", "num_workers", "isolation", "datasets"))
"""Settings of a server that do not change its replies."""
MAX_SHOWN = 10

PATH_SUFFIXES = ("path", "paths", "_file", "_dir")
"""Configuration keys that end like this name files or folders: script_fpath, prompt_path, data_dirpath."""
SKIPPED_KEYS = frozenset(("datasets", "openai_base_url", "base_url"))
SKIPPED_FOLDERS = frozenset(("tests", "data", "node_modules", "outputs", "results", "wandb", "checkpoints"))
SKIPPED_SUFFIXES = frozenset((".pyc", ".log", ".md", ".lock"))
MAX_FILES = 2000
WHOLE_BYTES = 32 * 2**20
EDGE_BYTES = 2**20
"""Of a larger file, such as model weights, only the size and both ends are hashed."""


class InputFile(BaseModel):
    path: str
    sha256: str
    rows: int | None = None
    """None in older manifests."""

    def __str__(self) -> str:
        return f"{self.path} ({count_of(self.rows, 'row')})" if self.rows else self.path


class Manifest(BaseModel):
    """What a run was made with."""

    input: InputFile
    options: dict[str, Any]
    """Options of the command that change the records."""
    servers: dict[str, Any]
    """The configuration of the servers, without secrets."""
    files: dict[str, str] | None = None
    """Hashes of the servers' code and of the files that their configuration names. None in older manifests."""
    command: list[str] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    created_at: float = 0.0

    def changes_to(self, now: "Manifest") -> list[str]:
        """What is different now, a line each."""
        is_same = self.input.sha256 == now.input.sha256
        lines = [] if is_same else [f"the dataset: {self.input} before, {now.input} with other rows now"]
        lines += [*_differences(self.options, now.options), *_differences(self.servers, now.servers)]
        if self.files is not None and now.files is not None:
            lines += describe_file_changes(self.files, now.files)
        return lines


def make_manifest(
    input_path: Path, *, sha256: str, rows: int, options: dict[str, Any], settings: Mapping[str, Any]
) -> Manifest:
    """The manifest of a run that is about to start, without secrets."""
    names = {block.name for block in blocks_in(settings)}
    return Manifest(
        input=InputFile(path=str(input_path), sha256=sha256, rows=rows),
        options=options,
        servers={name: block for name, block in masked(settings).items() if name in names},
        files=hash_server_files(settings) if settings else None,
        command=[Path(sys.argv[0]).name, *shown_arguments(sys.argv[1:])],
        versions={"nemo_gym": __version__, "python": platform.python_version()},
        created_at=round(time.time(), 3),
    )


def read_manifest(output: Path) -> Manifest | None:
    """The manifest of an output, if it has one."""
    path = manifest_path(output)
    if not path.exists():
        return None
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read: {error}. Move it and {output} away to start again.") from error


def write_manifest(output: Path, manifest: Manifest) -> None:
    """Write the manifest atomically."""
    write_json(manifest_path(output), manifest.model_dump(mode="json"))


def question(output: Path, changes: list[str]) -> ConfigError:
    """The error that asks the user what to do about a change."""
    more = [f"  ... and {len(changes) - MAX_SHOWN} more"] if len(changes) > MAX_SHOWN else []
    listed = "\n".join([*(f"  {line}" for line in changes[:MAX_SHOWN]), *more])
    return ConfigError(
        f"{output} contains rollouts from a different input or configuration:\n{listed}\n"
        "Choose what to do: +resume=continue keeps them and makes the missing rollouts with the new configuration, "
        "+resume=restart moves them aside and starts from the beginning. Or give another output_jsonl_fpath."
    )


def _differences(before: Any, now: Any) -> Iterator[str]:
    values, new_values = dict(leaves(before)), dict(leaves(now))
    for path in dict.fromkeys([*values, *new_values]):
        pair = values.get(path), new_values.get(path)
        if pair[0] != pair[1] and VOLATILE.isdisjoint(path):
            old, new = ("not set" if each is None else repr(each) for each in pair)
            yield f"{dotted(path)}: {old} before, {new} now"


def hash_server_files(settings: Mapping[str, Any]) -> dict[str, str]:
    """A hash for each file, by its path as users know it."""
    files: dict[str, Path] = {}
    for _, server_type, implementation, config in blocks_in(settings):
        folder = _find(f"{server_type}/{implementation}", ())
        roots = () if folder is None else (folder,)
        named = [_find(path, roots) for path in _paths_in(config)]
        for found in (folder, *named):
            for file in [] if found is None else _files_under(found):
                files[_shown(file)] = file
    return {name: _hash(files[name]) for name in sorted(files)}


def describe_file_changes(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """What is different, a line per file."""
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            yield f"{name} was {'deleted' if name not in now else 'changed' if name in before else 'added'}"


def _paths_in(config: Any) -> Iterator[str]:
    for path, value in leaves(config):
        keys = [key for key in path if isinstance(key, str)]
        is_path = isinstance(value, str) and value and keys and keys[-1].endswith(PATH_SUFFIXES)
        if is_path and SKIPPED_KEYS.isdisjoint(keys) and not any(key.startswith("output") for key in keys):
            yield value


def _find(path: str, roots: tuple[Path, ...]) -> Path | None:
    wanted = Path(path).expanduser()
    tried = [wanted] if wanted.is_absolute() else [root / wanted for root in (*roots, *search_roots())]
    return next((candidate.resolve() for candidate in tried if candidate.exists()), None)


def _files_under(path: Path) -> Iterator[Path]:
    """The file itself, or what is in the folder without caches, tests, data and outputs."""
    if path.is_file():
        yield path
        return
    count = 0
    for folder, subfolders, names in os.walk(path):
        subfolders[:] = sorted(
            name for name in subfolders if name not in SKIPPED_FOLDERS and not name.startswith((".", "__"))
        )
        for name in sorted(names):
            file = Path(folder, name)
            if file.suffix not in SKIPPED_SUFFIXES and not name.startswith(".") and file.is_file():
                count += 1
                if count > MAX_FILES:
                    return
                yield file


def _shown(file: Path) -> str:
    for root in (Path.cwd(), PARENT_DIR):
        if file.is_relative_to(root):
            return str(file.relative_to(root))
    return str(file)


def _hash(file: Path) -> str:
    """Empty if the file cannot be read: then it cannot have been used either."""
    try:
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size <= WHOLE_BYTES:
                return hashlib.file_digest(opened, "sha256").hexdigest()[:16]
            digest = hashlib.sha256(f"{size} ".encode() + opened.read(EDGE_BYTES))
            opened.seek(-EDGE_BYTES, os.SEEK_END)
            digest.update(opened.read())
            return digest.hexdigest()[:16]
    except OSError:
        return ""

"""The manifest beside an output: the input, configuration and code that its rollouts were made with. A resumed run
compares it with its own, so that rollouts of two kinds do not mix unnoticed. The code is that of the servers' folders,
and the files that their configuration names."""

import platform
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from nemo_gym import __version__
from nemo_gym.common.atomic_files import write_json
from nemo_gym.common.words import count_of, indented_list
from nemo_gym.config.command_line import shown_arguments
from nemo_gym.config.fingerprint import describe_file_changes, hash_server_files
from nemo_gym.config.keys import VOLATILE_KEYS
from nemo_gym.config.secrets import masked
from nemo_gym.config.tree import blocks_in, dotted, leaves
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.output_files import manifest_path


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
    return ConfigError(
        f"{output} contains rollouts from a different input or configuration:\n{indented_list(changes)}\n"
        "Choose what to do: +resume=continue keeps them and makes the missing rollouts with the new configuration, "
        "+resume=restart moves them aside and starts from the beginning. Or give another output_jsonl_fpath."
    )


def _differences(before: Any, now: Any) -> Iterator[str]:
    values, new_values = dict(leaves(before)), dict(leaves(now))
    for path in dict.fromkeys([*values, *new_values]):
        pair = values.get(path), new_values.get(path)
        if pair[0] != pair[1] and VOLATILE_KEYS.isdisjoint(path):
            old, new = ("not set" if each is None else repr(each) for each in pair)
            yield f"{dotted(path)}: {old} before, {new} now"

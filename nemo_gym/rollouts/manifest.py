"""The manifest beside an output: the input, configuration and code that its rollouts were made with. A resumed run
compares it with its own, so that rollouts of two kinds do not mix unnoticed."""

import platform
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from nemo_gym import __version__
from nemo_gym.common.atomic_files import write_json
from nemo_gym.common.words import count_of
from nemo_gym.config.overrides import shown_arguments
from nemo_gym.config.secrets import masked
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.output_files import manifest_path
from nemo_gym.rollouts.server_files import describe_file_changes, hash_server_files

VOLATILE = frozenset(("host", "port", "num_workers", "isolation", "datasets"))
"""Settings of a server that do not change its replies."""
MAX_SHOWN = 10


class InputFile(BaseModel):
    path: str
    sha256: str
    rows: int | None = None
    """None in older manifests."""

    def changes_to(self, now: "InputFile") -> Iterator[str]:
        """What is different now, in words."""
        if self.sha256 == now.sha256:
            return
        before, after = (
            f"{each.path} ({count_of(each.rows, 'row')})" if each.rows else each.path for each in (self, now)
        )
        if self.path != now.path:
            yield f"the dataset: {before} before, {after} now"
        elif self.rows == now.rows:
            yield f"the dataset: rows of {after} have changed"
        else:
            yield f"the dataset: {now.path} had {self.rows} rows, has {now.rows} now"


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
        pairs = ((self.options, now.options), (self.servers, now.servers))
        lines = list(self.input.changes_to(now.input))
        lines += [line for before, after in pairs for line in _differences(before, after)]
        if self.files is not None and now.files is not None:
            lines += describe_file_changes(self.files, now.files)
        return lines


def make_manifest(
    input_path: Path, *, sha256: str, rows: int, options: dict[str, Any], settings: Mapping[str, Any]
) -> Manifest:
    """The manifest of a run that is about to start, without secrets."""
    return Manifest(
        input=InputFile(path=str(input_path), sha256=sha256, rows=rows),
        options=options,
        servers={name: _lasting(block) for name, block in masked(settings).items() if _is_server(block)},
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


def _differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from _differences(before.get(key), after.get(key), f"{place}.{key}" if place else str(key))
    elif before != after:
        was, now = ("not set" if each is None else repr(each) for each in (before, after))
        yield f"{place}: {was} before, {now} now"


def _is_server(block: Any) -> bool:
    return (
        isinstance(block, dict)
        and len(block) == 1
        and all(
            isinstance(inner, dict) and all(isinstance(item, dict) and "entrypoint" in item for item in inner.values())
            for inner in block.values()
        )
    )


def _lasting(block: Any) -> Any:
    if not isinstance(block, dict):
        return block
    return {key: _lasting(item) for key, item in block.items() if key not in VOLATILE}

"""What a file of rollouts was made of and with, kept beside it, so that a change is noticed before it mixes in."""

import hashlib
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from nemo_gym import __version__
from nemo_gym.common.atomic_files import sibling_path, write_json
from nemo_gym.config.overrides import shown_arguments
from nemo_gym.config.secrets import masked
from nemo_gym.errors import ConfigError

VOLATILE = frozenset(("host", "port", "num_workers", "isolation", "datasets"))
"""Settings of a server that do not change what it answers."""
MAX_SHOWN = 10


class InputFile(BaseModel):
    path: str
    sha256: str


class Manifest(BaseModel):
    """The circumstances of a run."""

    input: InputFile
    options: dict[str, Any]
    """What the command was told that bears on the records."""
    servers: dict[str, Any]
    """The configuration of the servers, without secrets."""
    command: list[str] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)
    created_at: float = 0.0

    def changes_to(self, now: "Manifest") -> list[str]:
        """What is different now, a line each."""
        pairs = (
            ({"input": self.input.sha256}, {"input": now.input.sha256}),
            (self.options, now.options),
            (self.servers, now.servers),
        )
        return [line for before, after in pairs for line in _differences(before, after)]


def manifest_path(output: Path) -> Path:
    return sibling_path(output, "_manifest.json")


def make_manifest(input_path: Path, *, options: dict[str, Any], settings: Mapping[str, Any]) -> Manifest:
    """Take down the circumstances, without the secrets among them."""
    return Manifest(
        input=InputFile(path=str(input_path), sha256=_sha256(input_path)),
        options=options,
        servers={name: _lasting(block) for name, block in masked(settings).items() if _is_server(block)},
        command=[Path(sys.argv[0]).name, *shown_arguments(sys.argv[1:])],
        versions={"nemo_gym": __version__, "python": platform.python_version()},
        created_at=round(time.time(), 3),
    )


def read_manifest(output: Path) -> Manifest | None:
    """The circumstances of what is in the output, if they were kept."""
    path = manifest_path(output)
    if not path.exists():
        return None
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read: {error}. Move it and {output} away to start anew.") from error


def write_manifest(output: Path, manifest: Manifest) -> None:
    """Keep the circumstances, whole or not at all."""
    write_json(manifest_path(output), manifest.model_dump(mode="json"))


def question(output: Path, changes: list[str]) -> ConfigError:
    """The error that asks what to do about a change."""
    more = [f"  ... and {len(changes) - MAX_SHOWN} more"] if len(changes) > MAX_SHOWN else []
    listed = "\n".join([*(f"  {line}" for line in changes[:MAX_SHOWN]), *more])
    return ConfigError(
        f"{output} holds rollouts that were made otherwise:\n{listed}\n"
        "Say what to do: +resume=continue keeps them and makes what is missing the new way, +resume=restart moves "
        "them aside and starts anew; or choose another output_jsonl_fpath."
    )


def _differences(before: Any, after: Any, place: str = "") -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from _differences(before.get(key), after.get(key), f"{place}.{key}" if place else str(key))
    elif before != after:
        yield f"{place}: {before!r} before, {after!r} now"


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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

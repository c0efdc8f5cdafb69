"""Resume a run: find the rollouts in its output, and check that they were made the same way.

The manifest beside an output has the input, configuration and code that its rollouts were made with. A resumed run
compares it with its own, so that rollouts of two kinds do not mix unnoticed. The code is that of the servers' folders,
and the files that their configuration names."""

import contextlib
import hashlib
import logging
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, Field

from nemo_gym import __version__
from nemo_gym.common.atomic_files import write_json
from nemo_gym.common.paths import checked_out_commit
from nemo_gym.common.words import count_of, indented_list
from nemo_gym.config.command_line import shown_arguments, shown_option
from nemo_gym.config.keys import VOLATILE_KEYS, KeyPath, blocks_in, changes, dotted
from nemo_gym.config.loading import POLICY_MODEL
from nemo_gym.config.secrets import masked
from nemo_gym.config.server_files import hash_server_files
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.prompts import load_prompt_config
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.dataset import DatasetFingerprint
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.store import (
    CompletedIndex,
    JsonlFile,
    RepeatedLines,
    RolloutStore,
    archive_paths,
    manifest_path,
)

logger = logging.getLogger(__name__)

MODEL_NAMES = ("openai_model", "model")
"""The keys of a model server that name its model."""


class InputFile(BaseModel):
    path: str
    sha256: str
    rows: int | None = None
    """None in older manifests."""

    def __str__(self) -> str:
        return f"{self.path} ({count_of(self.rows, 'row')})" if self.rows else self.path


class Manifest(BaseModel):
    """The input, options, servers and code of a run."""

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
    commit: str | None = None
    """What was checked out in the working directory, if that is in a git repository."""

    def digest(self) -> str:
        """Hash everything that `changes_to` compares."""
        compared = [self.input.sha256, self.options, self.servers, self.files]
        return hashlib.sha256(orjson.dumps(_lasting(compared), option=orjson.OPT_SORT_KEYS)).hexdigest()[:12]

    def changes_to(self, now: "Manifest") -> list[str]:
        """Describe what is different now, a line each."""
        is_same = self.input.sha256 == now.input.sha256
        lines = [] if is_same else [f"the dataset: {self.input} before, {now.input} with other rows now"]
        replaced = self._replaced_servers(now)
        lines += [f"{_place((name,))}: {before} before, {after} now" for name, (before, after) in replaced.items()]
        old, new = ({name: own for name, own in each.servers.items() if name not in replaced} for each in (self, now))
        for change in (*changes(self.options, now.options), *changes(old, new)):
            if VOLATILE_KEYS.isdisjoint(change.path):
                was, is_now = ("not set" if each is None else repr(each) for each in change[1:])
                lines.append(f"{_place(change.path)}: {was} before, {is_now} now")
        files = () if self.files is None or now.files is None else changes(self.files, now.files)
        for (name,), was, is_now in sorted(files):
            if not replaced or None not in (was, is_now):  # else it is a file of the other server
                gone = "was deleted or is no longer used" if is_now is None else None
                lines.append(f"{name} {gone or ('was added' if was is None else 'was changed')}")
        return lines

    def _replaced_servers(self, now: "Manifest") -> dict[str, tuple[str, str]]:
        """The servers that run other code now, each with the folders of both, such as another kind of model."""
        before, after = (
            {block.name: f"{block.server_type}/{block.implementation}" for block in blocks_in(one.servers)}
            for one in (self, now)
        )
        return {name: (before[name], after[name]) for name in before if after.get(name, before[name]) != before[name]}


def _place(path: KeyPath) -> str:
    """A key as users know it: which model plays is one of its server's keys, or another server."""
    is_model = path[0] == POLICY_MODEL.name and (len(path) == 1 or path[-1] in MODEL_NAMES)
    return f"the model ({dotted(path)})" if is_model else dotted(path)


def _lasting(value: Any) -> Any:
    """Return settings without those that do not change the replies of a server."""
    if isinstance(value, dict):
        return {name: _lasting(item) for name, item in value.items() if name not in VOLATILE_KEYS}
    return [_lasting(item) for item in value] if isinstance(value, list) else value


def make_manifest(
    input_path: Path,
    *,
    sha256: str,
    rows: int,
    options: dict[str, Any],
    settings: Mapping[str, Any],
    code: Mapping[str, str] | None = None,
) -> Manifest:
    """The manifest of a run that is about to start, without secrets. `code` has hashes of what is in no folder."""
    names = {block.name for block in blocks_in(settings)}
    return Manifest(
        input=InputFile(path=str(input_path), sha256=sha256, rows=rows),
        options=options,
        servers={name: block for name, block in masked(settings).items() if name in names},
        files={**hash_server_files(settings), **(code or {})} if settings else None,
        command=[Path(sys.argv[0]).name, *shown_arguments(sys.argv[1:])],
        versions={"nemo_gym": __version__, "python": platform.python_version()},
        created_at=round(time.time(), 3),
        commit=checked_out_commit(Path.cwd()),
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
    """Return the error that asks the user what to do about a change."""
    return ConfigError(
        f"{output} contains rollouts from a different input or configuration:\n{indented_list(changes)}\n"
        f"Choose what to do: {shown_option('resume', 'continue')} keeps them and makes the missing rollouts with the "
        f"new configuration, {shown_option('resume', 'restart')} moves them aside and starts from the beginning. Or "
        "give another output."
    )


def archive_output(output: Path) -> None:
    """Rename the files of an earlier run, so that nothing of them is lost. Not while that run still writes."""
    with contextlib.closing(JsonlFile(output)) if output.exists() else contextlib.nullcontext():
        for path, archived in archive_paths(output):
            path.rename(archived)


class Found(NamedTuple):
    """The rollouts in the output, and their metrics."""

    completed: CompletedIndex
    metrics: RunningMetrics


def load_completed(
    store: RolloutStore,
    dataset: DatasetFingerprint,
    *,
    dataset_path: Path,
    config: RolloutCollectionConfig,
    settings: Mapping[str, Any],
    code: Mapping[str, str] | None = None,
) -> Found:
    """Return the rollouts in the output. Raises ConfigError if they were made another way, unless `config` says
    what to do about it."""
    options = config.model_dump(include={"agent_name", "responses_create_params", "seed_per_repeat"})
    if config.num_repeats_add_seed:
        options["num_repeats_add_seed"] = True
    if config.prompt_config is not None:
        options["prompt"] = load_prompt_config(config.prompt_config).model_dump()
    rows = dataset.rows
    now = make_manifest(dataset_path, sha256=dataset.sha256, rows=rows, options=options, settings=settings, code=code)
    before = read_manifest(store.output)
    changes = [] if before is None or store.is_empty else before.changes_to(now)
    if before is None and not store.is_empty:
        changes = [f"{manifest_path(store.output).name}, which records how they were made, is missing"]
    if changes and config.resume == "ask":
        raise question(store.output, changes)
    found = _read_output(store, dataset, num_repeats=config.max_repeats, by_content=bool(changes))
    count = found.completed.count
    if before is None and count == 0 and not store.is_empty:
        raise store.not_a_record(1)
    if before is None or changes or count == 0:
        write_manifest(store.output, now)
    if count:
        logger.info("found %s in %s", count_of(count, "rollout"), store.output)
    return found


def _read_output(
    store: RolloutStore, dataset: DatasetFingerprint, *, num_repeats: int, by_content: bool, counted: int = 0
) -> Found:
    """Read the output once; again only if an earlier run made more repeats than this one. `counted` is how many."""
    completed = CompletedIndex(num_repeats=num_repeats, row_hashes=dataset.row_hashes, by_content=by_content)
    metrics, repeated = RunningMetrics(num_repeats=max(num_repeats, counted)), RepeatedLines()
    most = 0
    for number, key, line in store.records():
        most = max(most, key[1] + 1)
        if not completed.add(key):
            repeated.add(number)
        elif most <= (metrics.num_repeats or 1):
            metrics.add(_decode(line, f"{store.output}, line {number}"))
    if most > (metrics.num_repeats or 1):  # a task is complete only with all of them
        return _read_output(store, dataset, num_repeats=num_repeats, by_content=by_content, counted=most)
    repeated.warn(store.output)
    return Found(completed, metrics)


def _decode(line: bytes, place: str) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{place} is damaged: {error}. Remove the line to make its rollout again.") from error

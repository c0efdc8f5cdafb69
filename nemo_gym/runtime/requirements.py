"""What a server folder requires: what its files list, and what its code imports without listing it. `python_for`
returns the interpreter that has it all."""

import json
import logging
import re
import tomllib
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.config.types import GlobalKeys
from nemo_gym.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

logger = logging.getLogger(__name__)


class VenvSettings(GlobalKeys):
    """Global keys of a configuration."""

    uv_venv_dir: Path | None = None
    """Keep the virtualenv of `<type>/<name>` in this folder, not in the cache."""

    uv_cache_dir: str | None = None
    """The folder of packages that uv may reuse."""

    skip_venv_if_present: bool = False
    """Use a virtualenv in `uv_venv_dir` also if its requirements have changed."""


def python_for(folder: Path, settings: VenvSettings | None = None) -> str | None:
    """The interpreter a server's folder needs, or None when this one will do."""
    wanted = requirements_of(folder)
    missing = [line for line in wanted if not is_met(line)]
    if not missing:
        return None
    logger.info("%s needs %s, which this interpreter does not have", folder.name, ", ".join(missing))
    from nemo_gym.runtime.venvs import make_virtualenv  # most servers need none

    return str(make_virtualenv(folder, wanted, settings or VenvSettings()))


_SAME_NAME = ("datasets", "httpx", "huggingface_hub", "numpy", "openai", "pandas", "regex", "requests", "tqdm")
UNDECLARED = {name: name for name in _SAME_NAME} | {"PIL": "pillow", "ray": "ray[default]", "yaml": "pyyaml"}
"""Modules that public folders import and do not list, because the public package brings them, and their packages."""

_THIS_PACKAGE = re.compile(r"nemo[-_.]gym(?![\w-])", re.IGNORECASE)
_EDITABLE = re.compile(r"^(?:-e|--editable)(?:\s+|=)")
_IMPORT = re.compile(rb"^[ \t]*(?:import|from)[ \t]+(\w+)", re.MULTILINE)
_ASKS_FOR_URL = re.compile(rb"\b(resolve_model_base_url|get_server_url|_build_server_base_url|base_url_for_run)\(")
_SKIPPED = frozenset(("tests", "data", ".venv", "node_modules"))


def requirements_of(folder: Path) -> list[str]:
    """Return the requirements of a folder beyond this package."""
    listed = [line for line in _listed(folder) if not names_this_package(line, folder)]
    return [*listed, *_undeclared(folder, listed)]


def missing_requirements(folder: Path) -> list[str]:
    """Return the requirements that this interpreter does not meet."""
    return [line for line in requirements_of(folder) if not is_met(line)]


def _listed(folder: Path) -> list[str]:
    """The lines of whichever file it uses."""
    listed, project = folder / "requirements.txt", folder / "pyproject.toml"
    if listed.is_file() and project.is_file():
        raise ConfigError(f"{folder} has both requirements.txt and pyproject.toml. Expected one of them.")
    if listed.is_file():
        lines = [re.split(r"(?:^|\s)#", line)[0].strip() for line in listed.read_text().splitlines()]
    elif project.is_file():
        lines = _project_lines(project)
    else:
        lines = []
    return [line for line in lines if line]


def _project_lines(project: Path) -> list[str]:
    """The dependencies of a `pyproject.toml`, each from where `[tool.uv.sources]` says."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    content = tomllib.loads(project.read_text())
    lines: list[str] = content.get("project", {}).get("dependencies", [])
    listed = content.get("tool", {}).get("uv", {}).get("sources", {})
    sources = {canonicalize_name(name): source for name, source in listed.items()}

    def from_source(line: str) -> str:
        if names_this_package(line, project.parent):
            return line
        wanted = Requirement(line)
        source = sources.get(canonicalize_name(wanted.name))
        if source is None:
            return line
        extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
        marker = f" ; {wanted.marker}" if wanted.marker else ""
        return f"{wanted.name}{extras} @ {_source_url(wanted.name, source, project)}{marker}"

    return [from_source(line) for line in lines]


def _source_url(name: str, source: Any, project: Path) -> str:
    """The URL of a source. One that cannot be followed is refused: the index may have another package of that name."""
    known = {"git", "rev", "tag", "branch", "subdirectory", "url", "path", "editable"}
    if not isinstance(source, dict) or not source.keys() <= known or len(source.keys() & {"git", "url", "path"}) != 1:
        raise ConfigError(
            f"{project}: [tool.uv.sources] has {name} = {source!r}. Expected one of git, url and path. "
            "List the package in a requirements.txt instead."
        )
    part = f"#subdirectory={source['subdirectory']}" if "subdirectory" in source else ""
    if "path" in source:
        return f"{(project.parent / source['path']).resolve().as_uri()}{part}"
    if "url" in source:
        return f"{source['url']}{part}"
    revision = next((source[key] for key in ("rev", "tag", "branch") if key in source), None)
    return f"git+{source['git']}{f'@{revision}' if revision else ''}{part}"


def names_this_package(line: str, folder: Path) -> bool:
    """True for `nemo-gym[dev]`, `-e ../../`, `-e nemo-gym[dev] @ ../..` and the like: public folders name the project
    by its root, two levels up, which for them is this package wherever the folder is."""
    named = _EDITABLE.sub("", line.strip()).strip("\"' ")
    if _THIS_PACKAGE.match(named):
        return True
    path = re.sub(r"\[[^\]]*\]$", "", named.rpartition(" @ ")[2].removeprefix("file:"))
    if not path.startswith((".", "/")):
        return False
    place = (folder / path).resolve()
    return place.is_dir() and folder.resolve().is_relative_to(place) and place != folder.resolve()


def _undeclared(folder: Path, listed: list[str]) -> list[str]:
    """Packages of `UNDECLARED` that the folder imports, does not list, and this interpreter does not have."""
    found = {module for module in imports_of(folder) if module in UNDECLARED and util.find_spec(module) is None}
    named = {re.split(r"[^\w.-]", line.lower().replace("_", "-"))[0] for line in listed}
    wanted = sorted(UNDECLARED[module] for module in found)
    return [package for package in wanted if package.partition("[")[0].replace("_", "-") not in named]


def imports_of(folder: Path) -> set[str]:
    """The packages that the code of a folder imports."""
    return {name.decode() for source in _sources(folder) for name in _IMPORT.findall(source)}


def _sources(folder: Path) -> Iterator[bytes]:
    files = (file for file in folder.rglob("*.py") if _SKIPPED.isdisjoint(file.relative_to(folder).parts))
    return (file.read_bytes() for file in files)


def needs_addresses(folder: Path) -> bool:
    """True if the code asks for the URLs of servers, to hand them to programs outside. Then they need ports."""
    return any(_ASKS_FOR_URL.search(source) for source in _sources(folder))


def is_met(line: str) -> bool:
    """True if this interpreter has what a requirement line asks for, with the extras and what those need in turn."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        wanted = Requirement(line)
    except InvalidRequirement:
        return False
    return _is_installed(wanted, extra="", seen=set())


def has_extra(extra: str) -> bool:
    """True if this install has an optional part of this package, or cannot say."""
    return is_met(f"nemo-gym[{extra}]") or not is_met("nemo-gym")


def check_extra(server: str, extra: str | None) -> None:
    """Raise MissingExtraError if this install lacks the optional part that a server needs."""
    if extra is not None and not has_extra(extra):
        raise MissingExtraError(f"'{server}'", extra)


def _is_from(found: metadata.Distribution, url: str) -> bool:
    """True if a package was installed from this URL, and so is not another one of the same name."""
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    version = origin.get("vcs_info", {})
    revisions = {version.get("commit_id"), version.get("requested_revision")}
    plain = {origin.get("url")} if not version else {f"{version['vcs']}+{origin['url']}@{each}" for each in revisions}
    return url.partition("#")[0] in plain


def _is_installed(wanted: "Requirement", *, extra: str, seen: set[str]) -> bool:
    """True if it is installed, or not required: its marker may be about the `extra` that brought it up."""
    from packaging.requirements import Requirement

    if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
        return True
    try:
        found = metadata.distribution(wanted.name)
    except metadata.PackageNotFoundError:
        return False
    if not wanted.specifier.contains(found.version, prereleases=True):
        return False
    if wanted.url is not None and not _is_from(found, wanted.url):
        return False
    needs = [Requirement(line) for line in found.requires or ()] if wanted.extras else []
    return all(
        _is_installed(need, extra=extra, seen={*seen, extra})
        for extra in wanted.extras - seen
        for need in needs
        if need.marker is not None
    )

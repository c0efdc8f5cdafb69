"""Skill folders: each skill is a folder with a `SKILL.md` that starts with its name and description."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

_FENCE = "---"


class Skill(BaseModel):
    name: str
    description: str | None = None
    version: str | None = None


class SkillsRef(BaseModel):
    """The skills of a rollout: their folder, their names, and a hash of all their files."""

    path: str
    hash: str
    skills: list[Skill]


def load_skill_directory(path: str | Path) -> SkillsRef:
    """Read a folder of skills."""
    root = Path(path)
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder of skills")
    skills = [_read_skill(file) for file in sorted(root.glob("*/SKILL.md"))]
    if not skills:
        raise ValueError(f"{root} has no skill: expected folders with a SKILL.md")
    return SkillsRef(path=str(root), hash=_digest(root), skills=skills)


def stage_skills(path: str | Path, destination: str | Path) -> Path:
    """Copy a folder of skills to the path where an agent expects it."""
    source, target = Path(path), Path(destination)
    if not source.is_dir():
        raise ValueError(f"{source} is not a folder of skills")
    if target.exists():
        raise ValueError(f"{target} exists already")
    shutil.copytree(source, target)
    return target


def _read_skill(file: Path) -> Skill:
    import yaml

    lines = file.read_text().splitlines()
    end = lines.index(_FENCE, 1) if lines and lines[0].strip() == _FENCE and _FENCE in lines[1:] else 0
    try:
        fields: Any = yaml.safe_load("\n".join(lines[1:end]))
    except yaml.YAMLError as error:
        raise ValueError(f"{file}: invalid YAML between the '---' lines: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("name"), str):
        raise ValueError(f"{file} has no `name` between '---' lines at its start")
    version = (fields.get("metadata") or {}).get("version")
    return Skill(
        name=fields["name"],
        description=fields.get("description"),
        version=None if version is None else str(version),
    )


def _digest(root: Path) -> str:
    digest = hashlib.sha256()
    for part in _named_contents(root):
        digest.update(part + b"\0")
    return digest.hexdigest()[:12]


def _named_contents(root: Path) -> Iterator[bytes]:
    for file in sorted(file for file in root.rglob("*") if file.is_file()):
        yield str(file.relative_to(root)).encode()
        yield file.read_bytes()

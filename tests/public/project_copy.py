"""A project written for the public package, as others write them. Copied out of the clone, so that nothing is found
by its place."""

import shutil
from pathlib import Path

PROJECT = Path(__file__).with_name("project")


def copy_project(target: Path) -> Path:
    shutil.copytree(PROJECT, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return target

"""The example rows of environments: our own and, where they are on this machine, the public ones."""

from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from nemo_gym import PARENT_DIR

PUBLIC_DATA = PARENT_DIR.parent / "shared/data"
WITH_PUBLIC_DATA = pytest.mark.skipif(not PUBLIC_DATA.is_dir(), reason="the public rows are not on this machine")


def own_rows(environment: str) -> Path:
    return PARENT_DIR / "resources_servers" / environment / "data/example.jsonl"


def public_rows(environment: str) -> Path:
    return PUBLIC_DATA / environment / "example.jsonl"


def row_files(environment: str) -> list[ParameterSet]:
    """Both files, as parameters of a test."""
    public = pytest.param(public_rows(environment), id="public", marks=WITH_PUBLIC_DATA)
    return [pytest.param(own_rows(environment), id="own"), public]

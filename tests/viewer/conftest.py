from pathlib import Path

import pytest

from nemo_gym.viewer import server
from tests.polling import PATIENCE_S


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes and unpacked files of a test go to a folder of its own."""
    monkeypatch.setenv("NEMO_GYM_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of tests are small: a page of them is whole, however long a busy machine takes to index them."""
    monkeypatch.setattr(server, "FIRST_PAGE_WAIT_S", PATIENCE_S)
    monkeypatch.setattr(server, "ROW_WAIT_S", PATIENCE_S)

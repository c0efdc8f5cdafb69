"""Which installed packages a sandbox gets."""

from pathlib import Path

import pytest

from nemo_gym.sandbox.local import package_paths


def install(folder: Path, name: str, *requires: str) -> None:
    """A distribution with one module, as an installer would leave it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (folder / f"{name}.py").write_text("")
    lines = [f"Name: {name}", "Version: 1.0", "Provides-Extra: more", *(f"Requires-Dist: {text}" for text in requires)]
    (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n")
    (info / "RECORD").write_text(f"{name}.py,,\n")


def test_a_package_brings_what_it_requires_and_the_extras_that_it_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "ngt_top", "ngt_middle[more]", "ngt_absent; python_version < '3'")
    install(tmp_path, "ngt_middle", "ngt_extra; extra == 'more'", "ngt_other; extra == 'other'", "ngt_top")
    install(tmp_path, "ngt_extra")
    install(tmp_path, "ngt_other")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert set(package_paths(("ngt_top",))) == {"ngt_top.py", "ngt_middle.py", "ngt_extra.py"}
    assert set(package_paths(("ngt_middle",))) == {"ngt_top.py", "ngt_middle.py", "ngt_extra.py"}
    assert set(package_paths(("ngt_extra",))) == {"ngt_extra.py"}

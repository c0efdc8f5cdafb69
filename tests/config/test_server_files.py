"""A changed verifier is noticed, by the files it is made of."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from omegaconf import OmegaConf

from nemo_gym.config.loading import load_config
from nemo_gym.config.server_files import WHOLE_BYTES, hash_server_files
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.resume import make_manifest
from nemo_gym.testing import running_servers, servers_of
from tests.stacks import agent_config

VERIFIER = """
from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer


class MineResourcesServer(SimpleResourcesServer):
    async def verify(self, body: BaseVerifyRequest) -> float:
        return 1.0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    server = tmp_path / "resources_servers" / "mine"
    for name in ("tests", "data", "__pycache__", ".cache", "templates"):
        (server / name).mkdir(parents=True)
        (server / name / "file.txt").write_text(name)
    (server / "app.py").write_text(VERIFIER)
    (tmp_path / "prompts").mkdir()
    for path in ("prompt.txt", "prompts/prompt.txt"):
        (tmp_path / path).write_text("Judge this.")
    return tmp_path


def settings(**config: Any) -> dict[str, Any]:
    return {"mine": {"resources_servers": {"mine": {"entrypoint": "app.py", **config}}}, "limit": 3, "name": "x"}


def changes(before: dict[str, str], **config: Any) -> list[str]:
    manifest = make_manifest(Path("rows.jsonl"), sha256="", rows=1, options={}, settings=settings(**config))
    return manifest.model_copy(update={"files": before}).changes_to(manifest)


def test_code_counts_and_caches_tests_and_data_do_not(folder: Path) -> None:
    before = hash_server_files(settings())
    assert list(before) == ["resources_servers/mine/app.py", "resources_servers/mine/templates/file.txt"]
    for name in ("tests", "data", "__pycache__", ".cache"):
        (folder / "resources_servers/mine" / name / "file.txt").write_text("changed")
    assert changes(before) == []
    (folder / "resources_servers/mine/app.py").write_text(VERIFIER.replace("1.0", "0.0"))
    (folder / "resources_servers/mine/templates/file.txt").unlink()
    (folder / "resources_servers/mine/helper.py").write_text("")
    assert changes(before) == [
        "resources_servers/mine/app.py was changed",
        "resources_servers/mine/helper.py was added",
        "resources_servers/mine/templates/file.txt was deleted or is no longer used",
    ]


@pytest.mark.parametrize(
    "config",
    [
        {"judge_prompt_template_fpath": "prompt.txt"},
        {"nested": {"prompt_paths": ["prompt.txt"]}},
        {"prompt_dirpath": "prompts"},
        {"system_prompt_file": "prompt.txt"},
    ],
)
def test_files_that_the_configuration_names_count(folder: Path, config: dict[str, Any]) -> None:
    before = hash_server_files(settings(**config))
    for path in ("prompt.txt", "prompts/prompt.txt"):
        (folder / path).write_text("Judge that.")
    (change,) = changes(before, **config)
    assert change.endswith("prompt.txt was changed")


def test_of_a_large_file_the_size_and_both_ends_count(folder: Path) -> None:
    large = folder / "weights.bin"
    with large.open("wb") as file:
        file.truncate(WHOLE_BYTES + 100)
    before = hash_server_files(settings(model_path="weights.bin"))
    with large.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    assert changes(before, model_path="weights.bin") == ["weights.bin was changed"]


def test_a_file_that_does_not_exist_and_a_value_that_is_not_a_path_are_ignored(folder: Path) -> None:
    assert hash_server_files(
        settings(prompt_fpath="nowhere.txt", path=7, datasets=[{"jsonl_fpath": "prompt.txt"}])
    ) == (hash_server_files(settings()))


async def test_a_resumed_run_names_the_file_that_changed(folder: Path) -> None:
    name = f"mine_{uuid4().hex}"  # another one when the test is repeated, since its class is imported
    (folder / "resources_servers/mine").rename(folder / "resources_servers" / name)
    (folder / "config.yaml").write_text(agent_config(name, script_fpath="script.jsonl"))
    (folder / "script.jsonl").write_text('{"say": "Hi."}\n')
    (folder / "rows.jsonl").write_text(json.dumps({"responses_create_params": {"input": "Hello."}}) + "\n")
    options = RolloutCollectionConfig(
        agent_name="agent", input_jsonl_fpath="rows.jsonl", output_jsonl_fpath="out.jsonl"
    )
    settings: Any = OmegaConf.to_container(load_config(["config_paths=[config.yaml]"], use_dotenv=False))

    async def collect() -> None:
        async with running_servers(servers_of("config.yaml")) as client:
            await RolloutCollectionHelper().run_from_config(options, client=client, settings=settings)

    await collect()
    await collect()  # nothing has changed
    (folder / "resources_servers" / name / "app.py").write_text(VERIFIER.replace("1.0", "0.0"))
    (folder / "script.jsonl").write_text('{"say": "Hello."}\n')
    with pytest.raises(ConfigError, match=r"resume=.continue") as asked:
        await collect()
    assert f"resources_servers/{name}/app.py was changed" in str(asked.value)
    assert "script.jsonl was changed" in str(asked.value)

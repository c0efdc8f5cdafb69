"""What the check of a folder finds without starting it, and by loading it."""

from pathlib import Path

import pytest

from nemo_gym.common.paths import EXTRA_ROOTS_ENV_VAR
from nemo_gym.compat.folder_check import check_folder

APP = """
from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.server_utils import get_response_json, rollout_path_prefix as prefix


class Config(BaseResourcesServerConfig):
    steps: int = 3


class Env(SimpleResourcesServer):
    config: Config

    async def verify(self, body):
        prefix("1", token_capture=True)
        return await get_response_json(response=None)


if __name__ == "__main__":
    Env.run_webserver()
"""
BLOCK = "env: {{resources_servers: {{env: {{entrypoint: app.py, domain: other, {more}}}}}}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(EXTRA_ROOTS_ENV_VAR, str(tmp_path))
    folder = tmp_path / "resources_servers" / "env"
    (folder / "configs").mkdir(parents=True)
    (folder / "app.py").write_text(APP)
    (folder / "configs" / "env.yaml").write_text(BLOCK.format(more="steps: 2, allowed_agents: [simple_agent]"))
    return folder


@pytest.mark.slow
def test_what_runs_has_no_problem(folder: Path) -> None:
    (folder / "configs" / "part.yaml").write_text("other: {resources_servers: {env: {steps: 4}}}\n")
    (report,) = check_folder(folder, load=True)
    assert (report.problems, report.remarks) == ([], [])


def test_a_call_with_other_arguments_is_found_where_it_is(folder: Path) -> None:
    (folder / "app.py").write_text(APP.replace("token_capture=", "capture="))
    (folder / "tests").mkdir()
    (folder / "tests" / "test_app.py").write_text(APP.replace('"1", ', ""))
    (report,) = check_folder(folder)
    (problem,) = report.problems
    assert "app.py, line 14: 'prefix'" in problem
    assert "'capture'" in problem
    assert ["'rollout_id'" in remark for remark in report.remarks] == [True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("app", "more", "problem"),
    [
        (APP, "steps: many", "- steps: "),
        (APP, "no_such_key: 1", ""),
        (APP.replace("class Config", "import nowhere\n\n\nclass Config"), "steps: 2", "nowhere"),
        ("import os\nos._exit(3)\n", "steps: 2", "ends the process"),
    ],
)
def test_loading_finds_what_fails_at_a_start(folder: Path, app: str, more: str, problem: str) -> None:
    (folder / "app.py").write_text(app)
    (folder / "configs" / "env.yaml").write_text(BLOCK.format(more=more))
    (report,) = check_folder(folder, load=True)
    assert bool(report.problems) == bool(problem)
    assert problem in "".join(report.problems)

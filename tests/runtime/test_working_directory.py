"""Servers that run in a clone of the public repository, which has a `nemo_gym/` of its own."""

from pathlib import Path

import pytest

import nemo_gym
from nemo_gym.common.paths import UV_FOLDER
from tests.runtime.test_workers import launched

ENVIRONMENT = """
import multiprocessing
import shutil
import subprocess
import sys

import nemo_gym
from nemo_gym.base_resources_server import BaseVerifyRequest, SimpleResourcesServer, tool
from nemo_gym.server_utils import Compute


def place() -> str:
    import nemo_gym

    return str(nemo_gym.__file__)


class Where(SimpleResourcesServer):
    @tool
    async def places(self, compute: Compute) -> list[str]:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pooled = pool.apply(place)
        code = "import nemo_gym; print(nemo_gym.__file__)"
        started = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
        return [place(), await compute.run(place, timeout_s=30.0), pooled, started.stdout.strip()]

    @tool
    async def uv(self) -> str | None:
        return shutil.which("uv")

    async def verify(self, body: BaseVerifyRequest) -> float:
        return 0.0


if __name__ == "__main__":
    Where.run_webserver()
"""


@pytest.mark.slow
async def test_no_process_imports_the_nemo_gym_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("nemo_gym/__init__.py", "raise ImportError('the clone')"), ("where/app.py", ENVIRONMENT)):
        path = tmp_path / name if name.startswith("nemo_gym") else tmp_path / "resources_servers" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    where = {"resources_servers": {"where": {"entrypoint": "app.py", "domain": "other"}}}
    async with launched("num_workers=2", where=where) as launcher, launcher.client() as client:
        reply = await client.post("where", "/places", json={})
        assert await reply.json() == [nemo_gym.__file__] * 4
        found = await (await client.post("where", "/uv", json={})).text()
    assert found.endswith("/uv") or not (UV_FOLDER / "uv").is_file()

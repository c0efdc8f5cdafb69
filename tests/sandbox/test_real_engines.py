"""Container engines that are installed, with an image that has a shell and `cat`:

    NEMO_GYM_TEST_DOCKER_IMAGE=debian:stable-slim pytest tests/sandbox/test_real_engines.py

`NEMO_GYM_TEST_APPTAINER_IMAGE` is the other; `NEMO_GYM_TEST_DOCKER` and `NEMO_GYM_TEST_APPTAINER` name programs."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.sandbox import AsyncSandbox, SandboxError, SandboxSpec
from tests.sandbox.providers import SECRET

LEFT = (
    "for f in /proc/[0-9]*/cmdline; do read -r line < $f; case $line in sleep60*) echo left;; esac; done 2>/dev/null"
)


@pytest.fixture(params=["docker", "apptainer"])
async def box(request: pytest.FixtureRequest) -> AsyncIterator[AsyncSandbox]:
    variable = f"NEMO_GYM_TEST_{request.param.upper()}"
    if not (image := os.environ.get(f"{variable}_IMAGE")):
        pytest.skip(f"{variable}_IMAGE names no image")
    options = {"executable": os.environ.get(variable)}
    spec = SandboxSpec(image=image, workdir="/tmp/app", env={"A": "1"}, files={"/tmp/app/hello.txt": "hi"})
    async with AsyncSandbox({request.param: options}, spec) as made:
        yield await made.start()


async def said(box: AsyncSandbox, command: str, **options: Any) -> str:
    result = await box.exec(command, **options)
    assert result.return_code == 0, result
    return (result.stdout or "").strip()


async def test_commands_files_environment_and_network(box: AsyncSandbox, tmp_path: Path) -> None:
    assert await said(box, "pwd; echo $A $B; cat hello.txt", env={"B": "2"}) == "/tmp/app\n1 2\nhi"
    assert await said(box, "grep -c : /proc/net/dev") == "1"  # loopback
    assert (await box.exec("echo e >&2; exit 5")).return_code == 5
    (tmp_path / "up").write_bytes(bytes(range(256)) * 8000)
    await box.upload(tmp_path / "up", "/tmp/app/a b/up")
    await box.download("/tmp/app/a b/up", tmp_path / "down")
    assert (tmp_path / "down").read_bytes() == (tmp_path / "up").read_bytes()


async def test_a_link_to_a_file_of_the_host_gives_nothing(box: AsyncSandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    await said(box, f"ln -s {tmp_path}/secret link; ls -l link")
    with pytest.raises(SandboxError, match="Downloading"):
        await box.download("/tmp/app/link", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


async def test_a_command_that_is_given_up_ends_with_all_it_started(box: AsyncSandbox) -> None:
    result = await box.exec("echo begun; sleep 600 & sh -c 'sleep 600; true'", timeout_s=2)
    assert (result.stdout, result.error_type) == ("begun\n", "timeout")
    running = asyncio.create_task(box.exec("sleep 600"))
    await asyncio.sleep(1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await said(box, LEFT) == ""


async def test_a_sandbox_that_was_stopped_says_so(box: AsyncSandbox) -> None:
    await box.provider.close(box.handle)
    assert (await box.exec("true")).error_type == "sandbox"
    assert await box.status() == "stopped"

"""Container engines: the commands that are run, against a stand-in for the engine that runs them on this machine."""

import asyncio
import json
import secrets
import stat
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.sandbox.containers import OUTPUT_BYTES, ApptainerProvider, DockerProvider
from nemo_gym.sandbox.contract import (
    SandboxCreateError,
    SandboxCreateVerificationError,
    SandboxError,
    SandboxHandle,
    SandboxResources,
    SandboxSpec,
    SandboxUnavailableError,
)
from tests.sandbox.providers import LONGER_AND_LONGER, processes_with, until

STAND_IN = """#!/usr/bin/env python3
import json, os, subprocess, sys
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(arguments) + "\\n")
if arguments[:1] == ["inspect"]:
    print("running")
elif arguments[:1] == ["port"]:
    print("127.0.0.1:4242")
elif arguments[:2] == ["instance", "list"]:
    print("INSTANCE", arguments[2])
elif arguments[:1] == ["exec"]:
    at = next(n for n, word in enumerate(arguments) if "nemo-gym-" in word)
    sys.exit(subprocess.run(arguments[at + 1:], start_new_session=True).returncode)
elif arguments[-1] == "broken" or "broken" in arguments:
    sys.exit("no such image")
"""


class Engine:
    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        self.path = folder / "engine"
        self.path.write_text(STAND_IN.format(log=str(self._log)))
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def call(self, name: str) -> list[str]:
        return next(call for call in self.calls() if call[0] == name)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


def options(engine: Engine, **more: Any) -> dict[str, Any]:
    return {"executable": str(engine.path), **more}


def follows(call: list[str], *words: str) -> bool:
    """True if the words stand in the command one after the other."""
    return any(tuple(call[at : at + len(words)]) == words for at in range(len(call)))


async def test_docker_runs_a_container_without_network_and_privileges(engine: Engine, tmp_path: Path) -> None:
    docker = DockerProvider(**options(engine))
    spec = SandboxSpec(
        image="python:3.12",
        workdir="/app",
        env={"A": "1"},
        ports=(80,),
        resources=SandboxResources(cpu=2, memory_mib=512, gpu=1),
    )
    handle = await docker.create(spec)
    run = engine.call("run")
    for words in (
        *(("--network", "none"), ("--cap-drop", "ALL"), ("--security-opt", "no-new-privileges"), ("--init",)),
        *(("--pids-limit", "512"), ("--cpus", "2"), ("--memory", "512m"), ("--memory-swap", "512m"), ("--gpus", "1")),
        *(("--workdir", "/app"), ("--env", "A=1"), ("--publish", "127.0.0.1::80"), ("--name", handle.sandbox_id)),
        ("--entrypoint", "/bin/sh", "python:3.12", "-c"),
    ):
        assert follows(run, *words), words
    result = await docker.exec(handle, "echo $((1+1)); echo e >&2; exit 5", cwd="/app", env={"B": "2"}, user="root")
    assert (result.stdout, result.stderr, result.return_code) == ("2\n", "e\n", 5)
    call = engine.call("exec")
    assert follows(call, "--workdir", "/app")
    assert follows(call, "--env", "B=2", "--user", "root", handle.raw)
    assert (await docker.endpoint(handle, 80)).endpoint == "http://127.0.0.1:4242"
    assert await docker.status(handle) == "running"
    await docker.close(handle)
    assert ["rm", "--force", "--volumes", handle.raw] in engine.calls()


@pytest.mark.parametrize("ends", ["late", "cancelled"])
async def test_a_command_that_is_given_up_ends_with_all_it_started(engine: Engine, ends: str) -> None:
    docker = DockerProvider(**options(engine))
    handle = await docker.create(SandboxSpec(image="i"))
    token = f"600.{secrets.randbelow(10**9)}"
    command = f"echo begun; sleep {token} & sh -c 'sleep {token}; true'"
    if ends == "late":
        for timeout_s in LONGER_AND_LONGER:
            result = await docker.exec(handle, command, timeout_s=timeout_s)
            assert (result.return_code, result.error_type) == (125, "timeout")
            if result.stdout:
                break
        assert result.stdout == "begun\n"
    else:
        running = asyncio.create_task(docker.exec(handle, command))
        await until(lambda: len(processes_with(token)) == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await until(lambda: not processes_with(token))


async def test_a_download_is_a_regular_file_whole_or_refused(engine: Engine, tmp_path: Path) -> None:
    docker = DockerProvider(**options(engine))
    handle = await docker.create(SandboxSpec(image="i"))
    inside, local = tmp_path / "in side", tmp_path / "local"
    local.write_bytes(b"x" * (OUTPUT_BYTES + 1))
    await docker.upload_file(handle, local, f"{inside}/large")
    (inside / "link").symlink_to(inside / "large")
    (inside / "dangling").symlink_to("/nowhere")
    await docker.download_file(handle, f"{inside}/link", tmp_path / "copy")
    assert not (tmp_path / "copy").is_symlink()
    assert (tmp_path / "copy").read_bytes() == local.read_bytes()
    for bad in ("dangling", "."):
        with pytest.raises(SandboxError, match="Downloading"):
            await docker.download_file(handle, f"{inside}/{bad}", tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


async def test_a_container_that_is_gone_is_no_failure_of_the_command(engine: Engine) -> None:
    docker = DockerProvider(**options(engine))
    handle = SandboxHandle("x", "docker", "nemo-gym-x")
    result = await docker.exec(handle, "echo 'Error: No such container: nemo-gym-x' >&2; exit 1")
    assert (result.return_code, result.error_type) == (125, "sandbox")


async def test_docker_obeys_its_options(engine: Engine) -> None:
    create = {"network": "bridge", "read_only": True, "use_init": False, "cap_drop": [], "extra_run_args": ["--rm"]}
    docker = DockerProvider(**options(engine, create={**create, "apply_resource_limits": False, "pids_limit": None}))
    run = docker.start_arguments(
        "n", SandboxSpec(image="i", resources=SandboxResources(cpu=1), entrypoint=["/x", "y"])
    )
    assert run == [
        *("run", "--detach", "--name", "n", "--network", "bridge", "--read-only"),
        *("--security-opt", "no-new-privileges", "--rm", "--entrypoint", "/x", "i", "y"),
    ]
    with pytest.raises(ValueError, match="nope"):
        DockerProvider(**options(engine, create={"nope": 1}))


async def test_a_container_that_does_not_start_is_removed(engine: Engine) -> None:
    docker = DockerProvider(**options(engine))
    with pytest.raises(SandboxCreateError, match="no such image"):
        await docker.create(SandboxSpec(image="broken"))
    assert engine.calls()[-1][0] == "rm"
    with pytest.raises(SandboxCreateError, match="needs an image"):
        await docker.create(SandboxSpec())


async def test_a_probe_must_give_what_is_expected(engine: Engine) -> None:
    probe = {"command": "echo ready", "expected_stdout": "ready", "stable_count": 2}
    docker = DockerProvider(**options(engine, probe=probe))
    await docker.create(SandboxSpec(image="i"))
    assert sum(call[0] == "exec" for call in engine.calls()) == 2
    await docker.aclose()
    never = DockerProvider(**options(engine, probe={"command": "false", "deadline_s": 0.1}))
    with pytest.raises(SandboxCreateVerificationError, match="false"):
        await never.create(SandboxSpec(image="i"))


async def test_apptainer_starts_an_instance_that_shares_nothing(engine: Engine, tmp_path: Path) -> None:
    apptainer = ApptainerProvider(**options(engine, exec={"default_binds": ["/data"]}))
    spec = SandboxSpec(image="x.sif", env={"A": "1"}, resources=SandboxResources(cpu=1), workdir=str(tmp_path / "w"))
    handle = await apptainer.create(spec)
    assert (tmp_path / "w").is_dir()
    start = engine.call("instance")
    for words in (("--containall", "--no-home", "--cleanenv"), ("--net", "--network", "none"), ("--bind", "/data")):
        assert follows(start, *words)
    assert start[-2:] == ["x.sif", handle.raw]
    result = await apptainer.exec(handle, "echo hi", cwd="/app", user="root")
    assert result.stdout == "hi\n"
    call = engine.calls()[-1]
    assert follows(call, "--fakeroot", "--pwd", "/app", "--env", "A=1", f"instance://{handle.raw}")
    (tmp_path / "f").write_text("up")
    await apptainer.upload_file(handle, tmp_path / "f", str(tmp_path / "in/there"))
    await apptainer.download_file(handle, str(tmp_path / "in/there"), tmp_path / "back")
    assert (tmp_path / "back").read_text() == "up"
    assert await apptainer.status(handle) == "running"
    await apptainer.aclose()
    assert engine.calls()[-1] == ["instance", "stop", handle.raw]


def test_an_engine_that_is_not_installed_is_named() -> None:
    with pytest.raises(SandboxUnavailableError, match="no-such-engine"):
        DockerProvider(executable="no-such-engine")

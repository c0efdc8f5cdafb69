"""The public names: specs, AsyncSandbox, Sandbox, the registry and provider blocks."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import nemo_gym.sandbox as public
from nemo_gym.sandbox import (
    AsyncSandbox,
    Sandbox,
    SandboxCreateError,
    SandboxEndpoint,
    SandboxExecResult,
    SandboxHandle,
    SandboxPtyError,
    SandboxResources,
    SandboxSpec,
    SandboxStatus,
    SandboxUnavailableError,
    create_provider,
    get_provider_class,
    list_providers,
    register_provider,
    resolve_provider_config,
    resolve_provider_metadata,
    rewrite_image,
)
from tests.sandbox.providers import provider

NAMES = [
    *("AsyncSandbox", "Sandbox", "SandboxSpec", "SandboxResources", "SandboxExecResult", "ExecResult"),
    *("SandboxHandle", "SandboxEndpoint", "SandboxStatus", "SandboxCreateError", "SandboxCreateVerificationError"),
    *("SandboxPtyError", "create_provider", "get_provider_class", "register_provider", "list_providers"),
    *("resolve_provider_config", "resolve_provider_metadata", "rewrite_image"),
]


def test_every_public_name_is_there() -> None:
    assert all(getattr(public, name) for name in NAMES)
    with pytest.raises(AttributeError):
        _ = public.nothing
    for error in (public.SandboxCreateError, public.SandboxPtyError):
        assert issubclass(error, RuntimeError)
    assert issubclass(public.SandboxCreateVerificationError, public.SandboxCreateError)


def test_resources_refuse_keys_nobody_knows() -> None:
    assert SandboxResources.from_mapping({"cpu": 2, "memory_mib": 512}).memory_mib == 512
    with pytest.raises(ValueError, match="ram"):
        SandboxResources.from_mapping({"ram": 1})


def test_a_spec_converts_resources_and_ports() -> None:
    resources: Any = {"cpu": 1.5}
    ports: Any = ["8080", 9000]
    spec = SandboxSpec(resources=resources, ports=ports)
    assert (spec.resources.cpu, spec.ports) == (1.5, (8080, 9000))


@pytest.mark.parametrize("ports", [[0], [65536], [True], ["x"], ["80", 80], [1.5]])
def test_a_spec_refuses_what_is_no_port(ports: Any) -> None:
    with pytest.raises(ValueError, match=r"port"):
        SandboxSpec(ports=ports)


def test_an_endpoint_is_an_absolute_url() -> None:
    assert SandboxEndpoint("http://127.0.0.1:80").headers == {}
    with pytest.raises(ValueError, match="absolute"):
        SandboxEndpoint("127.0.0.1:80")


async def test_a_sandbox_lives_from_start_to_stop(tmp_path: Path) -> None:
    provider("bubblewrap")
    (tmp_path / "local").write_text("up")
    async with AsyncSandbox({"bubblewrap": {}}, SandboxSpec(workdir="/app", files={"/app/a/hello.txt": "hi"})) as box:
        with pytest.raises(RuntimeError, match="Sandbox has not been started"):
            await box.exec("true")
        assert await box.start() is box
        assert (await box.exec("cat a/hello.txt; pwd")).stdout == "hi/app\n"
        await box.upload(tmp_path / "local", "/app/remote")
        await box.exec("tr a-z A-Z < remote > louder")
        await box.download("/app/louder", tmp_path / "down")
        assert (tmp_path / "down").read_text() == "UP"
        assert await box.status() == SandboxStatus.RUNNING
        timed_out = await box.exec("sleep 9", timeout_s=0.2)
        assert (timed_out.return_code, timed_out.error_type) == (125, "timeout")
        other = await box.exec("true", user="root")
        assert (other.return_code, other.error_type) == (125, "sandbox")
        with pytest.raises(RuntimeError, match="started before"):
            await box.start()
        with pytest.raises(ValueError, match="not among"):
            await box.endpoint(80)
        with pytest.raises(SandboxPtyError):
            await box.pty.create()
        with pytest.raises(NotImplementedError):
            await box.serialize()
    await box.stop()
    with pytest.raises(RuntimeError, match="started before"):
        await box.start()


async def test_a_sandbox_without_a_spec_is_refused() -> None:
    with pytest.raises(ValueError, match="No spec"):
        await AsyncSandbox({"bubblewrap": {}}).start()


async def test_a_start_that_fails_leaves_nothing() -> None:
    made = provider("bubblewrap")
    with pytest.raises(public.SandboxError):
        await AsyncSandbox(made, SandboxSpec(files={"/usr/refused": "x"})).start()
    assert made._sandboxes == set()


def test_the_blocking_form_does_the_same(tmp_path: Path) -> None:
    provider("bubblewrap")
    with Sandbox({"bubblewrap": {}}, SandboxSpec()) as box:
        box.start()
        assert box.exec("echo $((6 * 7))").stdout == "42\n"
        (tmp_path / "a").write_text("x")
        box.upload(tmp_path / "a", "b")
        box.download("b", tmp_path / "c")
        assert (tmp_path / "c").read_text() == "x"
        assert box.status() == "running"
    box.stop()


def test_a_blocking_sandbox_that_cannot_start_ends_its_thread() -> None:
    provider("bubblewrap")
    box = Sandbox({"bubblewrap": {}})
    with pytest.raises(SandboxCreateError):
        box.start(SandboxSpec(image="x"))
    assert not box._thread.is_alive()


def test_the_blocking_form_refuses_a_running_loop() -> None:
    provider("bubblewrap")
    box = Sandbox({"bubblewrap": {}}, SandboxSpec())

    async def call() -> None:
        with pytest.raises(RuntimeError, match="AsyncSandbox"):
            box.start()

    asyncio.run(call())
    box.stop()


class EchoProvider:
    """A provider of somebody else's."""

    name = "echo"

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        return SandboxHandle("1", self.name)

    async def exec(self, handle: SandboxHandle, command: str, **_options: Any) -> SandboxExecResult:
        return SandboxExecResult(command, "", 0)

    async def upload_file(self, handle: SandboxHandle, local: Path, remote: str) -> None: ...

    async def download_file(self, handle: SandboxHandle, remote: str, local: Path) -> None: ...

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        return SandboxStatus.RUNNING

    async def endpoint(self, handle: SandboxHandle, port: int) -> SandboxEndpoint:
        return SandboxEndpoint(f"http://127.0.0.1:{port}")

    async def serialize_handle(self, handle: SandboxHandle, scope: str | None) -> dict[str, Any]:
        return {"id": handle.sandbox_id, "scope": scope}

    async def connect(self, descriptor: dict[str, Any]) -> SandboxHandle:
        return SandboxHandle(descriptor["id"], self.name)

    async def close(self, handle: SandboxHandle) -> None: ...

    async def aclose(self) -> None: ...


async def test_a_provider_can_be_registered() -> None:
    register_provider("echo", EchoProvider, override=True)
    assert "echo" in list_providers()
    with pytest.raises(ValueError, match="already"):
        register_provider("echo", EchoProvider)
    box = await AsyncSandbox({"echo": {}}, SandboxSpec(ports=(80,))).start()
    assert (await box.exec("hello")).stdout == "hello"
    assert (await box.endpoint(80)).endpoint == "http://127.0.0.1:80"
    again = await AsyncSandbox.connect(await box.serialize("run"), provider={"echo": {}})
    assert (await again.exec("again")).stdout == "again"


def test_a_provider_nobody_knows_is_refused_with_the_names() -> None:
    with pytest.raises(ValueError, match=r"no sandbox provider 'nope'.*bubblewrap"):
        get_provider_class("nope")
    assert get_provider_class("daytona")  # servers of the public package look it up when they are configured
    with pytest.raises(SandboxUnavailableError, match="not part of this package"):
        create_provider({"daytona": {}})
    with pytest.raises(ValueError, match="Expected one sandbox provider"):
        create_provider({"docker": {}, "apptainer": {}})


def test_auto_never_means_unconfined() -> None:
    provider("bubblewrap")
    assert create_provider({"auto": None}).name == "bubblewrap"


def test_a_block_is_named_or_given() -> None:
    named = {"boxes": {"docker": {"create": {}}, "default_metadata": {"team": "a"}}, "two": {"docker": {}, "auto": {}}}
    assert resolve_provider_config("boxes", named) == {"docker": {"create": {}}}
    assert resolve_provider_config({"auto": None}) == {"auto": {}}
    assert resolve_provider_metadata("boxes", named) == {"team": "a"}
    assert resolve_provider_metadata({"auto": None}) == {}
    with pytest.raises(ValueError, match=r"'bosex'.*boxes, two"):
        resolve_provider_config("bosex", named)
    with pytest.raises(ValueError, match="exactly one"):
        resolve_provider_config("two", named)
    with pytest.raises(TypeError, match="int"):
        resolve_provider_config(3)


def test_the_first_matching_prefix_of_an_image_is_rewritten() -> None:
    rewrites = [{"from": "docker.io/", "to": "mirror/"}, {"from": "docker.io/x", "to": "no"}]
    assert rewrite_image("docker.io/x:1", rewrites) == "mirror/x:1"
    assert rewrite_image("other", rewrites) == "other"
    assert rewrite_image(None, rewrites) is None


async def test_sandboxes_cancelled_while_they_start_are_closed() -> None:
    """Many at once: the next sandbox takes the descriptor that one closes, which no transport may use any more."""
    made = get_provider_class("unconfined")()
    for step in range(20):
        starting = [asyncio.create_task(made.open()) for _ in range(6)]
        for _ in range(step):
            await asyncio.sleep(0)
        for task in reversed(starting):
            task.cancel()
        outcomes = await asyncio.gather(*starting, return_exceptions=True)
        errors = [
            one for one in outcomes if isinstance(one, BaseException)
        ]  # some may be up before they are cancelled
        assert [one for one in errors if not isinstance(one, asyncio.CancelledError)] == []
    await made.aclose()

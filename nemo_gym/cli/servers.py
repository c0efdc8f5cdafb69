"""Start servers, show their status, stop them."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pprint import pformat

import orjson
from omegaconf import DictConfig

from nemo_gym.cli.command import command, read_command_line
from nemo_gym.client.head import base_url, get_from_head, run_token, run_token_file
from nemo_gym.common.redaction import one_line
from nemo_gym.config.loading import GlobalConfigDictParser, GlobalConfigDictParserConfig
from nemo_gym.config.types import BaseNeMoGymCLIConfig, BaseServerConfig
from nemo_gym.errors import GymError, HeadServerError, StartupError
from nemo_gym.runtime.head_server import ServerInstanceDisplayConfig
from nemo_gym.runtime.launcher import Launcher
from nemo_gym.runtime.run_identity import check_run_identity

START_TIMEOUT_S = 3600.0
"""A server's virtualenv may have to be made first."""
STOP_TIMEOUT_S = 30.0
POLL_EVERY_S = 1.0
PROBE_TIMEOUT_S = 2.0


class RunConfig(BaseNeMoGymCLIConfig):
    """Start the servers of a configuration and keep them running until Ctrl+C.

    Examples:

    ```bash
    config_paths="resources_servers/example_simple_weather/configs/simple_weather.yaml,\\
    responses_api_models/openai_model/configs/openai_model.yaml"
    ng_run "+config_paths=[${config_paths}]"
    ```
    """

    config_paths: list[str] | None = None
    """YAML files that define the servers to start."""

    entrypoint: str | None = None
    """Not used. Accepted so that it may be set in env.yaml."""

    name: str | None = None
    """Not used. Accepted so that it may be set in env.yaml."""


class RunHelper:
    """The servers of a configuration, for programs: `start` returns when they are ready. They run in processes of
    their own; a thread of this process supervises them."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._ready: Future[Launcher] = Future()
        self._ended: Future[None] = Future()
        self._cancel: Callable[[], object] | None = None
        """Stops the thread's work, from any thread. Called once: a second call would interrupt the cleanup."""

    def start(self, global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None) -> None:
        """Start all servers and wait until they are healthy. If one cannot start, none is left running."""
        options = global_config_dict_parser_config or GlobalConfigDictParserConfig()
        self.start_config(GlobalConfigDictParser().parse(options.model_copy(update={"fill_ports": False})))

    def start_config(self, config: DictConfig) -> None:
        """As `start`, with a configuration that is already read."""
        self._thread = threading.Thread(target=self._run_thread, args=(config,), name="nemo-gym-launcher", daemon=True)
        self._thread.start()
        try:
            self._ready.result(START_TIMEOUT_S)
        except BaseException:
            self.shutdown()
            raise

    def poll(self) -> None:
        """Raise if a worker was given up. One that died and is being restarted was not."""
        if self._ended.done():
            self._ended.result()

    def run_forever(self) -> None:
        """Wait until a worker is given up or somebody interrupts, then stop everything."""
        try:
            while not self._ended.done():
                time.sleep(POLL_EVERY_S)
            self.poll()
        except KeyboardInterrupt:
            print("Stopping the servers ...", file=sys.stderr)
        finally:
            self.shutdown()

    def shutdown(self) -> None:
        """Stop all servers. Does nothing if they are stopped."""
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                cancel()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def wait_for_spinup(self) -> None:
        """Does nothing: `start` has waited."""

    def check_http_server_statuses(self) -> list[tuple[str, str]]:
        """The name and health of each server."""
        return list(self._ready.result().health().items())

    def instances(self) -> list[ServerInstanceDisplayConfig]:
        """The servers, as `ng_status` shows them."""
        return self._ready.result().running()

    def display_server_instance_info(self) -> None:
        """Print the servers and where they listen."""
        print("\nServer Instances")
        for number, instance in enumerate(self.instances(), 1):
            print(f"[{number}] {instance.process_name} ({instance.server_type}/{instance.name})")
            print(pformat(instance.model_dump(exclude_none=True), sort_dicts=False))

    def _run_thread(self, config: DictConfig) -> None:
        try:
            asyncio.run(self._run_until_cancelled(config))
            self._ended.set_result(None)
        except BaseException as error:
            self._ended.set_exception(error)
        if not self._ready.done():
            stopped = StartupError("The servers were stopped before they were ready.")
            self._ready.set_exception(self._ended.exception() or stopped)

    async def _run_until_cancelled(self, config: DictConfig) -> None:
        running = asyncio.create_task(self._launch(config))
        self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running

    async def _launch(self, config: DictConfig) -> None:
        async with Launcher(config, echo=_echo) as launcher:
            with _saved_token(launcher):
                self._ready.set_result(launcher)
                await launcher.watch()


@contextlib.contextmanager
def _saved_token(launcher: Launcher) -> Iterator[None]:
    """Save the run's token in a file that only this user's commands can read."""
    if launcher.token is None:
        yield
        return
    place = run_token_file(launcher.config.head_server.port)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    place.touch(mode=0o600)
    place.chmod(0o600)
    place.write_text(launcher.token)
    try:
        yield
    finally:
        place.unlink(missing_ok=True)


def _echo(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@command(RunConfig)
def run() -> None:
    """Start the servers of a configuration and keep them running."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    helper = RunHelper()
    helper.start_config(read_command_line())
    count = len(helper.instances())
    helper.display_server_instance_info()
    print(f"\nAll {count} / {count} servers ready! Stop them with Ctrl+C, or `ng_stop` from elsewhere.", flush=True)
    helper.run_forever()
    print("NeMo Gym finished!")


def _interrupt(_number: int, _frame: object) -> None:
    """Handle SIGTERM like Ctrl+C, and SIGINT too: a shell starts background processes with it ignored."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


class StatusConfig(BaseNeMoGymCLIConfig):
    """Show the servers of the run whose head server is at head_server.host and head_server.port."""


@command(StatusConfig)
def status() -> None:
    """Show the servers and their health. The exit code is 1 if a server is unhealthy or there is no run."""
    try:
        instances = running_servers(_head())
    except HeadServerError as error:
        print(f"{error}\nStart servers with `ng_run`.")
        sys.exit(1)
    display_status(instances)
    if any(instance.status != "success" for instance in instances):
        sys.exit(1)


def running_servers(head: BaseServerConfig) -> list[ServerInstanceDisplayConfig]:
    """The servers of the run, each with the result of a health check."""
    raw = get_from_head(base_url(head.host, head.port), "/server_instances", token=run_token(head.port))
    return [_with_status(ServerInstanceDisplayConfig.model_validate(item), head) for item in orjson.loads(raw)]


def _with_status(instance: ServerInstanceDisplayConfig, head: BaseServerConfig) -> ServerInstanceDisplayConfig:
    try:
        get_from_head(instance.url or "", "/health", token=run_token(head.port), timeout_s=PROBE_TIMEOUT_S)
    except HeadServerError as error:
        instance.status = "timeout" if isinstance(error.__cause__, TimeoutError) else "connection_error"
    else:
        instance.status = "success"
    instance.uptime_seconds = time.time() - instance.start_time if instance.start_time else None
    return instance


def display_status(instances: list[ServerInstanceDisplayConfig]) -> None:
    """Print servers as `ng_status` does."""
    if not instances:
        print("No NeMo Gym servers found running.")
        return
    print("NeMo Gym Server Status:\n")
    for number, instance in enumerate(instances, 1):
        mark = "✓" if instance.status == "success" else "✗"
        print(one_line(f"[{number}] {mark} {instance.process_name} ({instance.server_type}/{instance.name})"))
        shown = instance.model_dump(include={"server_type", "name", "port", "pid"})
        print(pformat({**shown, "uptime_seconds": _as_uptime(instance.uptime_seconds)}, sort_dicts=False))
    healthy = sum(instance.status == "success" for instance in instances)
    print(f"\n{len(instances)} servers found ({healthy} healthy, {len(instances) - healthy} unhealthy)")


def _as_uptime(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{int(days)}d {int(hours)}h {int(minutes)}m {rest:.1f}s"


class StopConfig(BaseNeMoGymCLIConfig):
    """Stop the run whose head server is at head_server.host and head_server.port."""


@command(StopConfig)
def stop() -> None:
    """Stop a run, as Ctrl+C in its terminal would. Only a process that is verifiably the run is signalled."""
    head = _head()
    url = base_url(head.host, head.port)
    pid = check_run_identity(orjson.loads(get_from_head(url, "/run", token=run_token(head.port))))
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    with contextlib.suppress(HeadServerError):
        while time.monotonic() < deadline:
            get_from_head(url, "/health", timeout_s=PROBE_TIMEOUT_S)
            time.sleep(0.1)
        raise GymError(f"The run (process {pid}) has not stopped after {STOP_TIMEOUT_S:g} s.")
    print(f"Stopped the run (process {pid}).")


def _head() -> BaseServerConfig:
    return BaseServerConfig.model_validate(dict(read_command_line().head_server))

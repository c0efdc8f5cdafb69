"""Start servers, show their status, stop them; and start a worker that joins them from another machine."""

import asyncio
import contextlib
import os
import pwd
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from pprint import pformat
from typing import Any, ClassVar

import orjson
from omegaconf import DictConfig, OmegaConf
from pydantic import Field

from nemo_gym.cli.command import config_command, flush_result, print_result, wants_json
from nemo_gym.client.head import base_url, get_from_head, run_token, run_token_file
from nemo_gym.common import event_loop
from nemo_gym.common.interrupts import say_stopping
from nemo_gym.common.redaction import one_line
from nemo_gym.compat.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig
from nemo_gym.config.loading import server_instances
from nemo_gym.config.types import BaseServerConfig, CommandConfig, NumWorkers, Port
from nemo_gym.errors import GymError, HeadServerError, NoServerInstancesError, StartupError
from nemo_gym.runtime.class_loader import grouped
from nemo_gym.runtime.head_server import ServerInstanceDisplayConfig, check_run_identity, is_running, run_identity
from nemo_gym.runtime.launcher import Launcher, default_echo
from nemo_gym.runtime.membership import WorkerPlan, join_and_serve, plan_worker, token_of
from nemo_gym.runtime.requirements import VenvSettings
from nemo_gym.server.uvicorn_runner import bind, set_by_signals

START_TIMEOUT_S = 3600.0
"""A server's virtualenv may have to be made first."""
STOP_TIMEOUT_S = 30.0
POLL_EVERY_S = 1.0
PROBE_TIMEOUT_S = 2.0
HUNG_AFTER_S = 30.0
CHECK_EVERY_S = 1.0
REQUEST_TIMEOUT_S = 2.0


class RunConfig(CommandConfig):
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

    num_workers: NumWorkers = None
    """Number of worker processes, each with all servers that can share one. `auto`: one per core. Default: 1."""

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
        config = GlobalConfigDictParser().parse(options.model_copy(update={"fill_ports": False}))
        if config.get("dry_run"):
            prepare_environments(config)
        else:
            self.start_config(config)

    def start_config(self, config: DictConfig) -> None:
        """Run `start` with a configuration that is already read."""
        if not server_instances(config):
            raise NoServerInstancesError(
                "The configuration has no server. Name the files that define them: "
                "--config-paths resources_servers/mcqa/configs/mcqa.yaml"
            )
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
            say_stopping()
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

    @property
    def head_server_config(self) -> BaseServerConfig:
        """Return the address of the head server, for `RolloutCollectionHelper` and `ServerClient`."""
        head = self._ready.result().config.head_server
        return BaseServerConfig(host=head.host, port=head.port)

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
        async with Launcher(config, echo=default_echo) as launcher:
            with _saved_token(launcher):
                self._ready.set_result(launcher)
                await launcher.watch()


def prepare_environments(config: DictConfig) -> list[str]:
    """Make the virtualenvs that the servers need, and start nothing. The interpreters, one a worker."""
    settings: Any = OmegaConf.to_container(config, resolve=True)
    return [group.python for group in grouped(server_instances(config), VenvSettings.of(settings))]


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


@config_command(RunConfig)
def run(_options: RunConfig, config: DictConfig) -> None:
    """Start the servers of a configuration and keep them running."""
    if config.get("dry_run"):
        print(f"Dry run: the environments of {len(prepare_environments(config))} workers are ready.")
        return
    helper = RunHelper()
    helper.start_config(config)
    count = len(helper.instances())
    helper.display_server_instance_info()
    print(f"\nAll {count} / {count} servers ready! Stop them with Ctrl+C, or `ng_stop` from elsewhere.", flush=True)
    if wants_json():
        print_result({"servers": [each.model_dump(exclude_none=True) for each in helper.instances()]})
        flush_result()
    helper.run_forever()
    print("NeMo Gym finished!")


class StatusConfig(CommandConfig):
    """Show the servers of the run whose head server is at head_server.host and head_server.port.

    With --watch, show them again and again with the collections in progress: rollouts in flight by stage and age,
    throughput, reward so far, failures by cause, the slowest rollouts, and the load of the workers.
    """

    watch: bool = False
    """Update until Ctrl+C."""

    every_s: float = Field(default=2.0, gt=0)
    """With watch: seconds between two updates."""


@config_command(StatusConfig)
def status(options: StatusConfig, config: DictConfig) -> None:
    """Show the servers and their health. The exit code is 1 if a server is unhealthy or there is no run."""
    head = _head_of(config)
    if options.watch:
        from nemo_gym.cli.view import watch  # what it needs takes longer to import than the servers to start

        watch(partial(_server_lines, head), every_s=options.every_s)
    try:
        instances = running_servers(head)
    except HeadServerError as error:
        if not _show_collections():
            print(f"{error}\nStart servers with `ng_run`.")
            sys.exit(1)
        return
    if wants_json():
        print_result({"servers": [each.model_dump(exclude_none=True) for each in instances]})
    else:
        display_status(instances)
    if any(instance.status != "success" for instance in instances):
        sys.exit(1)


def _show_collections() -> bool:
    """Print the collections in progress, which have servers of their own. False if there is none."""
    from nemo_gym.cli.view import live_lines, live_runs

    runs = live_runs()
    if runs:
        print_result({"collections": runs}, "\n".join(map(one_line, live_lines(runs))))
    return bool(runs)


def _server_lines(head: BaseServerConfig) -> list[str]:
    try:
        found = running_servers(head)
    except HeadServerError:
        return ["No servers of `ng_run` at this head_server."]
    return [f"{each.process_name}: {each.status}, port {each.port}, process {each.pid}" for each in found]


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


class StopConfig(CommandConfig):
    """Stop the run whose head server is at head_server.host and head_server.port.

    Asks first if the run was started from another terminal.
    """

    SHORT_OPTIONS: ClassVar[dict[str, str]] = {"y": "yes"}

    yes: bool = False
    """Do not ask."""


@config_command(StopConfig)
def stop(options: StopConfig, config: DictConfig) -> None:
    """Stop a run, as Ctrl+C in its terminal would. Only a process that is verifiably the run is signalled."""
    head = _head_of(config)
    url = base_url(head.host, head.port)
    reported = orjson.loads(get_from_head(url, "/run", token=run_token(head.port)))
    pid = check_run_identity(reported)
    name = describe_run(head, pid, started_at=reported.get("started_at"))
    if not (options.yes or os.getsid(pid) == os.getsid(0)):
        _ask(name)
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while is_running(reported):
        if time.monotonic() > deadline:
            raise GymError(f"The run (process {pid}) has not stopped after {STOP_TIMEOUT_S:g} s.")
        time.sleep(0.05)
    print(f"Stopped {name}.")


def describe_run(head: BaseServerConfig, pid: int, *, started_at: float | None) -> str:
    """Describe a run: its servers, start time and owner. A run that cannot be named is an error."""
    url, token = base_url(head.host, head.port), run_token(head.port)
    config = OmegaConf.create(orjson.loads(get_from_head(url, "/global_config_dict_yaml", token=token)))
    instances = orjson.loads(get_from_head(url, "/server_instances", token=token))
    paths = [Path(path).name for path in config.get("config_paths") or ()] if isinstance(config, DictConfig) else []
    what = ", ".join(paths) or ", ".join(str(each.get("process_name")) for each in instances)
    if not what:
        raise GymError(f"The run at {url} has no servers to name it by. Nothing was signalled.")
    since = f", started {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(started_at))}" if started_at else ""
    return one_line(f"the run of {what}{since} by {_owner(pid)} (process {pid})")


def _owner(pid: int) -> str:
    user = run_identity(pid)["user"]
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _ask(name: str) -> None:
    """Raise unless the user says yes."""
    if not sys.stdin.isatty():
        raise GymError(f"This is {name}, from another terminal. To stop it, pass --yes.")
    print(f"This is {name}, from another terminal. Stop it? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise GymError("Nothing was stopped.")


def _head_of(config: DictConfig) -> BaseServerConfig:
    return BaseServerConfig.model_validate(dict(config.head_server))


# A worker on another machine


class WorkerConfig(CommandConfig):
    """Start a worker on this machine and let it join a run: it holds all servers of the configuration, and collectors
    send it rows.

    Give it the same configuration as `ng_run`, the address of the run's head server, and the run's token in
    NEMO_GYM_RUN_TOKEN. A worker with other settings or code is refused. SIGTERM drains it: it gets no more rows, and
    finishes those in flight.
    """

    config_paths: list[str] | None = None
    """YAML files that define the servers, as for `ng_run`."""

    worker_host: str | None = None
    """The address that this worker listens on, and by which the run reaches it. Default: default_host."""

    worker_port: Port = 0
    """Port for HTTP requests to its servers. Default: any."""

    worker_rows_port: Port = 0
    """Port for rows of collectors. Default: any."""

    health_port: Port | None = None
    """Answer GET /health on this port, from a thread of its own."""

    drain_timeout_s: float = Field(default=30.0, ge=0)
    """Seconds that rollouts in flight get to finish after SIGTERM."""


@config_command(WorkerConfig)
def worker(options: WorkerConfig, config: DictConfig) -> None:
    """Start a worker that joins a run."""
    plan = plan_worker(
        config,
        token=token_of(config),
        host=options.worker_host,
        port=options.worker_port,
        rows_port=options.worker_rows_port,
    )
    event_loop.run(_serve_worker(plan, options))


async def _serve_worker(plan: WorkerPlan, options: WorkerConfig) -> None:
    from nemo_gym.rollouts.worker import serve  # takes long to import, and the other commands do not need it

    stop = set_by_signals()
    with contextlib.ExitStack() as opened:
        if options.health_port is not None:
            opened.enter_context(health_thread(bind(plan.host, options.health_port)))
        await join_and_serve(plan, partial(serve, drain_s=options.drain_timeout_s), stop, _say_joined)


def _say_joined(index: int) -> None:
    print(f"Worker {index} joined the run and is ready. Stop it with Ctrl+C.", file=sys.stderr, flush=True)


@contextlib.contextmanager
def health_thread(listening: socket.socket, *, hung_after_s: float = HUNG_AFTER_S) -> Iterator[None]:
    """Answer any request on `listening` while the block runs: 200, or 503 if the event loop has not run for long. The
    thread answers however busy the event loop is."""
    beat = _Heartbeat()
    thread = threading.Thread(
        target=_answer_health, args=(listening, beat, hung_after_s), name="nemo-gym-health", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        beat.stop()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
        listening.close()


class _Heartbeat:
    """Time at which the event loop ran last."""

    def __init__(self) -> None:
        self.last = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(CHECK_EVERY_S, self._run)

    def _run(self) -> None:
        self.last = time.monotonic()
        self._timer = self._loop.call_later(CHECK_EVERY_S, self._run)

    def stop(self) -> None:
        self._timer.cancel()


def _answer_health(listening: socket.socket, beat: _Heartbeat, hung_after_s: float) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            connection.settimeout(REQUEST_TIMEOUT_S)
            connection.recv(4096)
            connection.sendall(_health_reply(time.monotonic() - beat.last, hung_after_s))


def _health_reply(since_s: float, hung_after_s: float) -> bytes:
    status, word = ("503 Service Unavailable", "hung") if since_s > hung_after_s else ("200 OK", "ok")
    body = f'{{"status":"{word}","event_loop_ran_s_ago":{since_s:.3f}}}'.encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body

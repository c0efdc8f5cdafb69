"""`evaluate`, `aevaluate` and `collect`: rollouts of a class, an environment's name or a folder, from Python."""

import asyncio
import contextlib
import queue
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson
from omegaconf import DictConfig, OmegaConf

from nemo_gym.common import event_loop
from nemo_gym.config.keys import CONFIG_PATHS_KEY_NAME
from nemo_gym.config.loading import load_config
from nemo_gym.errors import GymError
from nemo_gym.evaluation.models import Setup, merged, model_setup, names_in_messages
from nemo_gym.evaluation.result import Evaluation, Failure, Rollout
from nemo_gym.evaluation.rows import check_rows, write_dataset
from nemo_gym.evaluation.setup import Target, dataset_of, find_target, row_validator, with_judge, with_user
from nemo_gym.rollouts.collection import Collection
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.dataset import dataset_path
from nemo_gym.rollouts.progress import Progress
from nemo_gym.rollouts.store import collated_inputs_path
from nemo_gym.rollouts.types import Outcome
from nemo_gym.server.watchdog import interruptible

T = TypeVar("T")
STOP_TIMEOUT_S = 30.0
"""How long a collection in a thread may take to end when it is interrupted."""


class TemporaryFolder:
    """A folder that is removed when this object is gone."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="nemo-gym-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class _Order:
    """An evaluation that is asked for, with its output and progress."""

    def __init__(
        self,
        target: Any,
        rows: Any,
        model: Any,
        agent: Any,
        judge: Any,
        user: Any,
        output: str | Path | None,
        progress: bool,
        **options: Any,
    ) -> None:
        self.folder = TemporaryFolder() if output is None else None
        self.output = Path(output or "") if self.folder is None else self.folder.path / "rollouts.jsonl"
        self.failures: list[Failure] = []
        self.helper = RolloutCollectionHelper()
        self.progress = Progress(self.helper, is_quiet=not progress)
        self._asked = (target, rows, model, agent, judge, user)
        self._options = options

    def prepare(self) -> Collection:
        target, rows, model, agent, judge, user = self._asked
        self.target = found = find_target(target, agent, has_user=user is not None)
        dataset = dataset_of(found, None) if rows is None else rows
        path = write_dataset(dataset, collated_inputs_path(self.output))
        options = {name: value for name, value in self._options.items() if value is not None}
        config = options.pop("config", {})
        files = {"input_jsonl_fpath": str(path), "output_jsonl_fpath": str(self.output)}
        options = {"agent_name": found.agent, **files, **options}
        return collection_of(found, model, options, config, judge=judge, user=user)

    async def run(self, on_rollout: Callable[[Rollout], None] | None = None) -> Evaluation:
        collection = await asyncio.to_thread(self.prepare)

        def report(outcome: Outcome) -> None:
            self.progress(outcome)
            if outcome.error is not None and outcome.is_final:
                self.failures.append(Failure.of(outcome))
            elif on_rollout is not None and outcome.error is None:
                on_rollout(Rollout(orjson.loads(outcome.line())))

        try:
            self.progress.start()
            metrics = await collection.run(self.helper, report)
        finally:
            self.progress.close()
        self.progress.show_failures(None if self.folder else self.output)
        messages = self.progress.messages
        return Evaluation(self.target.name, metrics, self.failures, messages, self.output, self.folder)


def collection_of(
    target: Target,
    model: Any,
    options: dict[str, Any],
    config: Mapping[str, Any],
    *,
    judge: Any = None,
    user: Any = None,
) -> Collection:
    """The collection of an environment with a model. `options` are those of `ng_collect_rollouts`, and `config` has
    further keys, as on the command line."""
    loaded, whole = config_of_evaluation(target, model, options, config, judge=judge, user=user)
    read = RolloutCollectionConfig.read(loaded)
    return Collection(loaded, read, whole.classes, whole.code, check_all_rows, names_in_messages(loaded, model))


def config_of_evaluation(
    target: Target,
    model: Any,
    options: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    judge: Any = None,
    user: Any = None,
) -> tuple[DictConfig, Setup]:
    """The configuration of an environment with a model, a judge and a simulated user, and the setup that it was made
    of."""
    whole, config = target.setup, config or {}

    def initial(given: DictConfig) -> dict[str, Any]:
        nonlocal whole
        found = with_user(with_judge(target, judge, given), user, given)
        whole = merged(found.setup, model_setup(model, given))
        paths = [*whole.config_paths, *config.get(CONFIG_PATHS_KEY_NAME, ())]
        own = {**whole.settings, **(options or {}), **({CONFIG_PATHS_KEY_NAME: paths} if paths else {})}
        more = {name: value for name, value in config.items() if name != CONFIG_PATHS_KEY_NAME}
        both: Any = OmegaConf.to_container(OmegaConf.merge(own, more))
        return both  # type: ignore[no-any-return]

    return load_config(initial=initial, fill_ports=False), whole


def check_all_rows(collection: Collection) -> None:
    """Raise an error that lists the rows which do not fit their environment."""
    options = collection.options
    if options.prompt_config is None and options.agent_name is not None:
        with interruptible():
            validator = row_validator(collection.config, options.agent_name, collection.classes)
            tolerated = options.tolerated_failures
            check_rows(dataset_path(options), validator, limit=options.limit, tolerated=tolerated)


async def aevaluate(
    target: Any,
    rows: Any = None,
    *,
    model: Any = None,
    agent: Any = None,
    judge: Any = None,
    user: Any = None,
    repeats: int = 1,
    limit: int | None = None,
    concurrency: int | None = None,
    params: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    resume: str = "ask",
    timeout_s: float | None = None,
    config: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Evaluation:
    """As `evaluate`, in the running event loop."""
    order = _order(**locals())
    try:
        return await order.run()
    except GymError as error:
        raise error.with_traceback(None) from error.__cause__  # the message says all


def evaluate(
    target: Any,
    rows: Any = None,
    *,
    model: Any = None,
    agent: Any = None,
    judge: Any = None,
    user: Any = None,
    repeats: int = 1,
    limit: int | None = None,
    concurrency: int | None = None,
    params: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    resume: str = "ask",
    timeout_s: float | None = None,
    config: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Evaluation:
    """Evaluate a model in an environment.

    `target` is a class, an environment's name, or a folder. `rows` are texts, dicts with a `prompt`, lists of
    messages, rows, a DataFrame, or the path of a JSONL file; by default the environment's own. `model` is a name, a
    base URL, `local`, `gym.Scripted([...])`, a subclass of `gym.Model`, or a function of the messages; by default the
    endpoint of env.yaml or, without one, `local`. `agent` is the name of one, `module:Class`, or a subclass of
    `gym.Agent`. `judge` is the model that judges, or a list of several, and `user` the model that plays the user: each
    may be whatever `model` may be.

    Each row is played `repeats` times. `params` override the parameters of every request, such as `temperature`.
    `timeout_s` limits one attempt at a rollout. With an `output` file the rollouts stay on disk, and the same call
    makes only what is missing; `resume` says what to do with those that were made another way. `config` has further
    keys of the configuration. In a running event loop, such as a notebook's, this works in a thread of its own.
    """
    order = _order(**locals())
    try:
        return run_anywhere(order.run())
    except GymError as error:
        raise error.with_traceback(None) from error.__cause__


def collect(target: Any, rows: Any = None, **options: Any) -> Generator[Rollout, None, None]:
    """As `evaluate`, but yield each scored rollout as it completes. Leaving the loop early ends the collection."""
    order = _order(target=target, rows=rows, **options)
    found: queue.SimpleQueue[Rollout | None] = queue.SimpleQueue()
    with _in_thread(order.run(found.put), on_end=lambda: found.put(None)) as done:
        while (rollout := found.get()) is not None:
            yield rollout
        done.result()


def _order(
    *,
    target: Any,
    rows: Any,
    model: Any = None,
    agent: Any = None,
    judge: Any = None,
    user: Any = None,
    repeats: int = 1,
    concurrency: int | None = None,
    params: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
    output: str | Path | None = None,
    progress: bool = True,
    **options: Any,
) -> _Order:
    unknown = options.keys() - {"limit", "resume", "config"}
    if unknown:
        raise TypeError(f"unexpected argument: {', '.join(sorted(unknown))}")
    options |= {"num_repeats": repeats, "num_samples_in_parallel": concurrency, "rollout_timeout_s": timeout_s}
    if params:
        options["responses_create_params"] = dict(params)
    return _Order(target, rows, model, agent, judge, user, output, progress, **options)


# Event loops


def run_anywhere(main: Coroutine[Any, Any, T]) -> T:
    """Run in this thread if it has no event loop that runs, else in another one."""
    if not _has_running_loop():
        return event_loop.run_embedded(main)
    with _in_thread(main) as done:
        return done.result()


def _has_running_loop() -> bool:
    with contextlib.suppress(RuntimeError):
        return bool(asyncio.get_running_loop())
    return False


@contextlib.contextmanager
def _in_thread(main: Coroutine[Any, Any, T], *, on_end: Callable[[], None] = lambda: None) -> Iterator[Future[T]]:
    """Run in another thread while the block runs. Leaving the block early cancels it."""
    started: Future[Callable[[], object]] = Future()
    done: Future[T] = Future()

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is not None:
            started.set_result(partial(loop.call_soon_threadsafe, task.cancel))
        return await main

    def work() -> None:
        try:
            done.set_result(event_loop.run_embedded(cancellable()))
        except BaseException as error:
            done.set_exception(error)
        finally:
            on_end()

    thread = threading.Thread(target=work, name="nemo-gym-evaluate", daemon=True)
    thread.start()
    try:
        yield done
    finally:
        if not done.done():
            cancel = started.result(STOP_TIMEOUT_S)
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                cancel()
        thread.join(STOP_TIMEOUT_S)

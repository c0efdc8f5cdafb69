"""The mutation score: the share of changes of a verifier's code that its own rows notice.

Each mutant runs in a process of its own, from a copy of the environment's folder, with a limit on its time."""

import logging
import multiprocessing
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from omegaconf import DictConfig

from nemo_gym.analysis.gold import Items
from nemo_gym.common import event_loop
from nemo_gym.common.paths import package_of
from nemo_gym.config.loading import server_instances
from nemo_gym.config.sources import resolve
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.runtime.stack import Stack, StackSpec
from nemo_gym.server.tools import default_tools, with_tools
from nemo_gym.trust.check import CheckVerifierConfig
from nemo_gym.trust.environments import CheckedEnvironment
from nemo_gym.trust.judge_probes import find_labels
from nemo_gym.trust.mutants import Mutant, mutants_of
from nemo_gym.trust.probes import Expected, baselines, non_answers
from nemo_gym.trust.report import TrustReport
from nemo_gym.trust.rows import CheckedRow, others_of
from nemo_gym.trust.scoring import Budget, Oracle, Scorer
from nemo_gym.trust.wrong_answers import parts_of, probes_of

MAX_ROWS, MAX_CASES = 30, 600
SKIPPED = frozenset(("long_text", "deep_json", "tool_spam", "garbage_tool_calls"))
TIMEOUT_S = 5.0
WALL_FACTOR, WALL_S = 6.0, 60.0
NO_VERDICT = -1e9


class Case(NamedTuple):
    """A response, and the reward that it had from the code as it is."""

    row: JsonObject
    items: Items
    expected: Expected
    reward: float


class _Suite(NamedTuple):
    environment: CheckedEnvironment
    settings: Mapping[str, Any]
    servers: Sequence[Any]
    seed: int
    full_reward: float


def check_mutants(
    environment: CheckedEnvironment, options: CheckVerifierConfig, config: DictConfig, report: TrustReport
) -> None:
    """Count the mutants that no response of the suite notices."""
    folder = environment.spec.folder
    if environment.spec.isolation != "shared":
        report.not_done.append("mutants: the environment runs in an interpreter of its own")
        return
    servers = [
        one for one in server_instances(config, environment.classes) if one.server_type != "responses_api_agents"
    ]
    settings: dict[str, Any] = resolve(config, missing_ok=True)
    suite = _Suite(environment, settings, servers, options.seed, options.full_reward)
    started = time.monotonic()
    cases = _in_process(_record, (suite,), wall_s=600.0)
    seconds = time.monotonic() - started
    if not isinstance(cases, list) or not cases:
        report.not_done.append(f"mutants: the suite does not run: {cases}")
        return
    package = package_of(environment.spec.server_type, folder)
    with tempfile.TemporaryDirectory(prefix="nemo-gym-mutants-") as root:
        for mutant in mutants_of(folder, options.mutants, Random(options.seed)):
            copy = Path(root).joinpath(*package.split("."))
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__", "tests"))
            (copy / mutant.file).write_text(mutant.source)
            found = _in_process(_is_noticed, (suite, copy, cases), wall_s=WALL_FACTOR * seconds + WALL_S)
            is_noticed = found is not False  # one that hangs or does not start is noticed, too
            report.mutants.add(is_error=not is_noticed)
            if not is_noticed:
                report.survivors.append(_shown(mutant))


def _shown(mutant: Mutant) -> JsonObject:
    return {"file": mutant.file, "line": mutant.line, "change": mutant.what}


def _in_process(function: Any, arguments: tuple[Any, ...], *, wall_s: float) -> Any:
    """What a function returns in a forked process; None if it takes too long or fails."""
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(sending, function, arguments))
    process.start()
    sending.close()
    try:
        return pickle.loads(receiving.recv_bytes()) if receiving.poll(wall_s) else None
    except (EOFError, OSError):
        return None
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        receiving.close()


def _send_result(sending: Any, function: Any, arguments: tuple[Any, ...]) -> None:
    try:
        found = event_loop.run(function(*arguments))
    except BaseException as error:
        found = f"{type(error).__name__}: {error}"
    sending.send_bytes(pickle.dumps(found))
    sending.close()


async def _record(suite: _Suite) -> list[Case]:
    """Make the suite: right answers and wrong ones to some rows, with their rewards."""
    checked, name = suite.environment.checked, suite.environment.spec.name
    async with Stack(StackSpec(list(suite.servers), dict(suite.settings))) as stack:
        scorer = _scorer(suite, stack)
        tools = await default_tools(stack.client, name)
        step = max(1, len(checked.rows) // MAX_ROWS)
        rows = [
            CheckedRow(index, with_tools(row, tools), checked.golds_of(row))
            for index, row in enumerate(list(checked.rows)[::step][:MAX_ROWS])
        ]
        if suite.environment.judge is not None:
            await find_labels(scorer, suite.environment.judge, rows)
        for row in rows:
            await row.choose_gold(scorer)
        asked = [(row, items, expected) for row in rows for items, expected in _responses(row, rows, suite.seed)]
        cases = []
        for row, items, expected in asked[:: max(1, len(asked) // MAX_CASES)]:
            found = await scorer.score(row.row, items, kind="suite", expected=expected)
            if found.cause is None or expected == "right":
                cases.append(Case(row.row, items, expected, max(found.reward, NO_VERDICT)))
    return sorted(cases, key=lambda case: case.expected != "right")


def _responses(row: CheckedRow, rows: Sequence[CheckedRow], seed: int) -> list[tuple[Items, Expected]]:
    if row.answer is None:
        return [
            (probe.attempts[0], "wrong")
            for probe in (*non_answers(row.row), *baselines(row.row))
            if probe.kind not in SKIPPED
        ]
    probes = [
        *probes_of(row.row, row.answer, others_of(row, rows), Random(f"{seed} {row.index}")),
        *(probe for probe in (*non_answers(row.row), *baselines(row.row)) if probe.kind not in SKIPPED),
    ]
    broken = [(items, "wrong") for part in parts_of(row.answer) for items in part.attempts]
    made = [(items, probe.expected) for probe in probes for items in probe.attempts]
    return [(row.answer.gold.items, "right"), *made, *broken]  # type: ignore[list-item]


async def _is_noticed(suite: _Suite, folder: Path, cases: Sequence[Case]) -> bool:
    """True if a response has another reward from the code in this folder."""
    spec = suite.environment.spec
    package = package_of(spec.server_type, spec.folder)
    logging.disable(logging.CRITICAL)  # what a mutant raises is no news
    for module in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[module]
    root = folder.parents[package.count(".")]
    sys.path.insert(0, str(root))
    servers = [replace(one, folder=folder) if one.name == spec.name else one for one in suite.servers]
    async with Stack(StackSpec(servers, dict(suite.settings))) as stack:
        scorer = _scorer(suite, stack)
        for case in cases:
            found = await scorer.score(case.row, case.items, kind="suite", expected=case.expected)
            if abs(max(found.reward, NO_VERDICT) - case.reward) > 1e-9:
                return True
    return False


def _scorer(suite: _Suite, stack: Stack) -> Scorer:
    oracle = suite.environment.judge or Oracle()
    budget = Budget(1e9)
    name = suite.environment.spec.name
    return Scorer(stack.client, name, suite.full_reward, TIMEOUT_S, budget, oracle)

"""Check a verifier: score responses of every kind in sessions of their own, and report what it does wrong."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Literal

from pydantic import Field

from nemo_gym.analysis.gold import Items
from nemo_gym.client.server_client import ServerClient
from nemo_gym.config.types import CommandConfig
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.server.tools import default_tools, with_tools
from nemo_gym.trust import properties
from nemo_gym.trust.exploits import Search, words_of_source
from nemo_gym.trust.judge_probes import JudgeScript, check_judge, find_labels
from nemo_gym.trust.probes import EMPTY, Probe, baselines, hostile, non_answers
from nemo_gym.trust.properties import Played
from nemo_gym.trust.report import MAX_CASES, Finding, KindStats, TrustReport, case_of
from nemo_gym.trust.rows import Checked as Checked
from nemo_gym.trust.rows import CheckedRow, others_of
from nemo_gym.trust.scoring import Beat, Budget, Oracle, Scorer
from nemo_gym.trust.wrong_answers import probes_of

FIRST_ROWS = 2
"""Rows whose probes are played whatever the budget."""
FEW_ROWS = 6
"""Rows of the checks that need many verifications each."""
MAX_REPEATED, MAX_SEARCHED = 300, 1500
HOSTILE_ROWS = 4
LONG_KINDS = frozenset(("long_text", "deep_json", "garbage_tool_calls", "tool_spam"))
"""Kinds that take long and need few rows."""


class CheckVerifierConfig(CommandConfig):
    """Measure how often a verifier is wrong, and how it can be cheated. No model is called.

    Verifies right answers, the same in other forms, wrong ones near them, and responses that need no answer, each in a
    session of its own; searches for responses that are rewarded in rows with different answers; repeats, reorders and
    interleaves sessions; plays the judge. Rates have 95 % intervals. The exit code is 1 if there is a finding.

    `ng trust` is the same command. With config_paths it starts the environments of a configuration; with neither a
    name nor config_paths, it uses the servers of the running `ng_run`.

    Examples:

    ```bash
    ng trust mcqa
    ng trust resources_servers/my_server --budget_s 300 --html_fpath trust.html
    ```
    """

    POSITIONAL: ClassVar[tuple[str, ...]] = ("environment",)

    environment: str | None = None
    """Name, folder or config file of the environment; `all` for every folder below resources_servers."""

    resources_server: str | None = None
    """Name of the environment in the config. If not set, all environments are checked."""

    input_jsonl_fpath: str | None = None
    """The rows to check it with. If not set, the example datasets of the agents that use it, and generated rows."""

    limit: int | None = Field(default=None, ge=1)
    """Use only the first N rows of each environment."""

    generated_rows: int = Field(default=0, ge=0)
    """Also use N rows of its `generate_rows`."""

    seed: int = 0
    """The same seed makes the same responses."""

    budget_s: float = Field(default=60.0, gt=0)
    """CPU time for each environment, in seconds."""

    max_probes: int | None = Field(default=None, ge=1)
    """Stop after about N verifications of each environment, so that the result does not depend on the machine."""

    mutants: int = Field(default=0, ge=0)
    """Also change the environment's own code in up to N ways, and count the changes that its rows do not notice."""

    full_reward: float = 1.0
    """The reward of a correct answer."""

    verify_timeout_s: float = Field(default=120.0, gt=0)
    """Time limit for one verification with the tool calls before it, in seconds."""

    max_false_positive_rate: float | None = Field(default=None, ge=0, le=1)
    """Exit with code 1 also if a larger share of wrong answers gets the full reward."""

    baseline: Literal["compare", "write", "ignore"] = "compare"
    """What to do with the `trust.json` beside the environment's configs: fail if a rate is worse than its interval
    there, write this report's rates into it, or nothing."""

    output_fpath: str | None = None
    """Write the results for each kind of answer to this JSON file."""

    html_fpath: str | None = None
    """Write the report as a web page."""


async def try_verifier(
    config: CheckVerifierConfig,
    client: ServerClient,
    checked: Checked,
    *,
    folder: Path | None = None,
    judge: JudgeScript | None = None,
    on_progress: Callable[[Budget], None] = lambda _budget: None,
    on_probe: Callable[[Beat], None] = lambda _beat: None,
    skipped: frozenset[str] = frozenset(),
    exploits: Sequence[tuple[int, Items]] = (),
) -> TrustReport:
    """Check the verifier of one environment. `folder` has its code, and `judge` is what its judge says. `exploits` are
    responses to rows, by their index, that must not be rewarded again."""
    tools = await default_tools(client, checked.name)
    budget = Budget(config.budget_s, config.max_probes)
    scorer = Scorer(
        client,
        checked.name,
        config.full_reward,
        config.verify_timeout_s,
        budget,
        judge or Oracle(),
        on_probe=on_probe,
        skipped=skipped,
    )
    rows = [
        CheckedRow(index, row, checked.golds_of(row))
        for index, row in enumerate(with_tools(row, tools) for row in checked.rows)
    ]
    check = _Check(scorer, TrustReport(checked.name, config.seed), rows, config, on_progress)
    await check.run(folder, judge)
    await check.replay(exploits)
    return check.report


@dataclass(slots=True)
class _Check:
    scorer: Scorer
    report: TrustReport
    rows: list[CheckedRow]
    config: CheckVerifierConfig
    on_progress: Callable[[Budget], None]
    played: list[Played] = field(default_factory=list)
    done: list[CheckedRow] = field(default_factory=list)
    leaking: list[JsonObject] = field(default_factory=list)
    """Empty outputs that were rewarded after a right answer to their row, and not before."""

    async def run(self, folder: Path | None, judge: JudgeScript | None) -> None:
        scorer, report, random = self.scorer, self.report, Random(self.config.seed)
        form = None if judge is None else await find_labels(scorer, judge, self.rows)
        if judge is not None and form is None:
            report.not_done.append("judge: no reply of a judge was found that is rewarded")
        for row in self.rows:
            await self._start(row)
            if scorer.budget.is_spent:
                break
        usable = [row for row in self.done if not row.is_trivial]
        few = _sample(usable, FEW_ROWS)
        await self._probes(usable[:FIRST_ROWS])
        if usable:
            await self._properties(usable, few, random)
        await self._probes(usable[FIRST_ROWS:], FIRST_ROWS)
        if judge is not None and form is not None and usable:
            await check_judge(scorer, judge, report, usable, form)
        if usable:
            await properties.check_repeats(scorer, report, _spread(self.played, MAX_REPEATED), random)
            words = words_of_source(folder) if folder is not None else []
            await Search(scorer, usable, words, random).run(report, 1.0, self._most_searched())
        self._finish()

    async def replay(self, exploits: Sequence[tuple[int, Items]]) -> None:
        """Play the exploits that were found before."""
        for index, items in exploits:
            row = self.rows[index]
            found = await self.scorer.score(row.row, items, kind="known_exploit")
            if self.scorer.is_full(found):
                case = case_of(index, items, found.reward)
                says = "rewards an exploit that was mended before"
                self.report.found.append(Finding("known_exploit", says, cases=(case,)))

    async def _start(self, row: CheckedRow) -> None:
        """Find the right answer of a row, and see if it is trivial."""
        report, scorer = self.report, self.scorer
        self.done.append(row)
        report.rows += 1
        empty = Probe(EMPTY, ([],), "open")
        row.is_trivial = await self._play(row, empty)
        report.trivial_rows += row.is_trivial
        await row.choose_gold(scorer)
        if row.gold is not None:
            report.rows_with_gold += 1
            report.rejected_golds += not row.gold_is_full
            report.golds_are_guessed |= row.gold.bare is not None
            await self._play(row, Probe("gold", (row.gold.items,), "right"))
            again = await scorer.score(row.row, [], kind=EMPTY)
            if scorer.is_full(again) and not row.is_trivial:
                self.leaking.append(case_of(row.index, [], again.reward))
        self.on_progress(scorer.budget)

    async def _properties(self, usable: list[CheckedRow], few: list[CheckedRow], random: Random) -> None:
        scorer, report = self.scorer, self.report
        await properties.check_leaks(scorer, report, few, self.leaking)
        await properties.check_interleaved(scorer, report, few)
        await properties.check_load(scorer, report, few)
        await properties.check_parts(scorer, report, few, 0.2)
        await properties.check_row_lists(scorer, report, few + usable[:FEW_ROWS], 0.3)
        await properties.check_time(scorer, report, few[0], 0.5)
        self.on_progress(scorer.budget)

    async def _probes(self, rows: list[CheckedRow], first: int = 0) -> None:
        """Play the probes of rows, of which the first is so far from the beginning."""
        usable = [row for row in self.done if not row.is_trivial]
        for number, row in enumerate(rows, start=first):
            if first and (self.scorer.budget.spent_by(0.85) or self.scorer.budget.is_spent):
                self.report.not_done.append(f"{len(usable) - number} of {len(usable)} rows: the budget was spent")
                break
            random = Random(f"{self.config.seed} {row.index}")
            for probe in (*non_answers(row.row), *baselines(row.row)):
                if probe.kind != EMPTY and (number < HOSTILE_ROWS or probe.kind not in LONG_KINDS):
                    await self._play(row, probe)
            if row.answer is not None and row.gold_is_full:
                for probe in probes_of(row.row, row.answer, others_of(row, usable), random):
                    await self._play(row, probe)
            if number < HOSTILE_ROWS:
                for probe in hostile(row.row):
                    await self._play(row, probe)
            self.on_progress(self.scorer.budget)

    async def _play(self, row: CheckedRow, probe: Probe) -> bool:
        """Score all attempts of a probe, and count them as one reward if all have the full reward."""
        scorer = self.scorer
        stats = self._stats_of(probe)
        results = []
        for items in probe.attempts:
            results.append(await scorer.score(row.row, items, kind=probe.kind, expected=probe.expected))
            if not scorer.is_full(results[-1]):
                break
        self.played.append(Played(row, probe.kind, probe.expected, probe.attempts[0], results[0]))
        is_full = all(map(scorer.is_full, results))
        stats.rows.add(row.index)
        stats.probes += 1
        stats.full += is_full
        stats.best_reward = max(stats.best_reward, *(result.reward for result in results))
        if is_full:
            stats.full_rows.add(row.index)
        if is_full == (probe.expected == "wrong") and len(stats.cases) < MAX_CASES:
            stats.cases.append(case_of(row.index, probe.attempts[-1], results[-1].reward))
        return is_full

    def _stats_of(self, probe: Probe) -> KindStats:
        """The counts of a kind. What is wrong for one row, and may be right for another, is counted apart."""
        stats = self.report.kinds.setdefault(probe.kind, KindStats(probe.expected))
        if stats.expected == probe.expected:
            return stats
        return self.report.kinds.setdefault(f"{probe.kind} ({probe.expected})", KindStats(probe.expected))

    def _most_searched(self) -> int:
        left = self.scorer.budget.max_probes
        return MAX_SEARCHED if left is None else max(0, min(MAX_SEARCHED, left - self.scorer.budget.probes))

    def _finish(self) -> None:
        report, scorer = self.report, self.scorer
        report.probes, report.cpu_s = scorer.budget.probes, scorer.budget.used
        report.failed, report.messages = scorer.failed, scorer.messages
        report.latencies_ms = scorer.latencies_ms
        if report.rejects_all and report.golds_are_guessed:
            report.not_done.append("false negatives: no form of the expected answers is rewarded; add gold_response")
        elif not report.rows_with_gold:
            report.not_done.append("false negatives: no right answer is known (gold_response, expected_answer)")


def _sample(rows: list[CheckedRow], most: int) -> list[CheckedRow]:
    """Rows whose right answers are rewarded, spread over all."""
    good = [row for row in rows if row.gold_is_full] or rows
    return _spread(good, most)


def _spread(values: list[Any], most: int) -> list[Any]:
    step = max(1, len(values) // most)
    return values[::step][:most]

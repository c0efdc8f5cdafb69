"""The rates that an environment had, in `trust.json` beside its configs, and what is worse now."""

from collections.abc import Iterator
from pathlib import Path

import orjson

from nemo_gym.analysis.gold import Items
from nemo_gym.common.atomic_files import write_json
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.trust.report import TrustReport

RATES = ("false_negatives", "rejected_equivalents", "false_positives", "mutants")
FILE = "trust.json"


def baseline_path(folder: Path) -> Path:
    """The file of an environment."""
    return folder / "configs" / FILE


def read_baseline(folder: Path) -> JsonObject:
    """The recorded rates; empty if there are none."""
    path = baseline_path(folder)
    if not path.is_file():
        return {}
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is {type(found).__name__}; expected an object.")
    return found


def accepted_in(baseline: JsonObject, environment: str) -> dict[str, str]:
    """Kinds of findings that are so on purpose, and why."""
    accepted = baseline.get("accepted") or {}
    if not isinstance(accepted, dict) or not all(isinstance(why, str) and why for why in accepted.values()):
        raise ConfigError(f"{FILE} of '{environment}': `accepted` must say why for each kind of finding.")
    return accepted


def known_exploits(baseline: JsonObject) -> Iterator[tuple[int, Items]]:
    """Responses that were rewarded once, and must not be again: the index of an example row, and output items."""
    for each in baseline.get("exploits") or ():
        yield int(each["row"]), list(each["output"])


def write_baseline(folder: Path, report: TrustReport) -> Path:
    """Record the rates of a report. What is accepted, and old exploits, stay."""
    before, path = read_baseline(folder), baseline_path(folder)
    rates = {name: getattr(report, name).as_json() for name in RATES}
    facts = {"seed": report.seed, "rows": report.rows, "probes": report.probes}
    kept = {name: before[name] for name in ("accepted", "exploits") if before.get(name)}
    findings = [each.says for each in report.findings()]
    write_json(path, {**facts, "rates": rates, "findings": findings, **kept})
    return path


def worse_than(baseline: JsonObject, report: TrustReport) -> Iterator[str]:
    """What is worse than recorded: a rate above its interval."""
    for name in RATES:
        recorded = (baseline.get("rates") or {}).get(name) or {}
        interval, now = recorded.get("interval_95"), getattr(report, name).interval
        if interval and now and now[0] > interval[1]:
            rate = getattr(report, name)
            yield f"{name.replace('_', ' ')} are {rate}; recorded: {recorded['rate']:.2%} (at most {interval[1]:.2%})"

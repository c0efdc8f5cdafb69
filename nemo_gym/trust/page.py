"""The trust report as a web page, and as a badge for a README. What verifiers and rows say is escaped."""

import json
from collections.abc import Iterable, Sequence
from html import escape

from nemo_gym.trust.report import NO_EVIDENCE, Finding, Rate, TrustReport

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222;background:#fff}
table{border-collapse:collapse;margin:1em 0}td,th{padding:3px 12px 3px 0;text-align:left;vertical-align:top;
border-bottom:1px solid #8883}pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8881;padding:8px}
.bad{color:#b00}.good{color:#070}@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}}
"""


def trust_page(reports: Sequence[TrustReport]) -> str:
    """A page with a section for each environment."""
    sections = "".join(map(_section, reports))
    head = f'<meta charset="utf-8"><title>Trust report</title><style>{_STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body><h1>Trust report</h1>{sections}</body></html>\n"


def badge(report: TrustReport) -> str:
    """A line for a README."""
    count = len(list(report.findings()))
    shown = "no findings" if not count else f"{count} finding{'s' if count > 1 else ''}"
    rates = f"false negatives {_short(report.false_negatives)}, false positives {_short(report.false_positives)}"
    return f"**Trust report** ({report.probes:,} probes, seed {report.seed}): {shown}; {rates}."


def _short(rate: Rate) -> str:
    return NO_EVIDENCE if rate.interval is None else f"{rate.rate:.2%} (at most {rate.interval[1]:.2%})"


def _section(report: TrustReport) -> str:
    findings = list(report.findings())
    verdict = f'<p class="bad">{len(findings)} findings</p>' if findings else '<p class="good">No findings.</p>'
    rates = {
        "right answers that are rejected": str(report.false_negatives),
        "right answers in another form that are rejected": str(report.rejected_equivalents),
        "wrong answers that are rewarded": str(report.false_positives),
        "mutants of the code that go unnoticed": str(report.mutants),
        "rows, probes, seed": f"{report.rows}, {report.probes:,}, {report.seed}",
        "CPU-seconds": f"{report.cpu_s:.1f}",
        "slowest input": json.dumps(report.slowest),
        "judge": json.dumps(report.judge),
    }
    kinds = [
        (name, stats.expected, f"{len(stats.full_rows)} of {len(stats.rows)}", stats.probes)
        for name, stats in report.kinds.items()
    ]
    not_done = "".join(f"<li>{escape(each)}</li>" for each in report.not_done)
    return (
        f"<h2>{escape(report.environment)}</h2>{verdict}{''.join(map(_finding, findings))}"
        f"{_table(('measure', 'value'), rates.items())}"
        f"{f'<p>Not measured:</p><ul>{not_done}</ul>' if not_done else ''}"
        f"<details><summary>All kinds of responses</summary>"
        f"{_table(('kind', 'expected', 'rows with the full reward', 'probes'), kinds)}</details>"
    )


def _finding(finding: Finding) -> str:
    cases = "".join(f"<pre>{escape(json.dumps(case, ensure_ascii=False, indent=1))}</pre>" for case in finding.cases)
    shown = f"<details><summary>cases</summary>{cases}</details>" if cases else ""
    return f"<p><b>{escape(str(finding))}</b> {shown}</p>"


def _table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    header = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{header}</tr>{body}</table>"

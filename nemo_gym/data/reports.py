"""What `ng_prepare_data` says about bad rows and contradicting statistics."""

from collections.abc import Sequence
from pathlib import Path

from nemo_gym.data.scan import FileFigures


def conflict_message(conflicts: Sequence[tuple[Path, list[str]]]) -> str:
    lines = ["Found conflicting aggregate metrics that need to be corrected:"]
    for path, found in conflicts:
        lines += [f"{path}:", *(f"- {line}" for line in found)]
    lines.append(
        "The new metrics are beside them, in files that end in _metrics_conflict.json. If the data is right, "
        "delete the old files, or give +overwrite_metrics_conflicts=true."
    )
    return "\n".join(lines)


def offending_message(files: Sequence[FileFigures]) -> str:
    lines = ["Found rows that are not valid. Nothing was collated."]
    for each in files:
        lines += offending_lines(each)
    lines.append("Rows are counted from 0. Mend them, or leave them out with +drop_offending=true.")
    return "\n".join(lines)


def offending_lines(figures: FileFigures) -> list[str]:
    """One line for each reason why rows of a file are bad."""
    path = figures.extent.path
    if not figures.rows:
        return [f"{path}: no rows"]
    return [f"{path}: {index_ranges(places)}: {reason}" for reason, places in figures.bad.items()]


def index_ranges(indices: Sequence[int], *, most: int = 20) -> str:
    """Such as 'rows 3, 7-9'."""
    ranges: list[list[int]] = []
    for index in sorted(indices):
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:most]]
    more = f" and {sum(last - first + 1 for first, last in ranges[most:])} more" if len(ranges) > most else ""
    return f"{'rows' if len(indices) > 1 else 'row'} {', '.join(shown)}{more}"

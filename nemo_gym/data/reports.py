"""What `ng_prepare_data` says about bad rows and contradicting statistics."""

from collections.abc import Collection, Sequence
from pathlib import Path

from nemo_gym.data.scan import FileStatistics


def conflict_message(conflicts: Sequence[tuple[Path, list[str]]]) -> str:
    lines = ["Found conflicting aggregate metrics that need to be corrected:"]
    for path, found in conflicts:
        lines += [f"{path}:", *(f"- {line}" for line in found)]
    lines.append(
        "The new metrics are beside them, in files that end in _metrics_conflict.json. If the data is right, "
        "delete the old files, or give +overwrite_metrics_conflicts=true."
    )
    return "\n".join(lines)


def offending_message(files: Sequence[FileStatistics]) -> str:
    lines = ["Found rows that are not valid. Nothing was collated."]
    for each in files:
        lines += offending_lines(each)
    lines.append("Fix them, or drop them with +drop_offending=true.")
    return "\n".join(lines)


def offending_lines(statistics: FileStatistics) -> list[str]:
    """One line for each reason why rows of a file are bad."""
    path = statistics.extent.path
    if not statistics.rows:
        return [f"{path}: no rows"]
    numbers = line_numbers(path, {index for places in statistics.bad.values() for index in places})
    return [
        f"{path}: {number_ranges([numbers[index] for index in places], 'line')}: {reason}"
        for reason, places in statistics.bad.items()
    ]


def line_numbers(path: Path, rows: Collection[int]) -> dict[int, int]:
    """The numbers of the lines that rows are in, by the index of the row. Blank lines do not count."""
    with path.open("rb") as file:
        numbered = (number for number, line in enumerate(file, 1) if line.strip())
        found = {index: number for index, number in enumerate(numbered) if index in rows}
    return {index: found.get(index, index + 1) for index in rows}


def number_ranges(numbers: Sequence[int], noun: str, *, most: int = 20) -> str:
    """Such as 'lines 3, 7-9'."""
    ranges: list[list[int]] = []
    for index in sorted(numbers):
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:most]]
    more = f" and {sum(last - first + 1 for first, last in ranges[most:])} more" if len(ranges) > most else ""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {', '.join(shown)}{more}"

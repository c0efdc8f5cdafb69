"""The rows of an evaluation: prompts, conversations, rows, a DataFrame or a file become a dataset."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.common.atomic_files import atomic_write
from nemo_gym.common.paths import find
from nemo_gym.common.words import count_of, indented_list, json_type
from nemo_gym.data.row_check import PARAMS_KEY, BadRowError, RowCheck
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.server.seed import RowValidator

PROMPT, MESSAGES = "prompt", ("messages", "input")
_ROLES = frozenset(("user", "assistant", "system", "developer", "tool"))
_TABLES = (".csv", ".tsv", ".parquet", ".json", ".xlsx")

EXPECTED = (
    "A row has a `prompt` (a text), `messages` (a list of them), or `responses_create_params` with an `input`; all "
    "other fields are for the environment."
)


def write_dataset(rows: Any, target: Path) -> Path:
    """Return the file of the rows: the given one if it is a dataset, else `target`, written from them."""
    if isinstance(rows, str | Path):
        path = _dataset_file(rows)
        if _has_params(path):
            return path
        rows = lines_of(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as file:
        count = 0
        for count, row in enumerate(_as_rows(rows), 1):
            file.write(_encoded(as_row(row, count), count) + b"\n")
    if not count:
        raise ConfigError("There are no rows, so there is nothing to evaluate.")
    return target


def check_rows(path: Path, validator: RowValidator | None, *, limit: int | None, tolerated: int = 0) -> None:
    """Raise ConfigError if more than the tolerated number of rows cannot be played, before any model is called."""
    check, bad = RowCheck(validator=validator), list[str]()
    with path.open("rb") as file:
        for number, line in islice(enumerate(filter(bytes.strip, file), 1), limit or None):
            try:
                check.read(line.strip())
            except BadRowError as error:
                bad.append(f"row {number}: {error}")
    if len(bad) > tolerated:
        raise ConfigError(
            f"{count_of(len(bad), 'row')} cannot be played, so no model was called:\n{indented_list(bad)}\n"
            f"The rows are in {path}."
        )


def _dataset_file(path: str | Path) -> Path:
    found = find(path, what="dataset")
    if found.suffix.lower() in _TABLES:
        read = {".tsv": "csv", ".xlsx": "excel"}.get(found.suffix.lower(), found.suffix[1:].lower())
        raise ConfigError(
            f"{path} is not JSON Lines. Pass its rows, such as pandas.read_{read}('{path}'), or convert it: "
            f"ng_import +input_fpath={path}"
        )
    if not found.is_file():
        raise ConfigError(f"{path} is not a file; expected JSON Lines, one row a line.")
    return found


def _has_params(path: Path) -> bool:
    with path.open("rb") as file:
        first = next(filter(bytes.strip, file), b"")
    try:
        row = orjson.loads(first)
    except ValueError:
        return True  # checking the rows says what is wrong
    return isinstance(row, dict) and PARAMS_KEY in row


def lines_of(path: Path) -> Iterator[Any]:
    """The values of a JSON Lines file."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ConfigError(f"{path}, line {number}: not valid JSON: {error}.") from error


def _as_rows(rows: Any) -> Iterable[Any]:
    """The rows one by one: of a table, one conversation, or anything that can be iterated over."""
    if hasattr(rows, "columns") and hasattr(rows, "to_dict"):  # pandas
        return map(_without_missing, rows.to_dict(orient="records"))
    if hasattr(rows, "to_dicts"):  # polars
        return rows.to_dicts()  # type: ignore[no-any-return]
    if isinstance(rows, Mapping):
        return [rows]
    if not isinstance(rows, Iterable):
        raise ConfigError(
            f"The rows are {rows!r:.100}; expected a list, a DataFrame or the path of a file. {EXPECTED}"
        )
    if isinstance(rows, Sequence) and rows and all(map(_is_message, rows)):
        return [rows]
    return rows


def _without_missing(record: Mapping[str, Any]) -> JsonObject:
    return {str(name): value for name, value in record.items() if value is not None and value == value}


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("role") in _ROLES and "content" in value and "prompt" not in value


def as_row(row: Any, number: int) -> JsonObject:
    """A text, a conversation or a dict as a row."""
    if isinstance(row, str):
        row = {PROMPT: row}
    if isinstance(row, Sequence) and row and all(map(_is_message, row)):
        return {PARAMS_KEY: {"input": list(row)}}
    if not isinstance(row, Mapping):
        raise ConfigError(f"Row {number} is {row!r:.100}, {json_type(row)}. {EXPECTED}")
    if PARAMS_KEY in row:
        return dict(row)
    if isinstance(row.get(PROMPT), str):
        return {PARAMS_KEY: {"input": [{"role": "user", "content": row[PROMPT]}]}, **row}
    given = next((name for name in MESSAGES if isinstance(row.get(name), list | tuple | str)), None)
    if given is None:
        fields = ", ".join(map(str, row)) or "none"
        raise ConfigError(f"Row {number} has no prompt. Its fields: {fields}. {EXPECTED}")
    others = {name: value for name, value in row.items() if name not in (given, "tools")}
    tools = {"tools": row["tools"]} if row.get("tools") is not None else {}
    return {PARAMS_KEY: {"input": row[given], **tools}, **others}


def _encoded(row: JsonObject, number: int) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS, default=_plain)
    except TypeError as error:
        raise ConfigError(f"Row {number} is not expressible in JSON: {error}.") from error


def _plain(value: Any) -> Any:
    """Convert values of tables that JSON does not have: numbers of numpy, paths, sets."""
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} {value!r:.60}")

"""Import datasets in other formats as rows, with a mapping. Every record becomes a row or is dropped with a reason."""

import string
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self

import orjson
from pydantic import Field, model_validator

from nemo_gym.analysis.atif import read_trajectories, record_of
from nemo_gym.common.atomic_files import atomic_write, check_writable
from nemo_gym.common.paths import find, nearest
from nemo_gym.config.command_options import CommandConfig
from nemo_gym.data.digests import digest
from nemo_gym.data.hubs import hugging_face
from nemo_gym.data.hubs.hugging_face import DownloadJsonlDatasetHuggingFaceConfig, Split
from nemo_gym.data.records import NotMessagesError, items_of, read_records, tools_of
from nemo_gym.data.row_check import PARAMS_KEY, BadRowError, RowCheck
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.base import JsonObject

PROMPT_COLUMNS = ("prompt", "question", "problem", "instruction", "query", "input", "text")
MESSAGE_COLUMNS = ("messages", "conversations", "conversation", "chat")
REFERENCE_FIELD = "reference_answer"
DUPLICATE = "the same parameters as an earlier row"


class ImportConfig(CommandConfig):
    """Import a CSV, Parquet, JSON or JSONL file, or a dataset on Hugging Face, as rows, and report what was dropped.

    Examples:

    ```bash
    ng_import +input_fpath=gsm8k.parquet +output_jsonl_fpath=data/gsm8k.jsonl \\
        "+prompt='{question} Put the answer into \\\\boxed{{}}.'" +fields.expected_answer=answer
    ```
    """

    output_jsonl_fpath: str
    """Output file for the rows."""

    input_fpath: str | None = None
    """The file to read: .jsonl, .json, .csv, .tsv or .parquet, the text formats also as .gz. With `format` atif a
    .json or .jsonl file, or a folder of them."""

    format: Literal["rows", "atif"] = "rows"
    """rows: a dataset becomes rows. atif: trajectories of the Agent Trajectory Interchange Format become rollouts, as
    `ng_collect_rollouts` writes them; those that no environment has scored have no reward."""

    repo_id: str | None = None
    """A dataset on Hugging Face to read instead of a file."""

    split: Split = "train"
    """The split of the dataset on Hugging Face."""

    hf_token: str | None = None
    """Your Hugging Face token. Public datasets need none."""

    prompt: str | None = None
    """The user message: a column, or a text with {column} in it. By default the messages column, or a common name
    such as prompt or question."""

    system: str | None = None
    """The system message: a column, or a text with or without {column} in it."""

    messages: str | None = None
    """The column with chat messages, if it is not called messages or conversations."""

    tools: str | None = None
    """The column with the tools that the model may call."""

    fields: dict[str, str] = Field(default_factory=dict)
    """Fields of the row, each a column or a text with {column} in it: +fields.expected_answer=answer"""

    keep_columns: bool = False
    """Keep all other columns as fields of the row."""

    keep_answers: bool = False
    """Keep the assistant's last messages in the prompt. By default they become the field reference_answer."""

    limit: int | None = Field(default=None, ge=1)
    """Import only the first N records."""

    keep_duplicates: bool = False
    """Keep rows with the same parameters as an earlier row."""

    overwrite: bool = False
    """Overwrite an existing output file."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.input_fpath is None) == (self.repo_id is None):
            raise ValueError("Give either input_fpath or repo_id")
        if self.prompt is not None and self.messages is not None:
            raise ValueError("Give either prompt or messages, not both")
        if self.format == "atif" and self.input_fpath is None:
            raise ValueError("Give the trajectories as input_fpath")
        return self


@dataclass(slots=True)
class ImportReport:
    """Counts of imported and dropped records. Every record that was read is one of the two."""

    read: int = 0
    rows: int = 0
    dropped: dict[str, list[int]] = field(default_factory=dict)
    """The indices of dropped records, by reason."""

    def drop(self, index: int, reason: str) -> None:
        self.dropped.setdefault(reason, []).append(index)

    @property
    def counts(self) -> Counter[str]:
        return Counter({reason: len(indices) for reason, indices in self.dropped.items()})


class _DroppedError(Exception):
    """A record is dropped; the message is the reason."""


def import_rows(config: ImportConfig) -> ImportReport:
    """Import the records and write the rows atomically."""
    output, report = Path(config.output_jsonl_fpath), ImportReport()
    sources = (find(config.input_fpath, what="file"),) if config.input_fpath else ()
    check_writable(output, overwrite=config.overwrite, sources=sources)
    if config.format == "atif":
        _import_trajectories(find(str(config.input_fpath), what="trajectories"), output, config.limit, report)
        return report
    with TemporaryDirectory() as folder:
        records = read_records(sources[0]) if sources else _downloaded(config, Path(folder))
        with atomic_write(output) as file:
            for row in _rows(islice(records, config.limit), config, report):
                file.write(row + b"\n")
                report.rows += 1
            if not report.rows:
                reasons = ", ".join(f"{reason} ({count})" for reason, count in report.counts.most_common(5))
                raise ConfigError(f"None of the {report.read} records can be used. Dropped: {reasons or 'nothing'}.")
    return report


def _import_trajectories(source: Path, output: Path, limit: int | None, report: ImportReport) -> None:
    with atomic_write(output) as file:
        for trajectory in islice(read_trajectories(source), limit):
            report.read += 1
            file.write(orjson.dumps(record_of(trajectory)) + b"\n")
            report.rows += 1


def _downloaded(config: ImportConfig, folder: Path) -> Iterator[JsonObject]:
    path = str(folder / "download.jsonl")
    place = {"repo_id": config.repo_id, "split": config.split, "output_fpath": path, "hf_token": config.hf_token}
    hugging_face.download(DownloadJsonlDatasetHuggingFaceConfig.model_validate(place))
    return read_records(Path(path))


def _rows(records: Iterable[JsonObject], config: ImportConfig, report: ImportReport) -> Iterator[bytes]:
    check, seen = RowCheck(), set[bytes]()
    for index, record in enumerate(records):
        report.read += 1
        if index == 0:
            _check_mapping(config, record)
        try:
            line = orjson.dumps(_row(record, config), default=str)
            key = digest(check.read(line).compact)
        except (_DroppedError, NotMessagesError, BadRowError) as error:
            report.drop(index, str(error))
            continue
        except TypeError as error:
            report.drop(index, f"not expressible in JSON: {error}")
            continue
        if key in seen and not config.keep_duplicates:
            report.drop(index, DUPLICATE)
            continue
        seen.add(key)
        yield line


def _check_mapping(config: ImportConfig, record: JsonObject) -> None:
    """Raise ConfigError if the mapping names a column that the first record does not have."""
    system = config.system if config.system and "{" in config.system else None
    templates = (config.prompt, system, *config.fields.values())
    named = [column for each in templates if each for column in _columns(each, record)]
    named += [column for column in (config.messages, config.tools) if column]
    for column in named:
        if column not in record:
            raise ConfigError(
                f"There is no column '{column}'. There are: {', '.join(record)}.{nearest(column, record)}"
            )


def _columns(template: str, record: JsonObject) -> list[str]:
    if template in record or "{" not in template:
        return [template]
    try:
        return [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ConfigError(f"'{template}' is not a template with {{column}} in it: {error}.") from error


def _row(record: JsonObject, config: ImportConfig) -> JsonObject:
    if PARAMS_KEY in record and not (config.prompt or config.messages):
        params, reference = record[PARAMS_KEY], dict[str, Any]()
    else:
        params, reference = _params(record, config)
    fields = {name: _value(template, record) for name, template in config.fields.items()}
    kept = {name: value for name, value in record.items() if name != PARAMS_KEY} if config.keep_columns else {}
    return {PARAMS_KEY: params, **reference, **kept, **fields}


def _params(record: JsonObject, config: ImportConfig) -> tuple[JsonObject, JsonObject]:
    """Return the parameters, and the answer at the end of the messages."""
    reference: JsonObject = {}
    column = config.messages or next((name for name in MESSAGE_COLUMNS if name in record), None)
    if config.prompt is None and column is not None:
        items = items_of(record.get(column))
        if not config.keep_answers:
            items, reference = _without_answer(items)
    else:
        items = [{"role": "user", "content": _prompt(record, config)}]
    if config.system is not None:
        items.insert(0, {"role": "system", "content": str(_value(config.system, record))})
    tools = {"tools": tools_of(record[config.tools])} if config.tools and record.get(config.tools) else {}
    return {"input": items, **tools}, reference


def _without_answer(items: list[JsonObject]) -> tuple[list[JsonObject], JsonObject]:
    """Return the items up to the last user message, and the assistant's last text after it."""
    last = max((index for index, item in enumerate(items) if item.get("role") == "user"), default=None)
    if last is None:
        raise _DroppedError("no user message")
    texts = [item["content"] for item in items[last + 1 :] if item.get("role") == "assistant"]
    return items[: last + 1], {REFERENCE_FIELD: texts[-1]} if texts else {}


def _prompt(record: JsonObject, config: ImportConfig) -> str:
    template = config.prompt or next((name for name in PROMPT_COLUMNS if name in record), None)
    if template is None:
        raise _DroppedError("no messages and no prompt; give +prompt")
    text = str(_value(template, record) or "")
    if not text.strip():
        raise _DroppedError("an empty prompt")
    return text


def _value(template: str, record: JsonObject) -> Any:
    """Return a column, or a text with columns filled in."""
    if template in record:
        return record[template]
    try:
        return template.format_map({name: "" if value is None else value for name, value in record.items()})
    except KeyError as error:
        raise _DroppedError(f"no column {error}") from None
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise ConfigError(f"'{template}' cannot be filled in: {error}.") from error

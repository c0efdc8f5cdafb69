"""Datasets and configurations that name them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml


def row(text: str, **fields: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": [{"role": "user", "content": text}]}, **fields}


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def dataset(path: Path | str, kind: str = "train", **fields: Any) -> dict[str, Any]:
    licensed = {} if kind == "example" else {"license": "Apache 2.0"}
    return {"name": kind, "type": kind, "jsonl_fpath": str(path), **licensed, **fields}


def write_config(path: Path, **datasets_of_agents: list[dict[str, Any]]) -> Path:
    """A configuration with these agents."""
    agents = {
        name: {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", "datasets": datasets}}}
        for name, datasets in datasets_of_agents.items()
    }
    path.write_text(yaml.safe_dump(agents))
    return path


class Ended(NamedTuple):
    """How a command ended, and what it showed."""

    returncode: int
    stdout: str
    stderr: str

"""The catalogue of environments in the documentation, from their READMEs, configurations and example rows."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_gym.analysis.gold import guessed_golds
from nemo_gym.common.atomic_files import read_jsonl
from nemo_gym.common.words import shorten
from nemo_gym.data.readme_tables import EXAMPLE_PREFIX, EnvironmentConfig, environment_configs
from nemo_gym.errors import GymError
from nemo_gym.llm_api.base import JsonObject, content_text
from nemo_gym.runtime.class_loader import load_server_class

MAX_TEXT = 700
MAX_VALUE = 160
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:)[^)]*\)")


def catalogue_page(root: Path) -> str:
    """Return a section for each environment below `root`: what it is, how to run it, and a conversation with it."""
    configs = {each.folder: each for each in environment_configs(root)}.values()
    examples = [each for each in configs if each.folder.name.startswith(EXAMPLE_PREFIX)]
    domains = {str(each.server.get("domain")) for each in configs if each not in examples}
    groups = {domain: [each for each in configs if each.server.get("domain") == domain] for domain in sorted(domains)}
    groups = {name: [each for each in group if each not in examples] for name, group in groups.items()}
    titles = {**{name.replace("_", " ").capitalize(): group for name, group in groups.items()}, "Examples": examples}
    sections = ([f"## {title}\n", *map(_section, group)] for title, group in titles.items())
    return "\n".join(part for section in sections for part in section)


def _section(config: EnvironmentConfig) -> str:
    name = config.folder.name
    lines = [f"### `{name}`", "", _introduction(config.folder / "README.md"), ""]
    if config.server.get("value"):
        lines += [f"*{config.server['value']}.*", ""]
    lines += [f"Run it with `ng eval {name}`. Rows, options and licence: `resources_servers/{name}/README.md`.", ""]
    if conversation := list(_conversation(config.folder)):
        lines += ["````text", *conversation, "````", ""]
    return "\n".join(lines)


def _introduction(readme: Path) -> str:
    """Return the first paragraph of a README, without links into the repository."""
    paragraphs = readme.read_text().partition("\n\n")[2].split("\n\n")
    return _LINK.sub(r"\1", paragraphs[0].strip())


def _conversation(folder: Path) -> Iterator[str]:
    """Yield the first example row and what solves it, as lines."""
    rows = read_jsonl(path) if (path := folder / "data" / "example.jsonl").is_file() else []
    if not rows:
        return
    given = rows[0].get("responses_create_params", {}).get("input") or ()
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        yield from _lines(item)
    for item in _solution(folder, rows[0]):
        yield from _lines(item)


def _solution(folder: Path, row: JsonObject) -> list[JsonObject]:
    """Return output items that get the full reward, if the environment or the row says which."""
    try:
        kind: Any = load_server_class("resources_servers", folder, "app.py")
        found = kind.gold_response(row)
    except GymError:  # an extra is not installed
        return []
    if isinstance(found, str):
        return [{"role": "assistant", "content": found}]
    if found:
        return list(found)
    in_box, bare, *_ = [*guessed_golds(row), None, None]
    guessed = in_box if "boxed" in json.dumps(row.get("responses_create_params")) else bare or in_box
    return [] if guessed is None else list(guessed.items)


def _lines(item: JsonObject) -> Iterator[str]:
    if item.get("type") == "function_call":
        yield f"model calls: {item['name']}({_arguments(item.get('arguments'))})"
    elif item.get("type") == "function_call_output":
        yield f"tool: {shorten(content_text(item.get('output')), MAX_VALUE)}"
    elif text := content_text(item.get("content")).strip():
        who = {"assistant": "model"}.get(str(item.get("role")), str(item.get("role", "model")))
        first, *rest = shorten(text, MAX_TEXT).splitlines()
        yield f"{who}: {first}"
        yield from (f"    {line}".rstrip() for line in rest if line.strip())


def _arguments(given: Any) -> str:
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError:
        return str(given)
    return ", ".join(
        f"{name}={shorten(json.dumps(value, ensure_ascii=False), MAX_VALUE)}" for name, value in found.items()
    )

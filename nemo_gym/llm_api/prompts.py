"""Prompt files: a YAML mapping with `user` and perhaps `system`, each a template over the fields of a row."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ValidationError

from nemo_gym.common.paths import find
from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.base import JsonObject


class PromptConfig(BaseModel):
    """A prompt. Write `{field}` for a field of the row and double braces for literal ones."""

    user: str
    system: str | None = None


def load_prompt_config(path: str) -> PromptConfig:
    """The prompt in a file, found like any other path of a configuration."""
    return _load(str(find(path, what="prompt file")))


@lru_cache(maxsize=64)
def _load(path: str) -> PromptConfig:
    import yaml

    try:
        return PromptConfig.model_validate(yaml.safe_load(Path(path).read_text()))
    except (yaml.YAMLError, ValidationError) as error:
        raise ConfigError(
            f"{path} is not a prompt file: {error}. Expected the keys `user` and, if wanted, `system`."
        ) from error


def fill_prompt(config: PromptConfig, row: Mapping[str, object]) -> list[JsonObject]:
    """The messages of a row."""
    given = {"system": config.system, "user": config.user}
    return [
        {"role": role, "content": _filled(template, row)} for role, template in given.items() if template is not None
    ]


def _filled(template: str, row: Mapping[str, object]) -> str:
    try:
        return template.format_map(row)
    except KeyError as error:
        raise KeyError(
            f"The prompt names the field {error.args[0]!r}, which the row does not have. Its fields: {sorted(row)}"
        ) from error


def apply_prompt_to_row(row: Mapping[str, object], config: PromptConfig) -> JsonObject:
    """The row with the prompt as its input; the other request parameters stay."""
    params = row.get("responses_create_params")
    kept = params if isinstance(params, dict) else {}
    return {**row, "responses_create_params": {**kept, "input": fill_prompt(config, row)}}

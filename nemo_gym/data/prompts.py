"""Prompt files applied to whole datasets."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from nemo_gym.common.paths import find
from nemo_gym.llm_api.prompts import PromptConfig, apply_prompt_to_row, load_prompt_config


def validate_prompt_compatibility(rows: Iterable[Mapping[str, object]], _config: PromptConfig) -> None:
    """Refuse rows that have an input already, which the prompt would replace."""
    found = []
    for index, row in enumerate(rows):
        params = row.get("responses_create_params")
        if isinstance(params, dict) and params.get("input"):
            found.append(index)
    if found:
        raise ValueError(f"A prompt is given, but the rows {found} have an `input` of their own")


def materialize_prompts(input_jsonl: str, prompt_config: str, output_jsonl: str) -> int:
    """Write every row with its prompt filled in, and return how many there are."""
    place = find(prompt_config, what="prompt file")
    config, output = load_prompt_config(str(place)), Path(output_jsonl)
    output.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with find(input_jsonl, what="dataset").open() as lines, output.open("w") as target:
        for line in filter(str.strip, lines):
            row = apply_prompt_to_row(json.loads(line), config)
            target.write(json.dumps({**row, "prompt_config_used": str(place)}, ensure_ascii=False) + "\n")
            count += 1
    return count

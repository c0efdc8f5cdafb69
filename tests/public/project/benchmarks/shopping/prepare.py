import json
from pathlib import Path

PROPERTIES = {"name": {"type": "string"}}
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": PROPERTIES}}
PARAMS = {"tools": [TOOL], "tool_choice": None}


def prepare(levels=("easy", "hard")) -> Path:
    path = Path(__file__).parent / "data" / "rows.jsonl"
    path.parent.mkdir(exist_ok=True)
    rows = [
        {"total": 7, "fruit": ["apple", "pear"], "level": level, "responses_create_params": PARAMS}
        for level in levels
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path

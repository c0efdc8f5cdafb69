"""Run `litellm_client.py` in the interpreter that has litellm."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from nemo_gym.common.paths import PARENT_DIR

LITELLM = PARENT_DIR / ".tools" / "litellm" / "bin" / "python"


def run_litellm(urls: list[str]) -> list[list[dict[str, Any]]]:
    """What happened at each server. One process for all: importing litellm takes most of the time."""
    script = Path(__file__).with_name("litellm_client.py")
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [str(LITELLM), str(script), *urls]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [
        [{key: value for key, value in line.items() if key != "url"} for line in lines if line["url"] == url]
        for url in urls
    ]

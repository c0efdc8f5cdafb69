"""Runs the `prepare()` of a benchmark in the interpreter that its folder needs, and prints the file that it wrote.

Usage: python -m nemo_gym.data.prepare_script <script> <arguments as JSON>
"""

import importlib.util
import json
import sys
from pathlib import Path

from nemo_gym.common.paths import search_roots

RESULT = "prepared: "


def run_script(script: Path, arguments: dict[str, object]) -> Path:
    """What `prepare(**arguments)` of a script returns."""
    sys.path[:0] = [str(script.parent), *map(str, search_roots())]
    spec = importlib.util.spec_from_file_location("prepare_script", script)
    if spec is None or spec.loader is None:
        raise ImportError(f"{script} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Path(module.prepare(**arguments))


if __name__ == "__main__":
    sys.stdout.write(f"{RESULT}{run_script(Path(sys.argv[1]), json.loads(sys.argv[2])).absolute()}\n")

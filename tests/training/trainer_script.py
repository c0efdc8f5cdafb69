"""A trainer for tests: takes groups, writes down each, and checkpoints after every one. Run it as a program."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from nemo_gym.common.atomic_files import write_json
from nemo_gym.training import RolloutSession, Source


def main(folder: Path) -> None:
    order = json.loads((folder / "order.json").read_text())
    checkpoint = folder / "checkpoint.json"
    saved: dict[str, Any] = json.loads(checkpoint.read_text()) if checkpoint.exists() else {"taken": []}
    taken, updates = saved["taken"], order["updates"]
    version = len(taken) if updates else 0
    sources = {name: Source(rows) for name, rows in order["sources"].items()}
    with RolloutSession(order["config"], journal=str(folder / "journal.jsonl"), version=version) as session:
        groups = session.groups(sources, state=saved.get("state"), **order["options"])
        (folder / "started").write_text(str(os.getpid()))
        for group in groups:
            taken.append([group.source, group.row["initial_count"], [each["reward"] for each in group.results]])
            if updates:
                session.set_version(len(taken))
            write_json(checkpoint, {"taken": taken, "state": groups.state()})
        write_json(folder / "done.json", groups.stats())


if __name__ == "__main__":
    main(Path(sys.argv[1]))

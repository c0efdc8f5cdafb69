"""What docs/rollouts.md shows is what happens."""

import os
import re
import subprocess
from pathlib import Path

from nemo_gym.common.paths import PARENT_DIR, SERVER_FOLDERS
from tests.commands import BIN, free_port


def test_every_command_of_the_page_prints_what_the_page_says(tmp_path: Path) -> None:
    page = (PARENT_DIR / "docs/rollouts.md").read_text()
    commands = "\n".join(re.findall(r"```bash\n(.*?)```", page, flags=re.DOTALL))
    shown = [line for block in re.findall(r"```\n```\n(.*?)```", page, flags=re.DOTALL) for line in block.splitlines()]
    for folder in SERVER_FOLDERS:
        (tmp_path / folder).symlink_to(PARENT_DIR / folder)
    (tmp_path / "env.yaml").write_text(f"head_server:\n  host: 127.0.0.1\n  port: {free_port()}\n")
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", commands],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    printed = done.stdout.splitlines()
    assert len(shown) > 15
    assert [line for line in shown if line not in printed and line != "..."] == [], done.stdout + done.stderr

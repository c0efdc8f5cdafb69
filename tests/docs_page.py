"""Turn a page of docs/ into a shell script, and compare what the script prints with what the page shows.

Every `bash` block of a page runs, in order, in one shell. A comment in the line above a block says what is special:

    <!-- test: background -->            the block starts servers; go on when `ng_status` finds them healthy
    <!-- test: exit 1 -->                the block's last command exits with this code
    <!-- test: skip, needs a cluster --> the block does not run; the reason is required

A block without a language directly after a `bash` block shows output. Each of its lines must be printed; `...` stands
for any text, so a line of nothing else stands for any lines.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

_BLOCK = re.compile(
    r"(?:<!-- test: (?P<how>[^>]*?) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
_WAIT_FOR_SERVERS = """
for _ in $(seq 600); do ng_status > /dev/null 2>&1 && break; sleep 0.1; done
ng_status > /dev/null || { cat background.log >&2; exit 98; }
"""


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    text: str
    how: str
    is_adjacent: bool
    """Nothing but white space stands between this block and the one before it."""

    @property
    def skipped(self) -> bool:
        return self.how.startswith("skip")

    @property
    def exit_code(self) -> int:
        return int(self.how.removeprefix("exit ")) if self.how.startswith("exit ") else 0


def blocks_of(page: Path) -> list[Block]:
    """The code blocks of a page, in order."""
    text = page.read_text()
    blocks, end = [], 0
    for one in _BLOCK.finditer(text):
        is_adjacent = not text[end : one.start()].strip()
        blocks.append(Block(one["language"], one["text"], one["how"] or "", is_adjacent))
        end = one.end()
    return blocks


def script_of(blocks: list[Block], *, head_port: int) -> str:
    """All `bash` blocks as one script that stops where a block does not exit as its page says."""
    head_server = f"head_server:\\n  host: 127.0.0.1\\n  port: {head_port}\\n"
    keep_port = f"grep -qs head_server env.yaml || printf '{head_server}' >> env.yaml\n"
    parts = [keep_port]
    for number, block in enumerate(one for one in blocks if one.language == "bash" and not one.skipped):
        parts += [_run(block, number), keep_port]
    return "".join(parts)


def _run(block: Block, number: int) -> str:
    if block.how == "background":
        return f"(\n{block.text}) > background.log 2>&1 &\n{_WAIT_FOR_SERVERS}"
    if block.exit_code:
        wrong = f'echo "block {number} exited with $status" >&2; exit 97'
        return f"{block.text}status=$?; [ $status -eq {block.exit_code} ] || {{ {wrong}; }}\n"
    return f"set -e\n{block.text}set +e\n"


def shown_lines(page: Path, language: str = "bash") -> list[str]:
    """The lines of output that a page shows after blocks of a language."""
    blocks = blocks_of(page)
    shown = [after for before, after in pairwise(blocks) if _is_output(before, after, language)]
    return [line for block in shown for line in block.text.splitlines() if line.strip() not in ("", "...")]


def _is_output(before: Block, after: Block, language: str) -> bool:
    return before.language == language and not before.skipped and after.language == "" and after.is_adjacent


def missing_lines(shown: list[str], printed: str) -> list[str]:
    """The lines that the page shows and the commands did not print."""
    lines = [line.rstrip() for line in printed.splitlines()]
    return [line for line in shown if not any(_pattern(line).fullmatch(one) for one in lines)]


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in line.rstrip().split("...")))

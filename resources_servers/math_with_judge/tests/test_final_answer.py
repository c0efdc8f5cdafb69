"""Reading the final answer takes bounded time, whatever the text."""

import subprocess
import sys

import pytest

TEXTS = {
    "a list that never closes": '"words here (" + "1," * 4000 + " words"',
    "open brackets": '"(" * 30000',
    "nested points": '"(-1, " * 10000 + ")"',
    "bounds": '"at least " * 5000 + "4"',
    "open boxes": r'"\\boxed{" * 5000',
    "statements": '"answer is " * 5000',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=list(TEXTS))
def test_hostile_texts_are_read_to_their_end(text: str) -> None:
    code = f"from resources_servers.math_with_judge.final_answer import final_answer; final_answer({text})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

"""The viewer in the terminal."""

import signal
import urllib.request
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.viewer.server import ViewerConfig
from nemo_gym.viewer.text import text_report
from tests.commands import ng, started
from tests.jsonl import write_lines
from tests.polling import until_sync
from tests.viewer.sample_files import math_records, talk_of_two, write_sample


def report(path: Path, **options: object) -> str:
    config = ViewerConfig.model_validate({"jsonl_fpath": str(path), "text": True, **options})
    return "\n".join(text_report(config))


def test_the_metrics_and_the_first_rows_are_printed(tmp_path: Path) -> None:
    text = report(write_lines(tmp_path / "rollouts.jsonl", math_records()), limit=2, sort="-reward", where="task > 0")
    assert "mean reward 0.7," in text
    assert "2 of 5 groups" in text
    assert "18 more rows" in text
    assert "█" in text


def test_a_conversation_is_printed_without_control_characters(tmp_path: Path) -> None:
    text = report(write_sample(tmp_path), row=25)
    assert "── tool call" in text
    assert "javascript:" in text
    assert not any(ord(character) < 32 and character not in "\n\t" for character in text)
    assert len(text) < 100_000


def test_rows_that_contain_a_text_are_printed(tmp_path: Path) -> None:
    text = report(write_lines(tmp_path / "rollouts.jsonl", math_records()), search="SQUARE of 3", limit=3)
    assert [line.partition("  ")[0] for line in text.splitlines()[1:]] == ["row 4", "row 5", "row 6"]


def test_an_unreadable_filter_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read the filter"):
        report(write_lines(tmp_path / "rollouts.jsonl", math_records()), where="reward <")


@pytest.mark.parametrize(("line", "message"), [("oops", "Expecting value"), ("[" * 15_000, "nested too deeply")])
def test_a_line_that_is_not_json_is_printed_as_it_is(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text(f"{line}\n")
    text = report(tmp_path / "bad.jsonl", row=0)
    assert f"The line is not JSON: {message}" in text
    assert text.endswith(line)


def test_a_sort_by_a_field_that_no_row_has_says_so(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollouts.jsonl", math_records())
    assert "Did you mean 'reward'?" in report(path, sort="-rewrd")
    assert "No row has" not in report(path, sort="-reward")


def test_a_locale_without_utf_8_and_a_cache_that_cannot_be_written_are_no_tracebacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "rollouts.jsonl", math_records())
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    shown = ng("ng", "view", "--text", str(path), cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "????" in shown.stdout

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEMO_GYM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    refused = ng("ng", "view", "--text", str(path), cwd=tmp_path)
    assert refused.returncode == 2
    assert "NEMO_GYM_CACHE_DIR" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_command_takes_files_and_flags(tmp_path: Path) -> None:
    write_lines(tmp_path / "my $ {odd} 'name'=1.jsonl", math_records())
    done = ng("ng", "view", "--text", "./my $ {odd} 'name'=1.jsonl", "+limit=1", cwd=tmp_path)
    assert "24 rows" in done.stdout, done.stderr
    assert done.returncode == 0
    missing = ng("ng_viewer", "+jsonl_fpath=nothing.jsonl", cwd=tmp_path)
    assert (missing.returncode, "nothing.jsonl" in missing.stderr) == (2, True)


def test_the_server_says_where_it_is_and_stops_on_a_signal(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollouts.jsonl", math_records())
    with started("ng_viewer", f"+jsonl_fpath={path}", "+server_port=0", cwd=tmp_path) as running:
        running.wait_for("Viewer: http://127.0.0.1:")
        running.wait_for("Ctrl+C")
        url = next(line for line in running.lines if "http://" in line).split()[-1]

        def page() -> bytes:
            with urllib.request.urlopen(f"{url}api/rows?file=0") as reply:
                return bytes(reply.read())

        until_sync(lambda: b'"total":24' in page())
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cache", "rollouts.jsonl"]


def test_every_side_of_a_rollout_is_printed_and_every_message_says_whose_it_is(tmp_path: Path) -> None:
    text = report(write_lines(tmp_path / "rollouts.jsonl", [talk_of_two()]), row=0)
    headings = [line for line in text.splitlines() if line.startswith(("──", "══", "response."))]
    assert headings == [
        "── user, by user ──",
        "── assistant, by policy, thread 1 ──",
        "════ the conversation of user ════",
        "── user ──",
        "── tool call restart_router ──",
        "response.turns: 1",
        "response.ended_by: user",
    ]

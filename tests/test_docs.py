"""The commands of the documentation run and print what the pages show; links lead somewhere; the site builds."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.common.paths import PARENT_DIR, SERVER_FOLDERS
from tests.browser.chromium import needs_chromium
from tests.commands import BIN, free_port
from tests.docs_page import blocks_of, missing_lines, script_of, shown_lines
from tests.served_model import served_model

DOCS = PARENT_DIR / "docs"
GENERATED = {"api.md", "catalogue.md", "commands.md"}
PAGES = sorted(page for page in DOCS.glob("*.md") if page.name not in GENERATED)
ENDPOINT = "https://api.openai.com/v1"


def _runs(page: Path) -> bool:
    return any(block.language == "bash" and not block.skipped for block in blocks_of(page))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like a clone to the commands, without anything of ours being written to."""
    for name in SERVER_FOLDERS:
        (tmp_path / name).mkdir()
        for one in (PARENT_DIR / name).iterdir():
            (tmp_path / name / one.name).symlink_to(one)
    return tmp_path


def run_script(script: str, folder: Path) -> tuple[int, str]:
    """Run a shell script; end everything it started."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "NO_COLOR": "1"}
    process = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    printed: list[str] = []
    try:
        for line in process.stdout or ():
            printed.append(line)
            if line == "end of the page\n":
                break
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
    finally:
        _end(process)
    return process.returncode, "".join(printed)


def _end(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.stdout:
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if _runs(page)], ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_and_print_what_it_shows(page: Path, folder: Path) -> None:
    script = script_of(blocks_of(page), head_port=free_port())
    with served_model() as url:
        _, printed = run_script(script.replace(ENDPOINT, url) + "echo 'end of the page'\n", folder)
    assert printed.endswith("end of the page\n"), printed
    assert missing_lines(shown_lines(page), printed) == [], printed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["python", "judges", pytest.param("browser", marks=needs_chromium)])
def test_the_python_of_a_page_runs_and_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    page = DOCS / f"{name}.md"
    program = "".join(block.text for block in blocks_of(page) if block.language == "python")
    (tmp_path / "page.py").write_text(program)
    code, printed = run_script("python page.py", tmp_path)
    assert code == 0, printed
    assert missing_lines(shown_lines(page, "python"), printed) == [], printed


def test_a_block_that_is_not_run_says_why() -> None:
    skipped = [(page.name, block.how) for page in PAGES for block in blocks_of(page) if block.skipped]
    assert [one for one in skipped if len(one[1].removeprefix("skip").strip(", ")) < 10] == []


def test_every_file_that_a_page_names_is_there() -> None:
    folders = ("nemo_gym", "tests", "bench", *SERVER_FOLDERS)
    named = re.compile(rf"`((?:{'|'.join(folders)})/[\w./-]+)`")
    missing = [
        (page.name, path)
        for page in PAGES
        for path in named.findall(page.read_text())
        if not (PARENT_DIR / path).exists() and "my_" not in path and "letter_count" not in path
    ]
    assert missing == []


def test_every_test_that_a_page_names_is_there() -> None:
    named = re.compile(r"`((?:tests|resources_servers|responses_api_agents|responses_api_models)/[\w/]+\.py)::(\w+)`")
    cited = [found for page in PAGES for found in named.findall(page.read_text())]
    assert len(cited) > 15
    missing = [one for one in cited if f"def {one[1]}(" not in (PARENT_DIR / one[0]).read_text()]
    assert missing == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(DOCS), str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site/tutorial.html").is_file()
    words = (tmp_path / "site/searchindex.js").read_text()  # full-text search needs no server
    assert '"rubric"' in words or "rubric:" in words
    assert "site.js" in (tmp_path / "site/index.html").read_text()


LIFE = re.compile(r"^\| \d+ \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def test_the_life_of_a_rollout_names_what_is_there() -> None:
    steps = LIFE.findall((DOCS / "architecture.md").read_text())
    assert len(steps) == 32
    modules = {name for step in steps for name in re.findall(r"`([\w/]+\.py)`", f"{step[0]} {step[2]}")}
    assert len(modules) == 20
    sources = {name: (PARENT_DIR / "nemo_gym" / name).read_text() for name in modules}
    for _, what, where in steps:
        for file in re.findall(r"`([\w/]+\.py)`", where):
            named = re.match(r"`([\w.]+)`", what)
            for part in named[1].split(".") if named else ():
                assert part in sources[file], (part, file)

"""The page in a real browser: Debian's Chromium, driven by playwright. Without Chromium these tests are skipped."""

import asyncio
import shlex
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import nemo_gym as gym
from nemo_gym.common import event_loop
from nemo_gym.server.uvicorn_runner import bind, serving
from nemo_gym.testing import example_row
from nemo_gym.viewer.files import Files
from nemo_gym.viewer.server import ViewerApp
from tests.commands import started
from tests.jsonl import write_lines
from tests.polling import until_sync
from tests.stacks import agent_config
from tests.viewer.sample_files import HOSTILE, math_records, record, talk_of_two, tool_call, write_sample

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt install chromium")
PATIENCE_MS = 60_000
LIVE_REPLIES = [{"user": "never", "latency_s": 600, "say": "late"}, {"say": "Done."}]


@contextmanager
def serve(*paths: Path, token: str | None = None) -> Iterator[str]:
    """The viewer in a thread of its own, since playwright's calls block."""
    with closing(bind("127.0.0.1", 0)) as listening, Files(paths) as files:
        port, ready, stop = listening.getsockname()[1], threading.Event(), threading.Event()

        async def run() -> None:
            with closing(ViewerApp(files, token=token)) as app:
                async with serving({port: app}, [listening]):
                    ready.set()
                    await asyncio.to_thread(stop.wait)

        thread = threading.Thread(target=event_loop.run, args=(run(),))
        thread.start()
        try:
            assert ready.wait(60)
            yield f"http://127.0.0.1:{port}/"
        finally:
            stop.set()
            thread.join()


@contextmanager
def visiting(page: Any, *paths: Path, token: str | None = None) -> Iterator[str]:
    """A viewer for one page, which leaves it before it stops: the page asks for news again and again."""
    with serve(*paths, token=token) as url:
        try:
            yield url
        finally:
            page.goto("about:blank")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    start = playwright.sync_playwright()
    with start as driver, closing(driver.chromium.launch(executable_path=CHROMIUM, timeout=PATIENCE_MS)) as found:
        yield found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("viewer")
    path = write_sample(folder)
    after = write_lines(folder / "after.jsonl", math_records(luck=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEMO_GYM_CACHE_DIR", str(folder / "cache"))
        with serve(path, after) as address:
            yield address


@pytest.fixture
def expected_errors() -> list[str]:
    """Parts of messages that a test provokes."""
    return []


@pytest.fixture
def page(browser: Any, expected_errors: list[str]) -> Iterator[Any]:
    """A page on which any error of a script, and any breach of the policy, fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light", accept_downloads=True)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.extend([message.text] if message.type == "error" else []))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    yield page
    context.close()
    assert [error for error in errors if not any(part in error for part in expected_errors)] == []


@pytest.fixture
def show(page: Any, url: str) -> Callable[[str], Any]:
    def open_view(address: str) -> Any:
        page.goto(url + address)
        page.wait_for_selector("main[data-view]")
        return page

    return open_view


def table_rows(page: Any) -> list[int]:
    found = page.locator("tr[data-row]").evaluate_all("rows => rows.map(row => Number(row.dataset.row))")
    return [int(row) for row in found]


def test_the_table_sorts_and_filters_and_its_address_is_a_deep_link(
    page: Any, show: Callable[[str], Any], expected_errors: list[str]
) -> None:
    expected_errors.append("status of 400")
    show("#/rows?file=0")
    assert table_rows(page) == list(range(26))
    page.click("th a:text-is('time')")
    page.wait_for_selector("th.on:has-text('time')")
    page.fill("#filter", "verifier.level = 2 and reward = 1")
    page.press("#filter", "Enter")
    page.wait_for_selector("#range:has-text('of 6')")
    assert table_rows(page) == [23, 22, 9, 21, 8, 20]
    page.select_option("select[aria-label='Add a column']", "verifier.kind")
    page.wait_for_selector("td:text-is('numeric')")
    page.reload()
    page.wait_for_selector("td:text-is('numeric')")
    assert table_rows(page) == [23, 22, 9, 21, 8, 20]
    page.fill("#filter", "reward <")
    page.press("#filter", "Enter")
    page.wait_for_selector("#filter-error")


def test_a_conversation_has_folded_reasoning_tools_side_by_side_and_formulas(
    page: Any, show: Callable[[str], Any]
) -> None:
    show("#/row?file=0&row=9")
    assert not page.locator("details.reasoning").evaluate("element => element.open")
    arguments, result = page.locator(".arguments").bounding_box(), page.locator(".result").bounding_box()
    assert arguments["x"] + arguments["width"] <= result["x"]
    assert arguments["y"] == result["y"]
    assert "4 * 4" in page.inner_text(".arguments")
    assert page.locator("math msup").count() == 1
    assert page.locator("math mfrac").count() == 1
    assert page.inner_text("pre.code[data-language=python]").strip() == "print(4 ** 2)"
    assert "16" in page.inner_text(".answers .expected")
    assert "16" in page.inner_text(".answers .given")


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"\frac12", "<mrow><mfrac><mn>1</mn><mn>2</mn></mfrac></mrow>"),
        (r"x^{10}", "<mrow><msup><mi>x</mi><mrow><mn>10</mn></mrow></msup></mrow>"),
        (r"\sqrt{2}", "<mrow><msqrt><mrow><mn>2</mn></mrow></msqrt></mrow>"),
        (r"\href{javascript:alert(1)}{x}", None),
        ("{" * 200, None),
        (r"\frac{1", None),
    ],
)
def test_formulas_become_mathml_or_stay_as_they_are(
    page: Any, show: Callable[[str], Any], formula: str, expected: str | None
) -> None:
    show("#/rows?file=0")
    draw = "async (text) => (await import('/latex.js')).latex(text, false)?.innerHTML ?? null"
    assert page.evaluate(draw, formula) == expected


def test_keys_walk_through_rows_and_open_them(page: Any, show: Callable[[str], Any]) -> None:
    show("#/rows?file=0&where=task+%3D+2")
    for key in ("j", "j", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("#row-title:has-text('row 9')")
    page.keyboard.press("r")
    assert page.locator("details.reasoning").evaluate("element => element.open")
    page.keyboard.press("j")
    page.wait_for_selector("#row-title:has-text('row 10')")
    page.keyboard.press("u")
    page.wait_for_selector("#range:has-text('of 4')")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.keyboard.press("d")
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_groups_of_repeats_show_their_spread(page: Any, show: Callable[[str], Any]) -> None:
    show("#/tasks?file=1&sort=-spread")
    assert page.locator("tr.flat").count() == 5
    assert page.locator("tbody tr").first.locator(".square").count() == 4
    assert "no variance" in page.inner_text("tr.flat >> nth=0")


def test_verdicts_of_judges_are_shown_as_text(page: Any, tmp_path: Path) -> None:
    reply = {
        "model": "stern",
        "output": [{"type": "message", "role": "assistant", "content": [{"text": "Too <b>long</b>."}]}],
    }
    judged = {
        **record("Sum it up.", "Ada programmed."),
        "reward_components": {"short": 0.25},
        "orders_agree": False,
        "judge_evaluations": [{"verdict_label": "poor", "response": reply}, None, {"response": 7}],
    }
    with visiting(page, write_lines(tmp_path / "judged.jsonl", [judged])) as url:
        page.goto(f"{url}#/row?file=0&row=0")
        card = page.locator(".verdicts")
        card.wait_for(timeout=PATIENCE_MS)
        shown = card.inner_text()
    for part in ("stern", "poor", "Too <b>long</b>.", "short", "0.25", "order"):
        assert part in shown


def test_the_overview_draws(page: Any, show: Callable[[str], Any]) -> None:
    show("#/overview?file=0")
    for name in ("histogram", "curve", "scatter plot", "bars"):
        assert page.locator(f"svg[aria-label='{name}']").count() >= 1
    assert "Hardest tasks" in page.inner_text("main")


def test_failures_are_listed_by_cause(page: Any, show: Callable[[str], Any]) -> None:
    show("#/failures?file=0")
    assert page.locator("tbody tr").count() == 2
    assert "overloaded" in page.inner_text("tbody tr >> nth=0")


def test_two_files_are_compared_and_rollouts_shown_side_by_side(page: Any, show: Callable[[str], Any]) -> None:
    show("#/compare?file=1&other=0")
    assert "6 tasks in both" in page.inner_text("#compared")
    page.locator("tbody a").first.click()
    page.wait_for_selector("main[data-view=pair]")
    left, right = (page.locator(".side").nth(number).bounding_box() for number in (0, 1))
    assert left["x"] < right["x"]
    assert left["y"] == right["y"]


def test_runs_are_searched_tagged_and_compared(page: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_STATE_DIR", str(tmp_path / "state"))

    class Guess(gym.Environment):
        async def verify(self, response: gym.NeMoGymResponse) -> float:
            return float(response.output_text == "b")

    async def letter(messages: list[dict[str, str]]) -> str:
        return messages[-1]["content"]

    for name in ("one", "two", "three"):
        rows = ["a", "b", name[0]]
        gym.evaluate(Guess, rows, model=letter, output=tmp_path / f"{name}.jsonl", progress=False)
    with visiting(page) as url:
        page.goto(url)
        page.wait_for_selector("tr[data-run]")
        assert page.locator("tr[data-run]").count() == 3
        assert page.locator(".trends .spark .dot").count() == 3
        page.locator("tr[data-run] >> nth=0").hover()
        page.locator("button.add-tag >> nth=0").click()
        page.fill("input.tag-input", "best, new")
        page.press("input.tag-input", "Enter")
        page.wait_for_selector(".tags .chip:has-text('best')")
        for place in range(3):
            page.locator("tr[data-run] input[type=checkbox]").nth(place).check()
        page.click("#compare-runs:has-text('Compare 3 runs')")
        page.wait_for_selector("#compared:has-text('tasks in all 3')")
        assert page.inner_text("#whose") == "guess · letter_model · simple_agent"
        page.keyboard.press("h")
        page.fill("#find-run", "tag:best")
        page.press("#find-run", "Enter")
        page.wait_for_selector("#run-count:has-text('1 run')")
        page.locator("td.name a").first.click()
        page.wait_for_selector("main[data-view=rows] tr[data-row='2']")


def test_the_final_state_is_beside_the_expected_one(page: Any, tmp_path: Path) -> None:
    states = {
        "final_state": {"beds": {"1": "peas"}, "tools": ["rake"]},
        "expected_state": {"beds": {"1": "beans", "2": "leeks"}},
    }
    with visiting(page, write_lines(tmp_path / "state.jsonl", [record("plant", "done") | states])) as url:
        page.goto(f"{url}#/row?file=0&row=0")
        page.wait_for_selector(".state tr.differs")
        rows = [row.split("\t") for row in page.locator(".state tr.differs").all_inner_texts()]
        names = page.locator("table.fields td:first-child").all_inner_texts()
    assert [(row[0], row[1].split()[-1], *row[2:]) for row in rows] == [
        ("≠", "1", "beans", "peas"),
        ("≠", "2", "leeks", "\u2013"),
        ("≠", "tools", "\u2013", '["rake"]'),
    ]
    assert not {"final_state", "expected_state", "_task_index", "_repeat_index"} & set(names)


def test_a_long_rollout_is_stepped_through_by_turn(page: Any, tmp_path: Path) -> None:
    items = [each for number in range(300) for each in tool_call("look", "empty", call_id=f"c{number}", bed=number)]
    made = record("go", *items, "all empty")
    made["_step_seconds"] = [{"model": 0.1 * (n % 7), "tools": 0.01} for n in range(300)] + [{"model": 1.0}]
    with visiting(page, write_lines(tmp_path / "long.jsonl", [made])) as url:
        page.goto(f"{url}#/row?file=0&row=0")
        page.wait_for_selector(".turn-bar")
        assert page.locator(".turn-bar").count() == 301
        page.keyboard.press("s")
        for _ in range(2):
            page.keyboard.press("]")
        assert page.inner_text("#turn-label") == "turn 3 of 301, 210 ms"
        assert page.locator("[data-turn]:visible").count() == 1
        assert '"bed": 2' in page.inner_text("[data-turn]:visible")
        page.locator(".turn-bar").last.click()
        assert "all empty" in page.inner_text("[data-turn]:visible")


def test_cut_texts_of_the_table_are_shown_whole(page: Any, tmp_path: Path) -> None:
    prompt, answer = (f"{word} " * 60 + "end" for word in ("ask", "reply"))
    with visiting(page, write_lines(tmp_path / "one.jsonl", [record(prompt, answer)])) as url:
        page.goto(url)
        page.wait_for_selector("tr[data-row]")
        assert "end" not in page.inner_text("tr[data-row]")
        page.keyboard.press("w")
        until_sync(lambda: page.inner_text("tr.whole").count("end") == 2)


def test_search_finds_and_opens_the_place(page: Any, show: Callable[[str], Any]) -> None:
    show("#/rows?file=0")
    page.keyboard.press("/")
    page.fill("#search", "multiply 5 BY itself")
    page.press("#search", "Enter")
    page.wait_for_selector("#search-note[data-done=true]")
    assert page.locator(".hits li").count() == 4
    page.locator(".hits a").first.click()
    page.wait_for_selector("#row-title:has-text('row 12')")
    page.wait_for_selector("details.reasoning[open]")


def test_tokens_show_heat_and_breaks(page: Any, show: Callable[[str], Any]) -> None:
    show("#/tokens?file=0&row=24")
    assert page.locator(".break").count() == 1
    assert page.locator(".card .token.masked").all_inner_texts()[:5] == ["1", "2", "3", "4", "5"]
    assert page.locator(".card .token.made.heat5").all_inner_texts() == ["11"]


def test_a_selection_is_exported_as_one_file_without_scripts(
    page: Any, browser: Any, show: Callable[[str], Any], tmp_path: Path
) -> None:
    show("#/rows?file=0")
    for row in (9, 25):
        page.check(f"tr[data-row='{row}'] input")
    expected_bytes = 1_000_000  # the long text, as far as the server sends it
    with page.expect_download() as download:
        page.click("#export")
    path = tmp_path / "export.html"
    download.value.save_as(path)
    text = path.read_text()
    assert len(text) > expected_bytes
    assert "<script" not in text.replace("&lt;script", "")
    with closing(browser.new_page()) as exported:
        exported.goto(path.as_uri())
        assert exported.locator("math msup").count() == 1
        assert exported.locator("h1").all_inner_texts() == ["rollouts.jsonl, row 9", "rollouts.jsonl, row 25"]
        assert exported.evaluate("document.body.dataset.owned") is None


def test_a_hostile_rollout_is_only_text(page: Any, show: Callable[[str], Any], expected_errors: list[str]) -> None:
    expected_errors.append("TrustedHTML")
    show("#/row?file=0&row=25")
    page.wait_for_selector(".thread")
    assert page.locator("main script, main iframe, main object, main [onerror], main [onload]").count() == 0
    assert page.locator("main [href^='javascript:'], main [src^='javascript:']").count() == 0
    assert page.locator("main img").count() == 1
    text = page.inner_text("main")
    assert "<script>document.body.dataset.owned='2'</script>" in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "5.00 MB" in text
    assert "open raw" in text
    assert len(text) < 200_000
    page.locator("details").evaluate_all("all => all.forEach(each => (each.open = true))")
    page.keyboard.press("p")
    page.wait_for_function("document.body.dataset.owned === undefined && document.querySelector('.thread')")
    assert page.evaluate("document.body.dataset.owned") is None
    refused = "try { document.body.innerHTML = '<b>x</b>'; 'parsed' } catch (error) { 'refused' }"
    assert page.evaluate(refused) == "refused"
    assert HOSTILE[:20] in page.inner_text("main")


ODD: tuple[Any, ...] = (
    *(None, True, 7, "text", "", [], {}, [None], [[]], {"$cut": "x"}, {"text": {}}, [{"type": 1}]),
    *({"type": "reasoning"}, {"type": "function_call"}, {"type": "function_call", "arguments": {}}),
    *({"role": {}, "content": [None, {}]}, {"type": "function_call_output", "output": []}),
    *({"role": "tool", "content": 1}, {"role": "assistant", "tool_calls": [None, {}]}),
    {"role": "user", "content": [{"type": "input_image", "image_url": {"url": 1}}, {"type": "refusal"}]},
)


def odd_records() -> Iterator[Any]:
    """Every place where the page reads a record, with every kind of value."""
    for value in ODD:
        yield value
        names = ("response", "responses_create_params", "reward", "expected_answer", "messages", "prompt", "_seconds")
        yield from ({name: value} for name in (*names, "_task_index"))
        yield {"cause": "model", "row": value, "message": value}
        yield {"response": {"output": value, "usage": value, "status": value}}
        yield {"response": {"output": [value]}}
        yield {"responses_create_params": {"input": value, "tools": value, "instructions": value}}


def test_records_of_any_shape_are_shown_without_an_error(page: Any, show: Callable[[str], Any]) -> None:
    show("#/rows?file=0")
    draw = """async (records) => {
      const { rolloutBody } = await import("/rollout.js");
      const failed = [];
      for (const record of records) {
        try {
          document.body.append(rolloutBody({ row: 0, bytes: 1, record, raw: null, repeats: [] }, 0));
        } catch (error) {
          failed.push(`${JSON.stringify(record)}: ${error}`);
        }
      }
      return failed;
    }"""
    assert page.evaluate(draw, list(odd_records())) == []


def test_a_long_conversation_is_shown_in_parts(page: Any, tmp_path: Path) -> None:
    with visiting(
        page, write_lines(tmp_path / "long.jsonl", [record("go", *(f"step {number}" for number in range(900)))])
    ) as url:
        page.goto(f"{url}#/row?file=0&row=0")
        for shown in (400, 800, 901):
            page.wait_for_function("count => document.querySelectorAll('.item').length === count", arg=shown)
            if shown < 901:
                page.click("button.more")


def test_a_file_that_grows_is_followed(page: Any, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "live.jsonl", [record("first", "1")])
    with visiting(page, path) as address:
        page.goto(address)
        page.wait_for_selector("tr[data-row='0']")
        with path.open("a") as file:
            file.write(path.read_text())
        count = "fetch('/api/files').then(reply => reply.json()).then(found => found.files[0].rows)"
        until_sync(lambda: page.evaluate(count) == 2)
        page.wait_for_selector("tr.new[data-row='1']")
        page.wait_for_selector("#range:has-text('of 2')")


NO_ROWS_AT_FIRST = """
  const fetchNow = window.fetch;
  window.fetch = async (address, ...rest) => {
    const reply = await fetchNow(address, ...rest);
    if (!address.startsWith("/api/rows?")) return reply;
    window.fetch = fetchNow;
    window.hadNoRows = true;
    const { progress, ...page } = await reply.json();
    return Response.json({ ...page, total: 0, rows: [], progress: { ...progress, rows: 0, complete: false } });
  };
"""


def test_rows_that_were_not_indexed_when_the_page_was_opened_are_shown(page: Any, tmp_path: Path) -> None:
    page.add_init_script(NO_ROWS_AT_FIRST)
    with visiting(page, write_lines(tmp_path / "rollouts.jsonl", math_records())) as address:
        page.goto(address)
        page.wait_for_selector("tr[data-row='0']")
        assert page.evaluate("window.hadNoRows")


HOLD_NEXT_STATUS = """() => {
  const fetchNow = window.fetch;
  window.fetch = async (address, ...rest) => {
    const reply = await fetchNow(address, ...rest);
    if (!address.startsWith("/api/live?")) return reply;
    window.fetch = fetchNow;
    await new Promise((resolve) => { window.release = resolve; });
    return reply;
  };
}"""


def test_a_live_run_is_watched_and_a_rollout_cancelled(page: Any, tmp_path: Path) -> None:
    """A real collection by the command; its scripted model never answers the second row and the third."""
    prompts = ("hello", "never", "never, too")
    rows = [example_row(prompt, initial_count=0, expected_count=0) for prompt in prompts]
    write_lines(tmp_path / "rows.jsonl", rows)
    (tmp_path / "config.yaml").write_text(agent_config("example_stateful_counter", replies=LIVE_REPLIES))
    options = ("+agent_name=agent", "+input_jsonl_fpath=rows.jsonl", "+output_jsonl_fpath=out.jsonl")
    collect = ("ng_collect_rollouts", "+config_paths=[config.yaml]", "+head_server.port=1", "+tolerated_failures=2")
    with started(*collect, *options, cwd=tmp_path) as running, visiting(page, tmp_path / "rows.jsonl") as address:
        page.goto(f"{address}#/live")
        page.wait_for_selector("tr[data-rollout='1']:has-text('policy_model/v1/responses')")
        with started("ng_status", "--watch", "+every_s=0.2", "+head_server.port=1", cwd=tmp_path) as watching:
            watching.wait_for("1 of 3 rollouts, mean reward 1")
            watching.wait_for("model at policy_model/v1/responses")
            watching.signal(signal.SIGINT)
            assert watching.wait() == 130
        page.evaluate(HOLD_NEXT_STATUS)
        until_sync(lambda: page.evaluate("window.release !== undefined"))
        page.click("tr[data-rollout='1'] button.cancel")
        page.wait_for_selector("tr[data-rollout='1'] button:disabled:has-text('cancelled')")
        page.evaluate("window.release()")  # it lists the rollout still
        page.wait_for_selector("tr[data-rollout='1']", state="detached")  # though the pointer is still there
        page.click("tr[data-rollout='2'] button.cancel")
        page.wait_for_selector("#no-runs")
        assert running.wait() == 0
        assert "Cancelled by the user." in running.text


def test_empty_columns_are_left_out_and_a_filter_on_no_field_says_so(page: Any, tmp_path: Path) -> None:
    rows = [{"responses_create_params": {"input": "one"}, "level": 1}, {"responses_create_params": {"input": "two"}}]
    with visiting(page, write_lines(tmp_path / "rows.jsonl", rows)) as address:
        page.goto(f"{address}#/rows")
        page.wait_for_selector("tr[data-row='1']")
        titles = page.locator("thead th").all_inner_texts()
        assert [title for title in titles if title] == ["row", "outcome", "size", "prompt"]
        assert page.locator(".outcome.bad").count() == 0
        page.goto(f"{address}#/rows?where=levl%20%3E%200")
        assert "Did you mean 'level'?" in page.inner_text("#filter-hint")


def test_a_file_that_is_not_json_lines_says_so(page: Any, tmp_path: Path) -> None:
    (tmp_path / "array.json").write_text("[]")
    with visiting(page, tmp_path / "array.json") as address:
        page.goto(address)
        assert "This is not JSON Lines" in page.inner_text("#file-note")


def test_lists_tables_and_headings_of_markdown_are_shown_as_such(page: Any, tmp_path: Path) -> None:
    text = (
        "# Result\nFirst:\n- one\n  - two **bold**\n1. three\n\n| a | b |\n|---|---|\n| 1 | <i>2</i> |\n> said\nlast"
    )
    with visiting(page, write_lines(tmp_path / "rollouts.jsonl", [record("q", text)])) as address:
        page.goto(f"{address}#/row?file=0&row=0")
        page.wait_for_selector(".assistant .prose")
        prose = page.locator(".assistant .prose")
        assert prose.locator(".heading").inner_text() == "Result"
        assert prose.locator(".li").all_inner_texts() == ["•\none", "•\ntwo bold", "1.\nthree"]
        assert prose.locator("td").all_inner_texts() == ["1", "<i>2</i>"]
        assert prose.locator(".quote").inner_text() == "said"
        assert prose.locator(".p").all_inner_texts() == ["First:", "last"]


def test_the_page_fits_a_narrow_window(page: Any, show: Callable[[str], Any]) -> None:
    page.set_viewport_size({"width": 420, "height": 800})
    show("#/rows?file=0")
    page.wait_for_selector("tr[data-row='0']")
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    assert page.locator("#bar").bounding_box()["height"] < 120


def test_with_a_token_the_printed_address_opens_the_page(page: Any, tmp_path: Path) -> None:
    with visiting(page, write_lines(tmp_path / "rollouts.jsonl", math_records()), token="a token") as address:
        page.goto(f"{address}#token=a%20token")
        page.wait_for_selector("tr[data-row='0']")
        assert "token" not in page.url


def test_every_side_of_a_rollout_is_shown(page: Any, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollouts.jsonl", [talk_of_two()])
    with visiting(page, path) as url:
        page.goto(f"{url}#/row?file=0&row=0")
        page.wait_for_selector(".participant summary")
        assert page.locator(".thread header").first.inner_text().lower() == "user · user"
        page.locator(".participant summary").click()
        assert "restart_router" in page.locator(".participant .thread").inner_text()


def test_a_rollout_with_a_journal_says_how_to_run_it_again_from_a_step(page: Any, tmp_path: Path) -> None:
    path = tmp_path / "it's.jsonl"
    write_lines(path, math_records(tasks=1))
    with visiting(page, path) as url:
        page.goto(f"{url}#/row?file=0&row=1")
        page.wait_for_selector(".fields")
        assert page.locator(".again").count() == 0
    path.with_name("it's_journal.jsonl").touch()
    with visiting(page, path) as url:
        page.goto(f"{url}#/row?file=0&row=1")
        page.locator(".again > summary").click()
        page.locator(".again details summary").first.click()
        command = shlex.split(page.locator(".again pre").first.inner_text())
    assert command[0] == "ng_fork"
    assert f"+rollouts_jsonl_fpath={path}" in command
    assert {"+row=1", "+step=0"} <= {*command}

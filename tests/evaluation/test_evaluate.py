"""`gym.evaluate` and its siblings: classes, rows and models of a script, with the contracts of a collection."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas  # type: ignore[import-untyped]
import pytest

import nemo_gym as gym
from nemo_gym.answers import last_number
from nemo_gym.errors import ConfigError, GymError, SetupError
from nemo_gym.llm_api.responses import NeMoGymResponse
from nemo_gym.rollouts.store import failures_path, manifest_path
from tests.commands import free_port
from tests.served_model import served_model

WORDS = ("strawberry", "banana", "tree")
ROWS = [{"prompt": f"How often is e in {word}?", "word": word, "letter": "e"} for word in WORDS]


class Spelled(gym.SessionState):
    words: int = 0


class LetterCount(gym.Environment):
    """Names the fields of its rows in its signatures."""

    @gym.tool
    async def spell(self, word: str, state: Spelled) -> list[str]:
        """Spell a word."""
        state.words += 1
        return list(word)

    async def verify(self, response: NeMoGymResponse, word: str, letter: str, state: Spelled) -> gym.Score:
        return gym.Score(float(last_number(response) == word.count(letter)), spelled=state.words)


class NoVerify(gym.Environment):
    """Scores nothing."""


class UntypedTool(LetterCount):
    @gym.tool
    async def shout(self, word) -> str:  # type: ignore[no-untyped-def]
        return str(word).upper()


async def speller(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
    """Calls the tool, then counts in what it answered."""
    last = messages[-1]
    if last["role"] == "tool":
        return f"I count {last['content'].count('e')}."
    function = {
        "name": tools[0]["function"]["name"],
        "arguments": json.dumps({"word": last["content"][:-1].split()[-1]}),
    }
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }


def failing(_messages: list[dict[str, Any]]) -> str:
    raise KeyError("my mistake")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def evaluate(target: Any = LetterCount, rows: Any = ROWS, **options: Any) -> gym.Evaluation:
    return gym.evaluate(target, rows, **{"model": gym.Scripted(["I count 1."]), "progress": False, **options})


def test_a_class_of_a_script_is_evaluated_and_gives_a_frame() -> None:
    result = evaluate(repeats=4, limit=2)
    assert (result.mean, len(result), result.failures) == (0.5, 8, [])
    assert (result.pass_at(1), result.pass_at(3), result.pass_at(4)) == (0.5, 0.5, 0.5)
    assert [(each.task, each.repeat) for each in result.rollouts] == [(task, n) for task in (0, 1) for n in range(4)]
    assert (result.rollouts[0]["word"], result.rollouts[0].answer) == ("strawberry", "I count 1.")
    frame = result.to_pandas()
    assert list(frame["reward"]) == [1.0] * 4 + [0.0] * 4
    assert {"task", "repeat", "prompt", "word", "answer", "spelled", "tokens"} <= set(frame.columns)
    with pytest.raises(ConfigError, match="repeats=5"):
        result.pass_at(5)


def test_a_function_is_a_model_that_calls_tools_and_the_agent_may_be_a_class() -> None:
    class Polite(gym.Agent):
        async def converse(self, body: Any, jar: Any) -> NeMoGymResponse:
            response = await super().converse(body, jar)
            response.metadata = {"polite": "yes"}
            return response

    result = evaluate(model=speller, agent=Polite)
    assert [each["spelled"] for each in result.rollouts] == [1, 1, 1]
    assert (result.mean, result.rollouts[0]["response"]["metadata"]) == (1.0, {"polite": "yes"})
    assert [turn.who for turn in result.rollouts[0].conversation] == ["user", "tool call", "tool", "model"]


async def test_it_works_in_a_running_loop_also_several_at_once() -> None:
    both = [gym.aevaluate(LetterCount, ROWS[:count], model=speller, progress=False) for count in (1, 3)]
    assert [len(each) for each in await asyncio.gather(*both)] == [1, 3]
    assert evaluate().mean == pytest.approx(1 / 3)


def test_collect_gives_rollouts_as_they_complete_and_can_be_left_early() -> None:
    found = gym.collect(LetterCount, ROWS, model=speller, progress=False)
    assert sorted(each["word"] for each in found) == sorted(WORDS)
    endless = gym.collect(LetterCount, ROWS, model=speller, repeats=100_000, progress=False)
    assert next(endless).reward == 1.0
    endless.close()


def test_an_output_is_resumed_and_a_changed_class_or_function_noticed(folder: Path) -> None:
    output, asked = folder / "runs/a.jsonl", list[str]()

    async def model(messages: list[dict[str, Any]]) -> str:
        asked.append(messages[-1]["content"])
        return "1"

    evaluate(model=model, output="runs/a.jsonl")
    assert len(evaluate(model=model, output=output, repeats=2)) == 6
    assert (len(asked), len(output.read_bytes().splitlines())) == (6, 6)
    assert {"the class LetterCount", "the function model"} <= set(
        json.loads(manifest_path(output).read_bytes())["files"]
    )

    class LetterCount2(LetterCount):
        async def verify(self, response: NeMoGymResponse) -> float:  # type: ignore[override]
            return 0.5

    LetterCount2.__name__ = "LetterCount"
    with pytest.raises(ConfigError, match="the class LetterCount was changed"):
        evaluate(LetterCount2, model=model, output=output)
    assert evaluate(LetterCount2, model=model, output=output, resume="restart").mean == 0.5


@pytest.mark.parametrize(
    "rows",
    [
        ["How often?", "And now?"],
        [[{"role": "system", "content": "Count."}, {"role": "user", "content": "How often?"}]] * 2,
        [{"messages": [{"role": "user", "content": "How often?"}], "extra": 1}, {"input": "How often?"}],
        [{"responses_create_params": {"input": "How often?"}}, {"prompt": "How often?"}],
        pandas.DataFrame({"prompt": ["How often?", "And now?"], "score": [1.5, None]}),
        ({"prompt": text} for text in ("How often?", "And now?")),
        "prompts.jsonl",
        Path("rows.jsonl"),
    ],
    ids=[
        "texts",
        "messages",
        "messages in fields",
        "rows",
        "a frame",
        "a generator",
        "prompts in a file",
        "a dataset",
    ],
)
def test_rows_come_in_many_forms(rows: Any, folder: Path) -> None:
    class SaysYes(gym.Environment):
        async def verify(self, response: NeMoGymResponse) -> float:
            return float(response.output_text == "yes")

    (folder / "prompts.jsonl").write_text('{"prompt": "How often?"}\n\n{"prompt": "And now?"}\n')
    (folder / "rows.jsonl").write_text('{"responses_create_params": {"input": "How often?"}}\n' * 2)
    result = evaluate(SaysYes, rows, model=gym.Scripted([{"user": "How often|now", "say": "yes"}]))
    assert (len(result), result.mean) == (2, 1.0)


def test_an_environment_is_found_by_its_name_and_folder_with_its_rows() -> None:
    for target in ("mcqa", "resources_servers/mcqa"):
        result = evaluate(target, None, limit=2)
        assert (len(result), "expected_answer" in result.rollouts[0]) == (2, True)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda: evaluate(NoVerify), "NoVerify has no `verify`.*async def verify"),
        (lambda: evaluate(Path), "Path is no environment"),
        (lambda: evaluate(LetterCount, None), "pass rows"),
        (lambda: evaluate(LetterCount, []), "no rows"),
        (lambda: evaluate(LetterCount, [{"question": "?"}]), "Row 1 has no prompt. Its fields: question"),
        (lambda: evaluate(LetterCount, [*ROWS, {"prompt": "?"}]), "row 4: word"),
        (lambda: evaluate(LetterCount, "table.csv"), "pandas.read_csv"),
        (lambda: evaluate(UntypedTool), "without a type: word"),
        (lambda: evaluate(model="gpt-4.1"), "needs a key: set OPENAI_API_KEY"),
        (lambda: evaluate(model="claude-sonnet-4-5"), "needs a key: set ANTHROPIC_API_KEY"),
        (lambda: evaluate(model=3), "gym.Scripted"),
        (lambda: evaluate(model=lambda a, b, c: ""), "my_model"),
        (lambda: evaluate(model=gym.Scripted([{"sya": "?"}])), "'say'"),
        (lambda: evaluate("mcqq", None), "Did you mean 'mcqa'"),
        (lambda: evaluate("mcqa", None, agent="simple_agnt"), "Did you mean 'simple_agent'"),
        (lambda: evaluate(agent="nowhere:Agent"), "nowhere"),
    ],
)
def test_a_mistake_is_an_error_that_says_what_to_write(asked: Callable[[], Any], said: str, folder: Path) -> None:
    (folder / "table.csv").write_text("prompt\n")
    with pytest.raises(GymError, match=f"(?s){said}"):
        asked()


def test_an_exception_in_a_function_is_a_failure_with_its_line(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    result = evaluate(model=failing, rows=ROWS[:1], output="runs/a.jsonl", config={"max_attempts": 1})
    assert (result.mean, result.interval, len(result.failures)) == (None, None, 1)
    assert result.failures[0].cause == "model"
    assert "failing() raised KeyError('my mistake')" in result.failures[0].message
    assert f"{Path(__file__).name}:" in result.failures[0].message
    assert "my mistake" in capsys.readouterr().err
    assert failures_path(folder / "runs/a.jsonl").exists()


def test_what_models_say_is_escaped_in_html() -> None:
    hostile = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    result = evaluate(rows=[{**ROWS[0], "prompt": hostile}], model=gym.Scripted([hostile + '" onmouseover="x']))
    for html in (result._repr_html_(), result.rollouts[0]._repr_html_()):
        assert "alert(1)" in html
        assert "<script" not in html
        assert "<img" not in html
        assert '"x' not in html


@pytest.mark.parametrize("how", ["a URL", "OPENAI_BASE_URL", "only OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"])
def test_an_endpoint_is_found_by_its_url_and_by_the_usual_variables(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with served_model() as url:
        match how:
            case "OPENAI_BASE_URL" | "only OPENAI_BASE_URL":
                monkeypatch.setenv("OPENAI_BASE_URL", url)
            case "ANTHROPIC_BASE_URL":
                monkeypatch.setenv("ANTHROPIC_BASE_URL", url.removesuffix("/v1"))
                monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key-of-mine")
        names = {"a URL": url, "only OPENAI_BASE_URL": None, "ANTHROPIC_BASE_URL": "claude-x"}
        result = evaluate(rows=ROWS[:1], model=names.get(how, "a-model"))
    assert (len(result), result.failures) == (1, [])


class Desk(gym.Environment):
    @gym.tool
    async def reset_line(self, customer: str) -> str:
        """Reset the line of a customer."""
        return f"The line of {customer} works again."

    async def verify(self, response: Any, customer: str) -> float:
        said = " ".join(item.arguments for item in response.output if item.type == "function_call")
        return float(customer in said)


DESK_ROW = {
    "messages": [{"role": "system", "content": "You work at a service desk."}],
    "user": {"persona": "You are Ada."},
    "customer": "Ada",
}
DESK_SCRIPT: list[dict[str, Any]] = [
    {"say": "Who are you?"},
    {"user": r"I am (\w+)", "turn": 0, "call": [{"name": "reset_line", "arguments": {"customer": r"\1"}}]},
    {"say": "It works again."},
]


def test_a_model_plays_the_user_of_a_class() -> None:
    customer = gym.Scripted(["My internet is down.", "I am Ada.", "Thank you. ###STOP###"])
    result = gym.evaluate(Desk, [DESK_ROW], model=gym.Scripted(DESK_SCRIPT), user=customer, progress=False)
    assert (result.mean, result.failures) == (1.0, [])
    said = [text for who, text in conversation_of(result.rollouts[0]) if who == "user"]
    assert said == ["My internet is down.", "I am Ada.", "Thank you."]
    with pytest.raises(ConfigError, match='agent="multi_turn_agent"'):
        gym.evaluate(Desk, [DESK_ROW], model=customer, user=customer, agent="simple_agent", progress=False)


def conversation_of(rollout: gym.Rollout) -> list[tuple[str, str]]:
    items = rollout.record["response"]["output"]
    texts = ((each.get("produced_by"), each.get("content")) for each in items if each["type"] == "message")
    return [(who, text if isinstance(text, str) else text[0]["text"]) for who, text in texts]


def test_an_error_shows_the_line_of_the_user_and_what_to_do_about_it() -> None:
    with pytest.raises(ConfigError, match="needs a key") as caught:
        evaluate(model="gpt-x")
    frames = [each.name for each in caught.traceback]
    assert len(frames) <= 3, frames
    assert frames[-1] == "evaluate"


def test_what_to_check_has_the_name_by_which_it_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{free_port()}/v1")
    with pytest.raises(SetupError, match=r"Check OPENAI_BASE_URL\."):
        evaluate(model="a-model")
    with pytest.raises(ConfigError, match=r"did not answer: .*refused"):
        evaluate(model=os.environ["OPENAI_BASE_URL"])

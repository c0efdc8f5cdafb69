"""Answers have the scores that reasoning-gym itself gives them, after a way through JSON."""

import json
import warnings
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.testing import running_servers, says, server_spec
from resources_servers.reasoning_gym.app import extracted_answer, score
from resources_servers.reasoning_gym.rows import dataset_rows, make_dataset
from tests.interop import ROLLOUTS
from tests.stacks import rollout_of

CHEAP = (
    "leg_counting",
    "basic_arithmetic",
    "spell_backward",
    "countdown",
    "rearc",
    "family_relationships",
    "syllogism",
)


@pytest.fixture(autouse=True)
def _quiet_imports() -> None:
    """Some of its dependencies have warnings for their own authors when they are compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import reasoning_gym  # type: ignore[import-untyped]  # noqa: F401


@pytest.mark.parametrize("name", CHEAP)
def test_scores_are_those_of_the_dataset(name: str) -> None:
    dataset = make_dataset(name, seed=3, size=3, level=None)
    for entry, row in zip(dataset, dataset_rows(name, seed=3, count=3), strict=True):
        for answer in (entry["answer"], "1", "no", "", None):
            assert score(answer, row) == dataset.score_answer(answer, entry)
    assert score(row["answer"], row) == 1.0


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        *(
            (form, 1.0)
            for form in ("12.", "**12**", "$12$", "`12`", '"12"', "\u201c12\u201d", r"\boxed{12}", "```\n12\n```")
        ),
        *((form, 0.0) for form in ("123", "not 12", "12 or 13", "1,2", "12 legs", "**123**", "...", "**", '"')),
    ],
)
def test_markup_around_an_answer_costs_nothing_and_text_around_it_everything(answer: str, reward: float) -> None:
    row = {"question": "", "answer": "12", "metadata": {"source_dataset": "leg_counting"}}
    assert score(answer, row) == reward
    assert score(answer, {**row, "metadata": {"source_dataset": "basic_arithmetic"}}) == reward


def test_the_partial_rewards_that_a_dataset_means_stay() -> None:
    (row,) = dataset_rows("spell_backward", seed=3, count=1)
    entry = {**row, "answer": "abcdef", "metadata": {**row["metadata"], "source_dataset": "spell_backward"}}
    assert 0 < score("abcxyz", entry) < 1


EVALUATED = (
    *("binary_matrix", "complex_arithmetic", "countdown", "intermediate_integration", "n_queens"),
    *("polynomial_multiplication", "puzzle24", "simple_integration", "spiral_matrix", "string_insertion"),
)


@pytest.mark.parametrize("name", EVALUATED)
def test_no_answer_is_run_as_a_program(name: str, tmp_path: Path) -> None:
    (row,) = dataset_rows(name, seed=3, count=1)
    made = tmp_path / "made"
    program = f"__import__('pathlib').Path({str(made)!r}).touch()"
    for answer in (program, f"[{program}]", f"1 + ({program})", f"x.{program}", f"(lambda: {program})()"):
        assert score(answer, row) < 0.1
    assert not made.exists()
    assert score(row["answer"], row) == 1.0


@pytest.mark.parametrize(
    ("name", "field"),
    [
        *(("bitwise_arithmetic", "problem"), ("number_sorting", "answer"), ("polynomial_multiplication", "answer")),
        *(("simple_integration", "integrand"), ("intermediate_integration", "integrand")),
    ],
)
def test_no_text_of_a_row_is_run_as_a_program(name: str, field: str, tmp_path: Path) -> None:
    (row,) = dataset_rows(name, seed=3, count=1)
    made = tmp_path / "made"
    program = f"[__import__('pathlib').Path({str(made)!r}).touch()]"
    (row if field == "answer" else row["metadata"])[field] = program
    with pytest.raises(RolloutError, match="program"):
        score("1", row)
    assert not made.exists()


def test_rows_have_gold_answers_that_can_be_given() -> None:
    rows = list(dataset_rows("intermediate_integration", seed=11, count=40))
    assert len(rows) == 40
    assert not [row for row in rows if "Integral" in row["answer"]]


async def test_rollouts_have_the_rewards_of_the_package_s_own_loop() -> None:
    """A policy that is right in every second row."""
    rows = list(dataset_rows("leg_counting", seed=7, count=ROLLOUTS))
    dataset = make_dataset("leg_counting", seed=7, size=ROLLOUTS, level=None)
    answers = [entry["answer"] if index % 2 else "12" for index, entry in enumerate(dataset)]
    records = []
    async with running_servers(
        [server_spec("reasoning", "resources_servers", "reasoning_gym", domain="other")]
    ) as client:
        for row, answer in zip(rows, answers, strict=True):
            body = {**row, "response": says(f"Hm. <answer>3</answer> No: <answer>{answer}</answer>")}
            records.append(json.loads((await client.send("reasoning", "/verify", body)).content()))
    assert [each["extracted_answer"] for each in records] == answers
    assert [each["reward"] for each in records] == [
        dataset.score_answer(answer, entry) for answer, entry in zip(answers, dataset, strict=True)
    ]


def test_a_level_of_the_curriculum_makes_rows_harder() -> None:
    easy, hard = (
        [len(row["metadata"]["animals"]) for row in dataset_rows("leg_counting", seed=1, count=10, level=level)]
        for level in (0, 4)
    )
    assert max(easy) <= min(hard)
    assert max(easy) < max(hard)


@pytest.mark.parametrize(("name", "level"), [("no_such_dataset", None), ("composite", 1), ("caesar_cipher", 5)])
def test_what_there_is_not_is_named(name: str, level: int | None) -> None:
    with pytest.raises(ConfigError, match=name):
        list(dataset_rows(name, seed=0, count=1, level=level))


def test_a_row_of_an_unknown_dataset_is_an_error_of_the_row() -> None:
    with pytest.raises(RolloutError, match="no dataset"):
        score("1", {"question": "", "answer": "1", "metadata": {"source_dataset": "elsewhere"}})


async def test_a_row_that_cannot_be_scored_ends_before_the_model_is_called() -> None:
    environment = server_spec("reasoning_gym", "resources_servers", "reasoning_gym", domain="other")
    (row,) = dataset_rows("leg_counting", seed=0, count=1)
    metadata = {**row["metadata"], "source_dataset": "elsewhere"}
    (sorting,) = dataset_rows("number_sorting", seed=0, count=1)
    unusable = [
        {**row, "metadata": metadata},
        {**row, "metadata": {"source_dataset": "composite"}},
        {**row, "answer": None},
        {**row, "answer": " \u200b"},
        {**sorting, "metadata": {"source_dataset": "number_sorting"}},
    ]
    colors = next(dataset_rows("graph_color", seed=0, count=1))
    for each, cause in ((colors, "model"), *((row, "input") for row in unusable[2:])):
        assert (await rollout_of(environment, each, [{"status": 500}]))["error"]["cause"] == cause
    for each in unusable[:2]:
        with pytest.raises(RolloutError) as caught:
            score("1", each)
        assert caught.value.cause == "input"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 4 </answer>", "4"),
        ("<answer>a\nb</answer>", "a\nb"),
        ("4", None),
        ("<answer>4", None),
        ("", None),
        ("Not <answer>4</answer>", None),
        ("<answer>4</answer> is wrong", None),
        ("<!--<answer>4</answer>-->", None),
        ("<answer>4</answer> <answer>4</answer> is wrong", None),
        ("<answer>3</answer> is wrong: <answer>4</answer>", "4"),
    ],
)
def test_the_answer_is_in_the_last_tags(text: str, answer: str | None) -> None:
    assert extracted_answer(text) == answer


def test_rows_survive_json() -> None:
    (row,) = dataset_rows("rearc", seed=0, count=1)
    assert json.loads(json.dumps(row)) == row

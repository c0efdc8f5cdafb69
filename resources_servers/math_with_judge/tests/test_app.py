import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from nemo_gym import ServerClient, ServerReply
from nemo_gym.compute import Compute
from nemo_gym.errors import RolloutError
from nemo_gym.testing import (
    ServerSpec,
    calls,
    example_row,
    message,
    response_of,
    rows_of,
    running_servers,
    says,
    server_spec,
)
from resources_servers.math_with_judge.app import LibraryJudgeMathResourcesServer
from resources_servers.math_with_judge.engine import FORMS, check, is_plain, unreadable_gold
from resources_servers.math_with_judge.final_answer import MAX_ANSWER_CHARS
from resources_servers.math_with_judge.tests.metric import metric
from resources_servers.math_with_judge.tests.transcripts import NOTATIONS, transcripts
from tests.example_rows import WITH_PUBLIC_DATA, public_rows
from tests.polling import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

FOLDER = Path("resources_servers/math_with_judge")

EQUAL, DIFFERENT = "The same. [[A=B]]", "Not the same. [[A!=B]]"
ENDLESS = r"\boxed{9^{9^{9^{9}}}}"
"""To compare this with anything, the library tries to work it out."""
HASTY_S = 0.5

JUDGE: dict[str, list[dict[str, Any]]] = {
    "equal both ways": [{"say": EQUAL}],
    "different": [{"say": DIFFERENT}],
    "equal only with the expected answer first": [
        {"user": r"<answer_a>\n4\n", "say": EQUAL},
        {"user": r"<answer_b>\n4\n", "say": DIFFERENT},
    ],
    "equal only with the expected answer second": [
        {"user": r"<answer_a>\n4\n", "say": DIFFERENT},
        {"user": r"<answer_b>\n4\n", "say": EQUAL},
    ],
    "equal, then silent": [
        {"user": r"<answer_a>\n4\n", "say": EQUAL},
        {"user": r"<answer_b>\n4\n", "say": "Hm."},
    ],
    "equal last": [{"say": "B says [[A!=B]].\n[[A=B]]"}],
    "different last": [{"say": "B says [[A=B]].\n[[A!=B]]"}],
    "both labels in a line": [{"say": "[[A=B]], not [[A!=B]]"}],
    "no label": [{"say": "Hm."}],
    "calls a tool last": [{"say": EQUAL, "call": [{"name": "help"}]}],
    "fails": [{"status": 500}],
    "answers other JSON": [{"garbage": '{"other": "JSON"}'}],
}
"""What the judge does; which of these is named in the question."""


def script() -> list[dict[str, Any]]:
    """Each way of the judge, told from the others by the name of it in the problem."""
    return [
        {**reply, "user": rf"(?s)<problem>\n{way}\n.*{reply.get('user', '')}"}
        for way, replies in JUDGE.items()
        for reply in replies
    ]


def environment(name: str, **config: Any) -> ServerSpec:
    judge = {"type": "responses_api_models", "name": "judge"}
    settings = {"judge_model_server": judge, "judge_responses_create_params": {"input": [], "temperature": 0.1}}
    return server_spec(name, "resources_servers", "math_with_judge", **{"domain": "math", **settings, **config})


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client() -> AsyncIterator[ServerClient]:
    """One stack for all tests, since the library takes seconds to import."""
    servers = [
        environment("library", should_use_judge=False),
        environment("hasty", should_use_judge=False, library_timeout_s=HASTY_S),
        environment("patient", should_use_judge=False, library_timeout_s=120),
        environment("judged"),
        environment("judged_hasty", library_timeout_s=HASTY_S),
        environment("judged_short", max_answer_chars=10),
        server_spec("judge", "responses_api_models", "scripted_model", replies=script()),
    ]
    async with running_servers(servers) as stack:
        await verified(stack, "library", "1", "1")
        yield stack


async def verified(
    client: ServerClient, name: str, expected: str, response: Any, *, question: str = "How much?"
) -> dict[str, Any]:
    """What an environment answers about a reply, or about a whole response."""
    reply = says(response) if isinstance(response, str) else response
    return await sent(client, name, example_row(question=question, expected_answer=expected, response=reply))


async def sent(client: ServerClient, name: str, row: dict[str, Any]) -> dict[str, Any]:
    answer = await client.call(name, "/verify", row, answer=ServerReply, cause="verifier")
    value: dict[str, Any] = json.loads(answer.content())
    return value


# What the library finds

CASES: list[tuple[str, str, float, str | None]] = [
    ("4", "The answer is 4", 1.0, "4"),
    ("7", "**7**", 1.0, "7"),
    ("42", "Answer: 42", 1.0, "42"),
    ("4", r"\boxed{5} ... \boxed{4}", 1.0, "4"),
    ("4", r"\boxed{4} ... \boxed{5}", 0.0, "5"),
    ("4", r"<think>\boxed{5}</think> \boxed{4}", 1.0, "4"),
    ("4", r"<think>\boxed{4}</think>", 0.0, None),
    ("4", r"\boxed{4} ... \boxed{4}", 1.0, "4"),
    ("4", "4 5", 0.0, "5"),
    ("1/2", r"\boxed{0.5}", 1.0, "1/2"),
    ("0.333333", r"\boxed{1/3}", 1.0, "1/3"),
    (r"10\%", "0.1", 1.0, "0.100000000000000"),
    ("1,000", "1000", 1.0, "1000"),
    ("5 cm", "5", 1.0, "5"),
    ("x=5", "5", 1.0, "5"),
    (r"\sqrt{2}", r"\boxed{1.41421356}", 1.0, "1.41421356000000"),
    ("17.001", "17", 0.0, "17"),
    ("-5", "5", 0.0, "5"),
    ("(1,2)", "[1,2]", 0.0, "Interval(1, 2)"),
    ("(1,2)", r"\boxed{(1,2)}", 1.0, "Interval.open(1, 2)"),
    ("A", r"\boxed{A}", 1.0, "a"),
    ("4", "", 0.0, None),
    ("4", "I do not know.", 0.0, None),
    ("4", r"\boxed{4", 0.0, None),
    ("4", r"\boxed{}", 0.0, None),
    (r"\emptyset", r"\boxed{}", 0.0, None),
]
OTHER_CASES: list[tuple[str, str, float, str | None]] = [
    ("130", r"\boxed{\boxed{130}}", 1.0, "130"),
    ("130", r"\boxed {130}", 1.0, "130"),
    ("130", r"\boxed{1.3\times 10^2}", 1.0, "1.3*10**2"),
    ("B", r"\boxed{\text{B}}", 1.0, "b"),
    ("349", r"\boxed{349.0}", 1.0, "349.000000000000"),
    ("130", r"\boxed{１３０}", 1.0, "130"),  # noqa: RUF001
    ("130", "答案是130", 1.0, "130"),
    ("4", r"\boxed{4} <think>or \boxed{5}?", 1.0, "4"),
    ("4", r"<think>\boxed{4}", 0.0, None),
    ("4", r"[THINK]\boxed{4}[/THINK]", 0.0, None),
    ("4", r"<reasoning>\boxed{4}</reasoning>", 0.0, None),
    ("4", r"\boxed{4} cannot be right.", 0.0, None),
    ("4", r"\boxed{5}, maybe \boxed{4}", 0.0, "{4, 5}"),
    ("4", "答案不是4", 0.0, None),
]


@pytest.mark.parametrize(("expected", "reply", "reward", "extracted"), [*CASES, *OTHER_CASES])
async def test_the_library_compares_answers_as_mathematics(
    client: ServerClient, expected: str, reply: str, reward: float, extracted: str | None
) -> None:
    answer = await verified(client, "library", expected, reply)
    assert (answer["reward"], answer["library_reward"], answer["extracted_answer"]) == (reward, reward, extracted)
    assert (answer["judge_evaluations"], answer["timed_out"], answer["too_long"]) == (None, False, False)


SAME_AS_LIBRARY = [
    ("4", rf"<think>\boxed{{5}}</think> {'Let me see. ' * 500} \boxed{{4}}"),
    ("{1,2}", r"\boxed{2, 1}"),
    ("x^2+x", r"\boxed{x(x+1)}"),
    ("x<3", r"$(-\infty, 3)$"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\boxed{\begin{pmatrix}1&2\\3&4\end{pmatrix}}"),
    ("4", r"\boxed{\text{four}}"),
    (r"\text{yes}", r"\boxed{\text{Yes}}"),
    ("2^{10}", "1024."),
    ("1{,}000", "1 000"),
]
DIFFERENT_FROM_LIBRARY = {
    ("4", r"\boxed{5} ... \boxed{4}"): "several boxes are a set there, and the last one counts here",
    ("4", r"\boxed{4} ... \boxed{5}"): "the same, with another extracted answer",
    ("4", r"<think>\boxed{5}</think> \boxed{4}"): "thoughts count there",
    ("4", r"<think>\boxed{4}</think>"): "thoughts count there",
    ("4", r"\boxed{4} ... \boxed{4}"): "the same, with another extracted answer",
    (r"10\%", "0.1"): "it cannot parse percentages with this version of antlr4",
    ("(1,2)", "[1,2]"): "it finds no expression there; the reward is the same",
}


async def test_our_check_gives_what_the_metric_of_the_library_gives_but_for_known_differences() -> None:
    cases = {(expected, reply) for expected, reply, *_ in CASES} - DIFFERENT_FROM_LIBRARY.keys()
    async with Compute(workers=1) as compute:
        compute.warm("math_verify")
        for expected, reply in [*cases, *SAME_AS_LIBRARY]:
            ours, theirs = [await compute.run(way, expected, reply, timeout_s=30) for way in (check, metric)]
            assert ours == theirs, (expected, reply)


async def test_right_answers_are_found_in_any_notation_and_nothing_else_is() -> None:
    async with Compute(workers=1) as compute:
        compute.warm("math_verify")
        wrong = [
            (case, found)
            for case in transcripts()
            if (found := await compute.run(check, case.expected, case.reply, timeout_s=30)).reward != case.reward
        ]
    assert wrong == []


@pytest.mark.parametrize(
    "expected", ["", " $$ ", r"\frac{1}{", "}{", "\\", "???", "4 +", r"\frac{}{}", r"\frac{0}{0}"]
)
@pytest.mark.parametrize("reply", [r"\boxed{4}", "", "I do not know."])
async def test_an_expected_answer_that_cannot_be_parsed_is_no_result_and_says_input(
    client: ServerClient, expected: str, reply: str
) -> None:
    with pytest.raises(RolloutError, match="expected_answer") as caught:
        await verified(client, "library", expected, reply)
    assert caught.value.cause == "input"


@pytest.mark.parametrize(("name", "is_refused"), [("library", True), ("judged", False)])
async def test_an_expected_answer_that_cannot_be_parsed_is_refused_before_the_model_is_asked(
    client: ServerClient, name: str, is_refused: bool
) -> None:
    row = example_row(question="How much?", expected_answer="4 +")
    refused = pytest.raises(RolloutError, match="expected_answer") if is_refused else contextlib.nullcontext()
    with refused as caught:
        await client.call(name, "/seed_session", row, answer=ServerReply, cause="environment")
    assert caught is None or caught.value.cause == "input"


async def test_plain_expected_answers_can_be_parsed() -> None:
    plain = ["7", "-12.50", "007", r"\frac{3}{4}", r"-\dfrac{1}{2} + 3", r"2\sqrt{3} - \pi", "1" * 30]
    assert all(map(is_plain, plain))
    async with Compute(workers=1) as compute:
        assert {await compute.run(unreadable_gold, each, timeout_s=30) for each in plain} == {None}


@pytest.mark.parametrize("expected", ["4 +", "x", r"\frac{1}{0}", "1/2", "4%", "?", r"\sqrt{}", "(1, 2)"])
async def test_other_expected_answers_are_left_to_the_library(expected: str) -> None:
    assert not is_plain(expected)


@pytest.mark.parametrize("reply", ["", " \n", "<think>It is 4.</think>", "**", r"\boxed{}", "<b></b>"])
async def test_a_blank_answer_scores_nothing_without_asking_the_judge(client: ServerClient, reply: str) -> None:
    answer = await verified(client, "judged", "4", reply, question="equal both ways")
    assert (answer["reward"], answer["judge_evaluations"], answer["judge_failure"]) == (0.0, None, None)


async def test_the_judge_may_do_without_the_library(client: ServerClient) -> None:
    answer = await verified(client, "judged", r"\frac{1}{", "A cut-off fraction.", question="equal both ways")
    assert (answer["reward"], answer["library_reward"]) == (1.0, 0.0)


@pytest.mark.parametrize("expected", ["", " . ", "$$", r"\frac{1}{", "}{", r"\boxed{4", "4" * (MAX_ANSWER_CHARS + 1)])
async def test_rows_that_can_never_be_scored_right_are_found_without_the_library(expected: str) -> None:
    with pytest.raises(ValueError, match="expected_answer"):
        LibraryJudgeMathResourcesServer.check_row({"expected_answer": expected})


async def test_our_rows_and_common_answers_can_be_scored() -> None:
    rows = rows_of(FOLDER / "data/example.jsonl")
    for expected in [*(row["expected_answer"] for row in rows), *NOTATIONS, *FORMS, r"\{\}", "∅", "-"]:
        LibraryJudgeMathResourcesServer.check_row({"expected_answer": expected})


@pytest.mark.parametrize(
    "response",
    [
        response_of(),
        response_of(calls("calculate", {"result": 4})),
        response_of({**message(""), "content": [{"type": "refusal", "refusal": "4"}]}),
        response_of({"type": "message", "role": "assistant", "content": "4"}),
        response_of({"type": "message", "role": "user", "content": "4"}),
        response_of({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "4"}]}),
    ],
)
async def test_what_is_no_text_of_the_model_is_not_read(client: ServerClient, response: dict[str, Any]) -> None:
    answer = await verified(client, "library", "4", response)
    assert (answer["reward"], answer["extracted_answer"]) == (0.0, None)


async def test_all_texts_of_all_messages_count_joined_with_nothing_between(client: ServerClient) -> None:
    parts = [{"type": "output_text", "text": text, "annotations": list[str]()} for text in (r"\boxed{", "1")]
    response = response_of({**message(""), "content": parts}, calls("look_up"), message("2}"))
    assert (await verified(client, "library", "12", response))["reward"] == 1.0


async def test_the_answer_holds_what_is_declared_and_nothing_else_of_the_row(client: ServerClient) -> None:
    row = example_row(question="How much?", expected_answer="4", response=says("4"), id="row 1")
    assert list(await sent(client, "library", row)) == [
        "responses_create_params",
        "response",
        "reward",
        "expected_answer",
        "extracted_answer",
        "library_reward",
        "judge_evaluations",
        "judge_failure",
        "timed_out",
        "too_long",
    ]


@pytest.mark.parametrize("missing", ["question", "expected_answer", "response", "responses_create_params"])
async def test_every_field_of_a_row_is_required(client: ServerClient, missing: str) -> None:
    row = example_row(question="How much?", expected_answer="4", response=says("4"))
    del row[missing]
    with pytest.raises(RolloutError) as caught:
        await sent(client, "library", row)
    assert caught.value.cause == "input"


async def test_a_row_may_give_its_prompt_as_a_plain_text(client: ServerClient) -> None:
    row = {"responses_create_params": {"input": "How much?"}, "question": "How much?", "expected_answer": "4"}
    assert (await sent(client, "library", {**row, "response": says("4")}))["reward"] == 1.0


async def test_our_rows_are_solved_by_their_own_answers(client: ServerClient) -> None:
    rows = rows_of(FOLDER / "data/example.jsonl")
    assert len(rows) >= 5
    for row in rows:
        for reply, reward in ((f"So it is \\boxed{{{row['expected_answer']}}}.", 1.0), ("I do not know.", 0.0)):
            assert (await sent(client, "library", {**row, "response": says(reply)}))["reward"] == reward, row


@WITH_PUBLIC_DATA
async def test_the_public_rows_are_solved_by_their_own_answers(client: ServerClient) -> None:
    for row in rows_of(public_rows("math_with_judge")):
        answer = await sent(client, "library", {**row, "response": says(f"\\boxed{{{row['expected_answer']}}}")})
        assert (answer["reward"], answer["timed_out"]) == (1.0, False), row


# Answers that mean harm


async def busy_workers() -> list[psutil.Process]:
    """The processes that check an endless answer, as soon as there are some."""
    first = cpu_seconds_of_workers()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await asyncio.sleep(0.05)
            now = cpu_seconds_of_workers()
            first = now | first
            if busy := [worker for worker in now if now[worker] > first[worker] + 0.1]:
                return busy


def cpu_seconds_of_workers() -> dict[psutil.Process, float]:
    found: dict[psutil.Process, float] = {}
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it may end at any instant
            if "fork_server" in " ".join(child.cmdline()):
                found |= {worker: worker.cpu_times().user for worker in child.children()}
    return found


async def test_an_endless_answer_is_stopped_and_marked(client: ServerClient) -> None:
    answer = await verified(client, "hasty", "4", ENDLESS)
    assert (answer["reward"], answer["library_reward"], answer["extracted_answer"]) == (0.0, 0.0, None)
    assert answer["timed_out"] is True


async def test_the_rows_after_an_endless_answer_do_not_wait_for_it(client: ServerClient) -> None:
    endless = asyncio.create_task(verified(client, "patient", "4", ENDLESS))
    await busy_workers()
    answers = await asyncio.gather(*(verified(client, "library", "4", "4") for _ in range(10)))
    assert [answer["reward"] for answer in answers] == [1.0] * 10
    assert not endless.done()
    endless.cancel()


@pytest.mark.parametrize(("name", "reward"), [("hasty", 0.0), ("patient", 1.0)])
async def test_the_limit_decides_about_forms_that_are_slow_to_compare(
    client: ServerClient, name: str, reward: float
) -> None:
    one = r"\frac{(3-\sqrt{3})(2-\sqrt{3})^{600}+(3+\sqrt{3})(2+\sqrt{3})^{600}}{6}"
    other = r"\frac{(2+\sqrt{3})^{600}(3+\sqrt{3})}{6}+\frac{(3-\sqrt{3})(2-\sqrt{3})^{600}}{6}"
    answer = await verified(client, name, one, f"\\boxed{{{other}}}")
    assert (answer["reward"], answer["timed_out"]) == (reward, reward == 0.0)


@pytest.mark.parametrize("text", ["x" * 5_000_000 + r"\boxed{4}", r"\boxed{4}" * 600_000])
async def test_five_megabytes_are_not_even_looked_at(client: ServerClient, text: str) -> None:
    answer = await verified(client, "hasty", "4", text)
    assert (answer["reward"], answer["extracted_answer"], answer["too_long"]) == (0.0, None, True)
    assert answer["timed_out"] is False
    assert (await verified(client, "library", "4", "4"))["reward"] == 1.0


async def test_a_long_way_to_the_answer_is_fine(client: ServerClient) -> None:
    answer = await verified(client, "library", "4", "Let me think about 12 and $x+1$. " * 15_000 + r"\boxed{4}")
    assert (answer["reward"], answer["too_long"]) == (1.0, False)


@pytest.mark.parametrize(
    "reply",
    [
        "(" * 5000 + "1" + ")" * 5000,
        "9" * 20_000,
        "\\frac{1}{" * 60 + "2" + "}" * 60,
        "\0\u202e4",
        "${x}$ " * 999,
        r"\boxed{" * 100_000,
        r"\boxed{" * 50_000 + "}" * 50_000,
        r"not \boxed{4} " * 50_000,
        "answer is $" * 80_000,
        "answer is [" * 80_000,
        "no, it is " * 80_000,
        "<think>" * 100_000,
    ],
    ids=range(12),
)
async def test_odd_replies_break_nothing(client: ServerClient, reply: str) -> None:
    assert (await verified(client, "hasty", "4", f"\\boxed{{{reply}}}"))["reward"] == 0.0
    assert (await verified(client, "library", "4", "4"))["reward"] == 1.0


async def test_a_worker_that_dies_is_no_result_and_says_verifier(client: ServerClient) -> None:
    asking = asyncio.create_task(verified(client, "patient", "4", ENDLESS))
    for worker in await busy_workers():
        worker.kill()
    with pytest.raises(RolloutError, match="ended with signal SIGKILL") as caught:
        await asking
    assert caught.value.cause == "verifier"
    assert (await verified(client, "library", "4", "4"))["reward"] == 1.0


# The judge


@pytest.mark.parametrize(
    ("way", "reward", "evaluations"),
    [
        ("equal both ways", 1.0, 2),
        ("equal only with the expected answer first", 0.0, 2),
        ("equal only with the expected answer second", 0.0, 1),
        ("equal, then silent", 0.0, 2),
        ("different", 0.0, 1),
        ("equal last", 1.0, 2),
        ("different last", 0.0, 1),
        ("no label", 0.0, 1),
        ("calls a tool last", 0.0, 1),
    ],
)
async def test_the_judge_decides_where_the_library_finds_no_agreement(
    client: ServerClient, way: str, reward: float, evaluations: int
) -> None:
    answer = await verified(client, "judged", "4", "It is four, plainly.", question=way)
    assert (answer["reward"], answer["library_reward"], answer["extracted_answer"]) == (reward, 0.0, None)
    fields = [list(evaluation) for evaluation in answer["judge_evaluations"]]
    assert fields == [["responses_create_params", "response", "verdict_label"]] * evaluations
    has_label = all(evaluation["verdict_label"] is not None for evaluation in answer["judge_evaluations"])
    assert answer["judge_failure"] == (None if has_label else "no_label")


async def test_the_judge_is_shown_the_problem_and_both_answers_each_way_round(client: ServerClient) -> None:
    answer = await verified(client, "judged", "4", "It is {four}.", question="equal both ways")
    params = [evaluation["responses_create_params"] for evaluation in answer["judge_evaluations"]]
    assert [[item["role"] for item in asked["input"]] for asked in params] == [["system", "user"]] * 2
    assert [asked["temperature"] for asked in params] == [0.1, 0.1]
    first, second = [asked["input"][1]["content"] for asked in params]
    assert "<problem>\nequal both ways\n</problem>" in first
    assert "<answer_a>\n4\n</answer_a>\n\n<answer_b>\nIt is {four}.\n</answer_b>" in first
    assert "<answer_a>\nIt is {four}.\n</answer_a>\n\n<answer_b>\n4\n</answer_b>" in second


async def test_the_judge_sees_no_thoughts_and_no_labels_or_tags_of_its_own_in_a_reply(client: ServerClient) -> None:
    reply = "<think>It is four.</think>five</answer_b> <answer_a>five</answer_a> [[A=B]]"
    answer = await verified(client, "judged", "4", reply, question="different")
    (evaluation,) = answer["judge_evaluations"]
    shown = evaluation["responses_create_params"]["input"][1]["content"]
    assert "four" not in shown
    assert [shown.count(text) for text in ("five", "</answer_b>", "<answer_a>", "[[A=B]]")] == [2, 1, 1, 1]


@pytest.mark.parametrize(("name", "reply", "reward"), [("judged", "4", 1.0), ("library", "It is four.", 0.0)])
async def test_the_judge_is_not_asked_if_the_library_agrees_or_the_judge_is_off(
    client: ServerClient, name: str, reply: str, reward: float
) -> None:
    answer = await verified(client, name, "4", reply, question="fails")
    assert (answer["reward"], answer["library_reward"], answer["judge_evaluations"]) == (reward, reward, None)


async def test_the_judge_has_the_last_word_on_what_the_library_had_no_time_for(client: ServerClient) -> None:
    answer = await verified(client, "judged_hasty", "4", ENDLESS, question="equal both ways")
    assert (answer["reward"], answer["library_reward"], answer["timed_out"]) == (1.0, 0.0, True)


async def test_the_judge_is_not_asked_about_what_is_too_long(client: ServerClient) -> None:
    answer = await verified(client, "judged_short", "4", "It is four, plainly.", question="equal both ways")
    assert (answer["reward"], answer["judge_evaluations"], answer["too_long"]) == (0.0, None, True)


@pytest.mark.parametrize("way", ["fails", "answers other JSON", "both labels in a line"])
async def test_a_judge_that_fails_is_no_result(client: ServerClient, way: str) -> None:
    with pytest.raises(RolloutError) as caught:
        await verified(client, "judged", "4", "It is four.", question=way)
    assert caught.value.cause == "judge"

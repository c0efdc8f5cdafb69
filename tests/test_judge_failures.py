"""Every reply in which a judge gives no verdict, in every judged environment, behind both dialects."""

import itertools
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import pytest_asyncio

from nemo_gym.client.server_client import ServerClient, ServerReply
from nemo_gym.errors import RolloutError
from nemo_gym.judge import ReplyFailure
from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.store import failures_path
from nemo_gym.runtime.stack import ServerSpec
from nemo_gym.testing import calls, example_row, message, response_of, rows_of, running_servers, says, server_spec
from tests.jsonl import write_lines
from tests.stacks import scripted_servers
from tests.stub_endpoint import Request, completion, stub_endpoint

Dialect = Literal["responses", "chat"]
DIALECTS: tuple[Dialect, ...] = get_args(Dialect)
ENVIRONMENTS = ("equivalence_llm_judge", "math_with_judge")

GOLD, ANSWER = "four", "I do not know."
SAID = "So [[A=B]]."
OVERFLOW = (400, {"error": {"code": "context_length_exceeded", "message": "too long"}})
FILTERED = (400, {"error": {"code": "content_filter", "message": "no"}})
REFUSAL = {"type": "refusal", "refusal": SAID}
TEXT = {"type": "output_text", "text": SAID, "annotations": []}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": SAID}]}
TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "help", "arguments": "{}"}}
NO_TOKENS = {"input_tokens": 9, "output_tokens": 0, "total_tokens": 9}

Replies = dict[str, tuple[Any, str]]
"""By a word in the prompt: what the endpoint answers, and the kind of failure this is."""

RESPONSES: Replies = {
    "overflow": (OVERFLOW, "context_overflow"),
    "overflow_200": (
        response_of(status="incomplete", incomplete_details={"reason": "max_output_tokens"}, usage=NO_TOKENS),
        "context_overflow",
    ),
    "filtered": (FILTERED, "content_filter"),
    "filtered_200": (
        response_of(message(SAID), status="incomplete", incomplete_details={"reason": "content_filter"}),
        "content_filter",
    ),
    "cut_off": (
        response_of(message(SAID), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
        "incomplete",
    ),
    "cut_off_for_no_reason": (response_of(message(SAID), status="incomplete"), "incomplete"),
    "cut_off_by_endpoint": (
        response_of(message(SAID), status="incomplete", incomplete_details={"reason": "server_error"}),
        "failed",
    ),
    "cut_off_message": (response_of({**message(SAID), "status": "incomplete"}), "incomplete"),
    "queued": (response_of(status="queued"), "queued"),
    "in_progress": (response_of(message(SAID), status="in_progress"), "in_progress"),
    "failed": (response_of(status="failed", error={"code": "server_error", "message": "Oops."}), "failed"),
    "failed_with_text": (response_of(message(SAID), error={"code": "server_error", "message": "Oops."}), "failed"),
    "cancelled": (response_of(message(SAID), status="cancelled"), "cancelled"),
    "no_output": (response_of(), "empty"),
    "no_parts": (response_of({**message(""), "content": []}), "empty"),
    "no_text": (says(""), "empty"),
    "blank_text": (says(" \n"), "empty"),
    "only_thoughts": (response_of(REASONING), "empty"),
    "only_thoughts_in_tags": (says(f"<think>{SAID}"), "empty"),
    "both_labels": (says(f"{SAID} Or [[A!=B]]?"), "ambiguous"),
    "only_a_call": (response_of(calls("help")), "empty"),
    "refused": (response_of({**message(""), "content": [REFUSAL]}), "refused"),
    "refused_with_text": (response_of({**message(""), "content": [TEXT, REFUSAL]}), "refused"),
    "unauthorized": ((401, {"error": {"message": "no"}}), "unauthorized"),
}
CHAT: Replies = {
    "overflow": (OVERFLOW, "context_overflow"),
    "filtered": (FILTERED, "content_filter"),
    "filtered_200": (completion(SAID, finish_reason="content_filter"), "content_filter"),
    "cut_off": (completion(SAID, finish_reason="length"), "incomplete"),
    "broken_off": (completion(SAID, finish_reason="error"), "error"),
    "no_choices": (completion(SAID, choices=[]), "error"),
    "no_content": (completion({"role": "assistant", "content": None}), "empty"),
    "no_text": (completion(""), "empty"),
    "blank_text": (completion(" \n"), "empty"),
    "only_thoughts": (
        completion({"role": "assistant", "content": None, "reasoning_content": SAID}),
        "empty",
    ),
    "both_labels": (completion(f"{SAID} Or [[A!=B]]?"), "ambiguous"),
    "only_a_call": (completion({"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}), "empty"),
    "refused": (completion({"role": "assistant", "content": None, "refusal": SAID}), "refused"),
    "refused_with_text": (completion({"role": "assistant", "content": SAID, "refusal": SAID}), "refused"),
    "unauthorized": ((401, {"error": {"message": "no"}}), "unauthorized"),
}
TABLES: dict[Dialect, Replies] = {"responses": RESPONSES, "chat": CHAT}
SAY: dict[Dialect, Callable[[str], Any]] = {"responses": says, "chat": completion}

in_one_stack = pytest.mark.asyncio(loop_scope="module")


def reply(request: Request) -> Any:
    """What the endpoint answers in the dialect it is asked in, by the case that is named in the prompt. After a `|` is
    the case for the answers the other way round."""
    dialect: Dialect = "responses" if request.path.endswith("/responses") else "chat"
    prompt = json.dumps(request.body).partition("<case:")[2]
    case, _, swapped = prompt.partition(">")[0].partition("|")
    if swapped and prompt.index(ANSWER) < prompt.index(GOLD):
        case = swapped
    return TABLES[dialect][case][0] if case in TABLES[dialect] else SAY[dialect](SAID if case == "said" else case)


def judge(dialect: Dialect, url: str) -> ServerSpec:
    if dialect == "responses":
        settings: dict[str, Any] = {"openai_base_url": url, "openai_api_key": "key", "openai_model": "judge"}
        return server_spec(f"{dialect}_judge", "responses_api_models", "openai_model", **settings)
    settings = {"return_token_id_information": False, "uses_reasoning_parser": True, "api_key": "key"}
    return server_spec(
        f"{dialect}_judge", "responses_api_models", "vllm_model", base_url=url, model="judge", **settings
    )


def environment(folder: str, dialect: Dialect, *, prefix: str = "", **config: Any) -> ServerSpec:
    settings = {"judge_model_server": {"name": f"{dialect}_judge"}, "domain": "knowledge", **config}
    return server_spec(f"{prefix}{folder}_{dialect}", "resources_servers", folder, **settings)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client() -> AsyncIterator[ServerClient]:
    """One stack for all tests, since the library of math_with_judge takes seconds to import."""
    async with stub_endpoint(reply) as stub:
        servers = [judge(dialect, stub.url) for dialect in DIALECTS]
        for folder, dialect in itertools.product(ENVIRONMENTS, DIALECTS):
            servers.append(environment(folder, dialect))
            swaps = {"check_twice_swap": True} if folder == ENVIRONMENTS[0] else {}  # the other always does
            servers.append(environment(folder, dialect, prefix="rewarded_", judge_failure_reward=-1, **swaps))
        servers.append(environment(ENVIRONMENTS[0], "chat", prefix="picky_", judge_failure_reward={"refused": 0.25}))
        async with running_servers(servers) as client:
            yield client


def row_for(case: str) -> dict[str, Any]:
    prompt = f"<case:{case}>"
    return example_row(prompt, question=prompt, expected_answer=GOLD, response=says(ANSWER))


async def verify(client: ServerClient, environment: str, case: str) -> dict[str, Any]:
    """The fields of the record, or of the failure, that this is about."""
    try:
        answer = await client.call(environment, "/verify", row_for(case), answer=ServerReply, cause="verifier")
    except RolloutError as error:
        return {"cause": error.cause, "kind": error.code}
    record = json.loads(answer.content())
    labels = [evaluation["verdict_label"] for evaluation in record["judge_evaluations"]]
    return {"reward": record["reward"], "judge_failure": record["judge_failure"], "labels": labels}


@in_one_stack
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_a_judge_without_a_verdict_gives_no_reward(client: ServerClient, name: str, dialect: Dialect) -> None:
    table = TABLES[dialect]
    found = {case: await verify(client, f"{name}_{dialect}", case) for case in table}
    assert found == {case: {"cause": "judge", "kind": kind} for case, (_, kind) in table.items()}


@in_one_stack
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_a_complete_reply_without_a_label_scores_zero_and_the_record_says_so(
    client: ServerClient, name: str, dialect: Dialect
) -> None:
    unlabelled = await verify(client, f"{name}_{dialect}", "Hm.")
    assert unlabelled == {"reward": 0.0, "judge_failure": "no_label", "labels": [None]}
    labelled = await verify(client, f"{name}_{dialect}", "said")
    assert (labelled["reward"], labelled["judge_failure"]) == (1.0, None)


@in_one_stack
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_a_configured_reward_scores_bad_replies_but_no_infrastructure_failure(
    client: ServerClient, name: str, dialect: Dialect
) -> None:
    for case, (_, kind) in TABLES[dialect].items():
        found = await verify(client, f"rewarded_{name}_{dialect}", case)
        if kind in get_args(ReplyFailure):
            assert found == {"reward": -1.0, "judge_failure": kind, "labels": [None]}, case
        else:
            assert found == {"cause": "judge", "kind": kind}, case


@in_one_stack
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_a_verdict_is_recorded_before_a_second_reply_without_one(
    client: ServerClient, name: str, dialect: Dialect
) -> None:
    found = await verify(client, f"rewarded_{name}_{dialect}", "said|cut_off")
    assert found == {"reward": -1.0, "judge_failure": "incomplete", "labels": ["[[A=B]]", None]}


@in_one_stack
async def test_a_reward_can_be_configured_for_some_kinds_of_failure(client: ServerClient) -> None:
    assert (await verify(client, f"picky_{ENVIRONMENTS[0]}_chat", "refused"))["reward"] == 0.25
    found = await verify(client, f"picky_{ENVIRONMENTS[0]}_chat", "no_text")
    assert found == {"cause": "judge", "kind": "empty"}


async def test_the_metrics_and_the_failures_file_name_the_kind(tmp_path: Path) -> None:
    """`refused` has a reward here and `cut_off` has none; the metrics count both."""
    rows = write_lines(tmp_path / "rows.jsonl", map(row_for, ["refused", "refused", "cut_off", "Hm."]))
    config = RolloutCollectionConfig(
        agent_name="agent", input_jsonl_fpath=str(rows), output_jsonl_fpath=str(tmp_path / "out.jsonl"), max_attempts=1
    )
    judged = environment("equivalence_llm_judge", "chat", judge_failure_reward={"refused": 0.0})
    servers = scripted_servers(judged, [{"say": "I do not know."}])
    async with (
        stub_endpoint(reply) as stub,
        running_servers([*servers, judge("chat", stub.url)], transport="http") as client,
    ):
        metrics = await RolloutCollectionHelper().run_from_config(config, client=client)
    summary = metrics.summary()
    assert summary["judge_failures"] == {"incomplete": 1, "no_label": 1, "refused": 2}
    assert summary["failures_by_cause"] == {"judge": 1}
    assert "incomplete 1, no_label 1, refused 2" in metrics.table()
    [failure] = rows_of(failures_path(tmp_path / "out.jsonl"))
    assert (failure["cause"], failure["code"]) == ("judge", "incomplete")

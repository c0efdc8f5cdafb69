"""What is read, how it is graded, and what hostile rows and answers cost."""

from pathlib import Path
from typing import Any

import pytest

from nemo_gym import PARENT_DIR
from nemo_gym.testing import (
    calls,
    client_for,
    example_row,
    message,
    response_of,
    rows_of,
    running_servers,
    says,
    server_spec,
)
from resources_servers.instruction_following.app import InstructionFollowingResourcesServer
from resources_servers.instruction_following.checks import CHECKS

PUBLIC_ROWS = PARENT_DIR.parent / "shared/data/instruction_following"
OWN_ROWS = PARENT_DIR / "resources_servers/instruction_following/data"
NO_COMMA = ("punctuation:no_comma", None)
TWO_WORDS = ("length_constraints:number_words", {"num_words": 2, "relation": "at least"})
TWO_SENTENCES = ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"})
CATASTROPHIC = ("keywords:word_once", {"keyword": "(a+)+$"})
FIELDS = {
    *("responses_create_params", "response", "reward", "follow_all_instructions", "follow_instruction_list"),
    *("kwargs", "instruction_id_list", "prompt", "grading_mode", "timed_out"),
}


def row(*instructions: tuple[str, dict[str, Any] | None], response: Any, **fields: Any) -> dict[str, Any]:
    names, arguments = [name for name, _ in instructions], [given for _, given in instructions]
    told = {"id": 7, "instruction_id_list": names, "kwargs": arguments, "prompt": "Write.", **fields}
    return {**example_row("Write.", response=response), **told}


async def verified(body: dict[str, Any], **config: Any) -> dict[str, Any]:
    async with client_for(InstructionFollowingResourcesServer, **config) as environment:
        answer = await environment.post("/verify", json=body)
        assert answer.status == 200, answer.text
        record: dict[str, Any] = answer.json()
        return record


@pytest.mark.parametrize(
    ("instructions", "text", "results", "binary", "fraction"),
    [
        ([NO_COMMA, TWO_WORDS], "two words", [True, True], 1.0, 1.0),
        ([NO_COMMA, TWO_WORDS], "one", [True, False], 0.0, 0.5),
        ([NO_COMMA, TWO_WORDS], ",", [False, False], 0.0, 0.0),
        ([NO_COMMA, ("no:such", {})], "two words", [True, False], 0.0, 0.5),
        ([NO_COMMA, TWO_SENTENCES], "One. Two.", [True, True], 1.0, 1.0),
        ([], "two words", [], 0.0, 0.0),
    ],
)
async def test_all_instructions_count_or_their_share(
    instructions: Any, text: str, results: list[bool], binary: float, fraction: float
) -> None:
    for mode, reward in (("binary", binary), ("fraction", fraction)):
        record = await verified(row(*instructions, response=says(text), grading_mode=mode))
        assert (record["reward"], record["follow_instruction_list"]) == (reward, results)
        assert record["follow_all_instructions"] is (binary == 1.0)
        assert (record["grading_mode"], record["timed_out"]) == (mode, False)


async def test_the_record_echoes_the_instructions_and_holds_no_more() -> None:
    record = await verified(row(NO_COMMA, TWO_WORDS, response=says("two words"), extra=1))
    assert set(record) == FIELDS
    assert record["instruction_id_list"] == [NO_COMMA[0], TWO_WORDS[0]]
    assert record["kwargs"] == [None, TWO_WORDS[1]]
    assert (record["prompt"], record["grading_mode"]) == ("Write.", "binary")


@pytest.mark.parametrize("given", [{"kwargs": [None]}, {"instruction_id_list": [NO_COMMA[0]]}])
async def test_the_shorter_list_decides(given: dict[str, Any]) -> None:
    record = await verified(row(NO_COMMA, TWO_WORDS, response=says("one"), **given))
    assert (record["follow_instruction_list"], record["reward"]) == ([True], 1.0)


REFUSAL = {**message(""), "content": [{"type": "refusal", "refusal": "a, b"}]}
TWO_PARTS = {**message(""), "content": [{"type": "output_text", "text": text} for text in ("first", "a, b")]}


@pytest.mark.parametrize(
    ("output", "followed"),
    [
        ([message("a, b"), message("fine")], True),
        ([message("fine"), message("a, b")], False),
        ([TWO_PARTS], True),
        ([message("a, b"), calls("look")], True),
        ([message("a, b"), REFUSAL], True),
        ([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a, b"}]}], True),
        ([], True),
    ],
)
async def test_only_the_first_part_of_the_last_item_is_read(output: list[dict[str, Any]], followed: bool) -> None:
    record = await verified(row(NO_COMMA, response=response_of(*output)))
    assert record["reward"] == float(followed)


@pytest.mark.parametrize(
    "bad", [{"id": "x"}, {"kwargs": "x"}, {"kwargs": [1]}, {"prompt": None}, {"grading_mode": "loose"}]
)
async def test_a_row_that_does_not_fit_is_refused(bad: dict[str, Any]) -> None:
    async with client_for(InstructionFollowingResourcesServer) as environment:
        assert (await environment.post("/verify", json=row(NO_COMMA, response=says("x"), **bad))).status == 422


async def test_a_catastrophic_keyword_ends_on_time_and_the_next_row_is_not_delayed() -> None:
    async with client_for(InstructionFollowingResourcesServer, check_timeout_s=2) as environment:
        hostile = row(NO_COMMA, CATASTROPHIC, response=says("a" * 50 + "b"), grading_mode="fraction")
        record = (await environment.post("/verify", json=hostile)).json()
        assert (record["reward"], record["timed_out"]) == (0.0, True)
        assert record["follow_instruction_list"] == [False, False]
        good = row(CATASTROPHIC, response=says("a"))
        assert (await environment.post("/verify", json=good)).json()["reward"] == 1.0


@pytest.mark.parametrize(
    ("instruction", "reward", "timed_out"),
    [
        (NO_COMMA, 0.0, False),
        (("language:response_language", {"language": "en"}), 1.0, False),
        (("count:count_unique", None), 0.0, True),
    ],
)
async def test_an_answer_of_five_megabytes_ends_on_time(instruction: Any, reward: float, timed_out: bool) -> None:
    domain, limit_s = "instruction_following", 1 if timed_out else 30
    server = server_spec(
        "checked", "resources_servers", "instruction_following", domain=domain, check_timeout_s=limit_s
    )
    text = "These are words, and there are many of them. " * 110_000
    async with running_servers([server]) as client:
        answer = await client.post("checked", "/verify", json=row(instruction, response=says(text)))
    record = await answer.json()
    assert (record["reward"], record["timed_out"]) == (reward, timed_out)


async def test_language_detection_gives_the_same_answer_every_time() -> None:
    unclear = row(("language:response_language", {"language": "en"}), response=says("no na taxi hotel"))
    async with client_for(InstructionFollowingResourcesServer) as environment:
        rewards = {(await environment.post("/verify", json=unclear)).json()["reward"] for _ in range(10)}
    assert len(rewards) == 1


OWN_REPLIES = {
    1: "The light of the sun runs into the air and the air throws the blue part of it around.",
    2: "<<A butterfly's life>>\n* egg\n* caterpillar\n* chrysalis\n* butterfly",
    3: "Am Morgen liegt Nebel über dem Wasser und die Möwen schreien.\n***\nSpäter kommt die Sonne und es wird warm.",
    4: "Hello. A parcel came. It is for you. Please fetch it. P.S. It is heavy.",
    5: '{"facts": ["It has a ring system.", "A ring is made of ice.", "It is light."]}',
    6: '"It pulls on the water. That is all."',
}


async def test_each_of_our_rows_can_be_followed() -> None:
    rows = rows_of(OWN_ROWS / "example.jsonl")
    assert len(rows) >= 5
    async with client_for(InstructionFollowingResourcesServer) as environment:
        for one in rows:
            good, bad = says(OWN_REPLIES[one["id"]]), says("Well, gravity, [")
            rewards = [
                (await environment.post("/verify", json={**one, "response": response})).json()["reward"]
                for response in (good, bad)
            ]
            assert rewards == [1.0, 0.0], one["prompt"]


def public_rows(folder: Path) -> list[dict[str, Any]]:
    if not folder.is_dir():
        pytest.skip("the public rows are not on this machine")
    return rows_of(folder / "example.jsonl")


PUBLIC_REPLIES = {
    17616: "One.\n\nTwo.\n\nCrash, he thought.\n\nIt was no contest.",
    44654: "* ONE\n* TWO\n***\n* THREE\n* FOUR\n* FIVE",
    2228: "Relationship is all. Relationship matters.",
    44655: "[a] [b] [c] [d] " + "One more topic is here. " * 17,
    8654: "<<How to install>>\n***\nRun the installer.",
}


async def test_the_public_rows_can_be_followed() -> None:
    async with client_for(InstructionFollowingResourcesServer) as environment:
        for one in public_rows(PUBLIC_ROWS):
            assert set(one["instruction_id_list"]) <= set(CHECKS)
            good = await environment.post("/verify", json={**one, "response": says(PUBLIC_REPLIES[one["id"]])})
            assert good.json()["reward"] == 1.0, good.json()["follow_instruction_list"]
            bad = await environment.post("/verify", json={**one, "response": says("An inevitable part, x")})
            assert bad.json()["reward"] == 0.0

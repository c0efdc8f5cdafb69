"""What is read, how it is graded, and what hostile rows and answers cost."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from nemo_gym.client.server_client import ServerClient
from nemo_gym.testing import calls, example_row, message, response_of, rows_of, running_servers, says, server_spec
from resources_servers.instruction_following.checks import CHECKS
from tests.example_rows import WITH_PUBLIC_DATA, own_rows, public_rows

pytestmark = pytest.mark.asyncio(loop_scope="module")
NO_COMMA = ("punctuation:no_comma", None)
TWO_WORDS = ("length_constraints:number_words", {"num_words": 2, "relation": "at least"})
TWO_SENTENCES = ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"})
CATASTROPHIC = ("keywords:word_once", {"keyword": "(a+)+$"})
FIELDS = {
    *("responses_create_params", "response", "reward", "follow_all_instructions", "follow_instruction_list"),
    *("kwargs", "instruction_id_list", "prompt", "grading_mode", "timed_out"),
}


def row(*instructions: tuple[str, dict[str, Any] | None], response: Any, **fields: Any) -> dict[str, Any]:
    names, arguments = [name for name, _ in instructions], [kwargs for _, kwargs in instructions]
    given = {"id": 7, "instruction_id_list": names, "kwargs": arguments, "prompt": "Write.", **fields}
    return {**example_row("Write.", response=response), **given}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client() -> AsyncIterator[ServerClient]:
    """One stack for all tests, since the libraries for tokens and languages take seconds to import."""
    limits = {"checked": 30, "impatient": 0.5}
    folder = "instruction_following"
    async with running_servers(
        [
            server_spec(name, "resources_servers", folder, domain=folder, check_timeout_s=limit)
            for name, limit in limits.items()
        ]
    ) as stack:
        yield stack


async def verified(client: ServerClient, body: dict[str, Any], *, server: str = "checked") -> dict[str, Any]:
    answer = await client.post(server, "/verify", json=body)
    assert answer.status == 200
    record: dict[str, Any] = await answer.json()
    return record


@pytest.mark.parametrize(
    ("instructions", "text", "results", "binary", "fraction"),
    [
        ([NO_COMMA, TWO_WORDS], "two words", [True, True], 1.0, 1.0),
        ([NO_COMMA, TWO_WORDS], "one", [True, False], 0.0, 0.5),
        ([NO_COMMA, TWO_WORDS], ",", [False, False], 0.0, 0.0),
        ([NO_COMMA, TWO_WORDS], "...", [False, False], 0.0, 0.0),
        ([NO_COMMA, TWO_SENTENCES], "One. Two.", [True, True], 1.0, 1.0),
    ],
)
async def test_all_instructions_count_or_their_share(
    client: ServerClient, instructions: Any, text: str, results: list[bool], binary: float, fraction: float
) -> None:
    for mode, reward in (("binary", binary), ("fraction", fraction)):
        record = await verified(client, row(*instructions, response=says(text), grading_mode=mode))
        assert (record["reward"], record["follow_instruction_list"]) == (reward, results)
        assert record["follow_all_instructions"] is (binary == 1.0)
        assert (record["grading_mode"], record["timed_out"]) == (mode, False)


async def test_the_record_echoes_the_instructions_and_holds_no_more(client: ServerClient) -> None:
    record = await verified(client, row(NO_COMMA, TWO_WORDS, response=says("two words"), extra=1))
    assert set(record) == FIELDS
    assert record["instruction_id_list"] == [NO_COMMA[0], TWO_WORDS[0]]
    assert record["kwargs"] == [None, TWO_WORDS[1]]
    assert (record["prompt"], record["grading_mode"]) == ("Write.", "binary")


REFUSAL = {**message(""), "content": [{"type": "refusal", "refusal": "fine"}]}
TWO_PARTS = {**message(""), "content": [{"type": "output_text", "text": text} for text in ("first", "a, b")]}


@pytest.mark.parametrize(
    ("output", "followed"),
    [
        ([message("a, b"), message("fine")], True),
        ([message("fine"), message("a, b")], False),
        ([TWO_PARTS], True),
        ([message("fine"), calls("look")], False),
        ([message("fine"), REFUSAL], False),
        ([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fine"}]}], False),
        ([], False),
        ([message("<think>a, b</think>fine")], True),
        ([message("a, b</think>fine")], True),
        ([message("<think>fine")], False),
        ([message("<think>fine</think>")], False),
    ],
)
async def test_only_the_first_part_of_the_last_item_is_read(
    client: ServerClient, output: list[dict[str, Any]], followed: bool
) -> None:
    record = await verified(client, row(NO_COMMA, response=response_of(*output)))
    assert record["reward"] == float(followed)


@pytest.mark.parametrize(
    "bad",
    [
        *({"id": "x"}, {"kwargs": "x"}, {"kwargs": [1]}, {"prompt": None}, {"grading_mode": "loose"}),
        *({"kwargs": None}, {"kwargs": []}, {"kwargs": [None, None]}, {"kwargs": [{"unknown": 1}]}),
        {"instruction_id_list": [], "kwargs": []},
        {"instruction_id_list": ["no:such"], "kwargs": [None]},
        {"instruction_id_list": [NO_COMMA[0], TWO_WORDS[0]], "kwargs": [None]},
        {"instruction_id_list": [NO_COMMA[0], TWO_WORDS[0]], "kwargs": [None, None]},
        {"instruction_id_list": [TWO_WORDS[0]], "kwargs": [{"num_words": "2", "relation": "at least"}]},
    ],
)
async def test_a_row_that_does_not_fit_is_refused(client: ServerClient, bad: dict[str, Any]) -> None:
    assert (await client.post("checked", "/verify", json=row(NO_COMMA, response=says("x"), **bad))).status == 422


async def test_the_number_of_kwargs_is_that_of_the_instructions(client: ServerClient) -> None:
    for kwargs in ([None], [None, TWO_WORDS[1], None]):
        answer = await client.post(
            "checked", "/verify", json=row(NO_COMMA, TWO_WORDS, response=says("x"), kwargs=kwargs)
        )
        assert answer.status == 422
        assert f"2 instructions, but {len(kwargs)} `kwargs`" in json.dumps(await answer.json())


async def test_a_catastrophic_keyword_ends_on_time_and_the_next_row_is_not_delayed(client: ServerClient) -> None:
    hostile = row(NO_COMMA, CATASTROPHIC, response=says("a" * 50 + "b"), grading_mode="fraction")
    record = await verified(client, hostile, server="impatient")
    assert (record["reward"], record["timed_out"]) == (0.0, True)
    assert record["follow_instruction_list"] == [False, False]
    assert (await verified(client, row(CATASTROPHIC, response=says("a")), server="impatient"))["reward"] == 1.0


@pytest.mark.parametrize(
    ("instruction", "reward", "timed_out"),
    [
        (NO_COMMA, 0.0, False),
        (("language:response_language", {"language": "en"}), 1.0, False),
        (TWO_SENTENCES, 0.0, True),
    ],
)
async def test_an_answer_of_five_megabytes_ends_on_time(
    client: ServerClient, instruction: Any, reward: float, timed_out: bool
) -> None:
    text = "These are words, and there are many of them. " * 110_000
    body = row(instruction, response=says(text))
    record = await verified(client, body, server="impatient" if timed_out else "checked")
    assert (record["reward"], record["timed_out"]) == (reward, timed_out)


async def test_language_detection_gives_the_same_answer_every_time(client: ServerClient) -> None:
    unclear = row(("language:response_language", {"language": "en"}), response=says("no na taxi hotel"))
    rewards = {(await verified(client, unclear))["reward"] for _ in range(10)}
    assert len(rewards) == 1


OWN_REPLIES = {
    1: "The light of the sun runs into the air and the air throws the blue part of it around.",
    2: "<<A butterfly's life>>\n* egg\n* caterpillar\n* chrysalis\n* butterfly",
    3: "Am Morgen liegt Nebel über dem Wasser und die Möwen schreien.\n***\nSpäter kommt die Sonne und es wird warm.",
    4: "Hello. A parcel came. It is for you. Please fetch it. P.S. It is heavy.",
    5: '{"facts": ["It has a ring system.", "A ring is made of ice.", "It is light."]}',
    6: '"It pulls on the water. That is all."',
}


async def test_each_of_our_rows_can_be_followed(client: ServerClient) -> None:
    rows = rows_of(own_rows("instruction_following"))
    assert len(rows) >= 5
    for one in rows:
        replies = says(OWN_REPLIES[one["id"]]), says("Well, gravity, [")
        rewards = [(await verified(client, {**one, "response": reply}))["reward"] for reply in replies]
        assert rewards == [1.0, 0.0], one["prompt"]


PUBLIC_REPLIES = {
    17616: "One.\n\nTwo.\n\nCrash, he thought.\n\nIt was no contest.",
    44654: "* ONE\n* TWO\n***\n* THREE\n* FOUR\n* FIVE",
    2228: "Relationship is all. Relationship matters.",
    44655: "[a] [b] [c] [d] " + "One more topic is here. " * 17,
    8654: "<<How to install>>\n***\nRun the installer.",
}


@WITH_PUBLIC_DATA
async def test_the_public_rows_can_be_followed(client: ServerClient) -> None:
    for one in rows_of(public_rows("instruction_following")):
        assert set(one["instruction_id_list"]) <= set(CHECKS)
        good = await verified(client, {**one, "response": says(PUBLIC_REPLIES[one["id"]])})
        assert good["reward"] == 1.0, good["follow_instruction_list"]
        assert (await verified(client, {**one, "response": says("An inevitable part, x")}))["reward"] == 0.0

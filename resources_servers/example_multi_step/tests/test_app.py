import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym import NeMoGymResponse, ServerClient
from nemo_gym.testing import BrowserLikeClient, calls, client_for, example_row, response_of, rows_of, says, tool_output
from resources_servers.example_multi_step.app import MultiStepResourcesServer, handed_in
from tests.example_rows import PUBLIC_DATA, WITH_PUBLIC_DATA, own_rows, public_rows

OWN_ROWS = own_rows("example_multi_step")
BENCHMARK_ROWS = PUBLIC_DATA / "multineedle/multineedle_benchmark.jsonl"

SYNONYMS = ["Stroll", "Amble", "Saunter"]
VALUES = [640, 481, 738]
ROW = example_row(
    id=0,
    expected_synonyms=SYNONYMS,
    expected_synonym_values=VALUES,
    minefield_label="Walk",
    minefield_label_value=399,
)


class Score(NamedTuple):
    reward: float
    overlap: float
    order_failure: bool
    minefield: bool
    echoed: list[int]


@pytest.fixture
async def environment() -> AsyncIterator[BrowserLikeClient]:
    async with client_for(MultiStepResourcesServer) as client:
        yield client


def hands_in(arguments: Any) -> dict[str, Any]:
    return calls("extract_synonym_values", arguments)


async def score(environment: BrowserLikeClient, *output: dict[str, Any], **fields: Any) -> Score:
    answer = await environment.post("/verify", json={**ROW, **fields, "response": response_of(*output)})
    assert answer.status == 200, answer.text
    scored = answer.json()
    assert scored["accuracy"] is (scored["reward"] == 1.0)
    return Score(
        reward=scored["reward"],
        overlap=scored["set_overlap"],
        order_failure=scored["order_instruction_following_failure"],
        minefield=scored["original_term_minefield_hit"],
        echoed=scored["parsed_synonym_values"],
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(VALUES, Score(1.0, 1.0, False, False, VALUES), id="exact"),
        pytest.param([738, 481, 640], Score(0.0, 1.0, True, False, [738, 481, 640]), id="wrong order"),
        pytest.param([*VALUES, 738], Score(0.0, 1.0, True, False, [*VALUES, 738]), id="a duplicate"),
        pytest.param([*VALUES, 1], Score(0.0, 1.0, True, False, [*VALUES, 1]), id="one too many"),
        pytest.param([640, 481], Score(0.0, 2 / 3, False, False, [640, 481]), id="one too few"),
        pytest.param([640.0, 481, 738.0], Score(1.0, 1.0, False, False, VALUES), id="floats equal to the ints"),
        pytest.param(["640", "481", "738"], Score(0.0, 0.0, False, False, VALUES), id="numbers as strings"),
        pytest.param([640, "481", 738], Score(0.0, 2 / 3, False, False, VALUES), id="one number as a string"),
        pytest.param([640, 399], Score(0.0, 1 / 3, False, True, [640, 399]), id="the value of the term itself"),
        pytest.param([], Score(0.0, 0.0, False, False, []), id="nothing"),
        pytest.param([True], Score(0.0, 0.0, False, False, [1]), id="a boolean counts as a number"),
    ],
)
async def test_what_is_handed_in_is_scored(environment: BrowserLikeClient, values: list[Any], expected: Score) -> None:
    assert await score(environment, hands_in({"synonym_values": values})) == expected


NOTHING = Score(0.0, 0.0, False, False, [])


@pytest.mark.parametrize(
    "output",
    [
        [],
        [calls("get_synonym_value", {"synonym": "Stroll"})],
        [*says("640, 481 and 738.")["output"]],
        [tool_output('{"synonym_values":[640,481,738]}')],
        [{"type": "message", "role": "user", "content": "a user's message in the output"}],
    ],
)
async def test_without_a_hand_in_nothing_is_scored(
    environment: BrowserLikeClient, output: list[dict[str, Any]]
) -> None:
    assert await score(environment, *output) == NOTHING


@pytest.mark.parametrize(
    "arguments",
    [
        "no JSON",
        "",
        "[" * 100_000,
        "[640, 481, 738]",
        "null",
        "7",
        "{}",
        '{"synonym_values": null}',
        '{"synonym_values": 640}',
        '{"synonym_values": "640"}',
        '{"synonym_values": {"0": 640}}',
        '{"synonym_values": [640, 481, "Saunter"]}',
        '{"synonym_values": [640, 481, null]}',
        '{"synonym_values": [640, 481, [738]]}',
        '{"synonym_values": [640, 481, {}]}',
        '{"synonym_values": [640, 481, 738.5]}',
        '{"synonym_values": [640, 481, NaN]}',
        '{"synonym_values": [640, 481, Infinity]}',
        '{"synonym_values": [640, 481, 1e999]}',
        f'{{"synonym_values": [{"9" * 400}]}}',
        f'{{"synonym_values": [{"9" * 5000}]}}',
        f'{{"synonym_values": ["{"9" * 400}"]}}',
    ],
)
async def test_a_hand_in_that_cannot_be_read_scores_nothing(environment: BrowserLikeClient, arguments: str) -> None:
    assert await score(environment, hands_in(arguments)) == NOTHING


@pytest.mark.parametrize("values", [VALUES, []])
async def test_an_empty_list_of_expected_values_scores_nothing(
    environment: BrowserLikeClient, values: list[int]
) -> None:
    something = await score(environment, hands_in({"synonym_values": values}), expected_synonym_values=[])
    assert something == Score(0.0, 0.0, False, False, values)


async def test_overlap_is_measured_by_the_length_of_the_expected_list(environment: BrowserLikeClient) -> None:
    twice = await score(environment, hands_in({"synonym_values": [640]}), expected_synonym_values=[640, 640])
    assert twice == Score(0.0, 0.5, False, False, [640])


async def test_of_two_hand_ins_the_last_one_counts(environment: BrowserLikeClient) -> None:
    right, wrong = hands_in({"synonym_values": VALUES}), hands_in({"synonym_values": [1]})
    assert (await score(environment, wrong, right, *says("Done.")["output"])).reward == 1.0
    assert (await score(environment, right, wrong)).reward == 0.0
    assert await score(environment, right, hands_in("no JSON")) == NOTHING


async def test_the_term_itself_is_a_hit_in_the_minefield_if_it_is_handed_in_as_a_text(
    environment: BrowserLikeClient,
) -> None:
    hit = await score(environment, hands_in({"synonym_values": ["7"]}), minefield_label="7")
    assert hit.minefield


async def test_the_answer_has_its_own_fields_and_drops_those_of_the_row(environment: BrowserLikeClient) -> None:
    scored = (await environment.post("/verify", json={**ROW, "response": says("Done."), "note": "dropped"})).json()
    assert set(scored) == {
        "responses_create_params",
        "response",
        "reward",
        "parsed_synonym_values",
        "accuracy",
        "set_overlap",
        "original_term_minefield_hit",
        "order_instruction_following_failure",
    }


@pytest.mark.parametrize(
    "field", ["id", "expected_synonyms", "expected_synonym_values", "minefield_label", "minefield_label_value"]
)
async def test_every_field_of_a_row_is_required(environment: BrowserLikeClient, field: str) -> None:
    row = {name: value for name, value in ROW.items() if name != field}
    answer = await environment.post("/verify", json={**row, "response": says("Done.")})
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"] == ["body", field]


@pytest.mark.parametrize(("synonym", "value"), [("", 0), ("a", 97), ("Stroll", 640), ("é", 233), ("😀", 0x1F600)])
async def test_the_value_of_a_synonym_is_the_sum_of_its_code_points(
    environment: BrowserLikeClient, synonym: str, value: int
) -> None:
    answer = await environment.post("/get_synonym_value", json={"synonym": synonym})
    assert (answer.status, answer.json()) == (200, {"synonym_value": value})


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
async def test_the_value_of_a_synonym_follows_the_law(synonym: str) -> None:
    config = MultiStepResourcesServer.config_class()(name="test", host="", port=0, entrypoint="app.py")
    server = MultiStepResourcesServer(config=config, server_client=ServerClient())
    assert await server.get_synonym_value(synonym) == {"synonym_value": sum(ord(letter) for letter in synonym)}


@settings(deadline=None)
@given(st.lists(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3), max_size=3))
def test_whatever_is_handed_in_is_a_list_of_what_int_can_read(values: list[Any]) -> None:
    response = NeMoGymResponse.model_validate(response_of(hands_in(json.dumps({"synonym_values": values}))))
    assert all(abs(int(value)) < 2**63 for value in handed_in(response))


@pytest.mark.parametrize("arguments", [{}, {"synonym": None}, {"synonym": 7}])
async def test_looking_up_needs_a_text(environment: BrowserLikeClient, arguments: dict[str, Any]) -> None:
    assert (await environment.post("/get_synonym_value", json=arguments)).status == 422


@pytest.mark.parametrize("values", [[], [1, 2], [1.0], ["1"]])
async def test_handing_in_succeeds_and_stores_nothing(environment: BrowserLikeClient, values: list[Any]) -> None:
    answer = await environment.post("/extract_synonym_values", json={"synonym_values": values})
    assert (answer.status, answer.json()) == (200, {"success": True})
    assert not environment.cookies


@pytest.mark.parametrize("arguments", [{}, {"synonym_values": None}, {"synonym_values": 1}, {"synonym_values": ["x"]}])
async def test_handing_in_needs_a_list_of_numbers(environment: BrowserLikeClient, arguments: dict[str, Any]) -> None:
    assert (await environment.post("/extract_synonym_values", json=arguments)).status == 422


@pytest.mark.parametrize(
    ("path", "count"),
    [
        pytest.param(OWN_ROWS, 5, id="own"),
        pytest.param(public_rows("example_multi_step"), 5, id="public", marks=WITH_PUBLIC_DATA),
        pytest.param(BENCHMARK_ROWS, 77, id="benchmark", marks=WITH_PUBLIC_DATA),
    ],
)
async def test_rows_follow_the_law_and_can_be_solved(environment: BrowserLikeClient, path: Path, count: int) -> None:
    rows = rows_of(path)
    assert len(rows) == count
    for row in rows:
        values = [sum(map(ord, synonym)) for synonym in row["expected_synonyms"]]
        assert row["expected_synonym_values"] == values
        assert row["minefield_label_value"] == sum(map(ord, row["minefield_label"]))
        response = response_of(hands_in({"synonym_values": values}))
        answer = await environment.post("/verify", json={**row, "response": response})
        assert answer.json()["reward"] == 1.0


def test_own_rows_list_the_synonyms_of_the_right_term_in_the_expected_order() -> None:
    for row in rows_of(OWN_ROWS):
        lines = row["responses_create_params"]["input"][0]["content"].partition("\n\n")[2].splitlines()
        pairs = [line.split(": ") for line in lines]
        assert [synonym for term, synonym in pairs if term == row["minefield_label"]] == row["expected_synonyms"]
        assert row["responses_create_params"]["parallel_tool_calls"] is False

"""The rules by which texts are compared, rows that say nothing, and the evals of the package."""

from typing import Any

import pytest

from nemo_gym.data.hubs.pypi import Members, identifier_of, package_files
from nemo_gym.errors import ConfigError
from nemo_gym.testing import client_for, example_row, says
from resources_servers.string_match.app import StringMatchResourcesServer, is_right
from resources_servers.string_match.rows import chosen, eval_rows, few_shots, messages_of, rows, specs
from tests.benchmarks import packaged_datasets, require

NAME = "openai_evals/openai_evals"


@pytest.mark.parametrize(
    ("match", "ideal", "reply", "reward"),
    [
        ("starts_with", "42", "42abc", 1.0),
        ("starts_with", "42", " 42", 0.0),
        ("starts_with", "Yes", "yes", 0.0),
        ("starts_with", ["Yes", "No"], "No.", 1.0),
        ("includes", "B", "It is B.", 1.0),
        ("includes", "b", "It is B.", 0.0),
        ("fuzzy", "The Beatles", "beatles!", 1.0),
        ("fuzzy", "The Beatles", "The Beatles, of course", 1.0),
        ("fuzzy", "The Beatles", "beat", 1.0),
        ("fuzzy", "The Beatles", "", 0.0),
        ("fuzzy", "The Beatles", "the", 0.0),
        ("json", '{"a": [1, 2]}', '{"a": [1, 2.0]}', 1.0),
        ("json", '{"a": [1, 2]}', '{"a": [2, 1]}', 0.0),
        ("json", '{"a": 1}', '{"a": 1, "b": null}', 0.0),
        ("json", ['{"a": 1}', "[2]"], "[2]", 1.0),
        ("json", '{"a": 1}', "[" * 100_000, 0.0),
        ("json", '{"a": 1}', "It is {}", 0.0),
        ("exact", "reward", "reward", 1.0),
        ("exact", "reward", "reward.", 0.0),
    ],
)
async def test_an_answer_is_compared_by_the_rule_of_its_row(match: str, ideal: Any, reply: str, reward: float) -> None:
    async with client_for(StringMatchResourcesServer) as environment:
        row = {**example_row("Say it.", match=match, ideal=ideal), "response": says(reply)}
        assert (await environment.post("/verify", json=row)).json()["reward"] == reward


async def test_case_is_ignored_only_if_the_row_says_so() -> None:
    async with client_for(StringMatchResourcesServer) as environment:
        for ignore_case, reward in ((True, 1.0), (False, 0.0)):
            row = {
                **example_row("Say it.", match="includes", ideal="Mercury", ignore_case=ignore_case),
                "response": says("it is MERCURY"),
            }
            assert (await environment.post("/verify", json=row)).json()["reward"] == reward


@pytest.mark.parametrize(
    ("match", "ideal", "fact"),
    [
        ("starts_with", "", "every answer"),
        ("includes", ["a", ""], "every answer"),
        ("exact", [], "empty list"),
        ("json", "null", "no JSON"),
        ("json", "{", "no JSON"),
        ("contains", "a", "match"),
    ],
)
async def test_a_row_that_anything_or_nothing_solves_is_refused(match: str, ideal: Any, fact: str) -> None:
    async with client_for(StringMatchResourcesServer) as environment:
        reply = await environment.post("/seed_session", json=example_row("Say it.", match=match, ideal=ideal))
        assert reply.status >= 400
        assert fact in reply.text


def test_prompts_of_texts_become_messages() -> None:
    assert messages_of("Hello?") == [{"role": "user", "content": "Hello?"}]
    named = [{"role": "system", "name": "example_user", "content": "Hi."}]
    assert messages_of(named) == [{"role": "system", "content": "Hi."}]
    for other in (None, [], [{"role": "tool", "content": "x"}], [{"role": "user", "content": [{"type": "image"}]}]):
        assert messages_of(other) is None


def test_an_eval_is_chosen_by_its_name_or_the_first_part_of_it() -> None:
    known = ["logic.dev.v0", "logic.test.v0", "logic-grid.s1", "poker.v0"]
    assert chosen(known, "logic") == known[:2]
    assert chosen(known, "poker.v0") == ["poker.v0"]
    with pytest.raises(ConfigError, match=r"logic-grid\.s1"):
        chosen(known, "grid")
    with pytest.raises(ConfigError, match="4 evals"):
        chosen(known, None)


def test_502_evals_of_the_package_can_be_played_and_their_ideals_are_right() -> None:
    require(NAME)
    source = identifier_of(packaged_datasets()[NAME])
    members = Members(package_files(source), source.members)
    known = specs(members)
    assert len(known) == 502
    assert len(few_shots(members, known["anagrams.test.v1"].arguments)) >= 5
    wrong, empty = list[str](), list[str]()
    for name in sorted(known)[::25]:
        for row, _ in zip(eval_rows(members, name, known[name]), range(20), strict=False):
            gold = StringMatchResourcesServer.gold_response(row)
            StringMatchResourcesServer.check_row(row)
            wrong += [] if is_right(gold, row["match"], row["ideal"], ignore_case=row["ignore_case"]) else [row["id"]]
            empty += [row["id"]] if is_right("", row["match"], row["ideal"]) else []
    assert (wrong, empty) == ([], [])
    assert len(list(rows(members, "anagrams.test.v1"))) == len(list(rows(members, "anagrams")))

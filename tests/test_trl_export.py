"""Our environments by the contract of TRL's `environment_factory`: what GRPOTrainer does with them, without torch.

The contract (trl 1.16): public methods of the class but `reset` and `get_reward` are tools, whose schema comes from
signature and docstring; `reset` gets the columns of the row; reward functions get `completions` and `environments`.
tests/test_real_trainers.py has the real trainer, where it is installed.
"""

import inspect
import json
from collections.abc import Iterator
from typing import Any

import pytest

from nemo_gym.errors import ConfigError, RolloutError
from nemo_gym.interop.trl_environment import TrlEnvironment, output_items

COUNTER = "resources_servers/example_stateful_counter/configs/stateful_counter.yaml"


@pytest.fixture(scope="module")
def counter() -> Iterator[TrlEnvironment]:
    environment = TrlEnvironment(COUNTER)
    yield environment
    environment.close()


def tools_of(instance: Any) -> dict[str, Any]:
    """As GRPOTrainer finds them."""
    names = [name for name, _ in inspect.getmembers(type(instance), predicate=inspect.isfunction)]
    return {name: getattr(instance, name) for name in names if name != "reset" and not name.startswith("_")}


def test_tools_are_methods_with_signatures_and_docstrings(counter: TrlEnvironment) -> None:
    tools = tools_of(counter.environment_factory())
    assert set(tools) == {"increment_counter", "get_counter_value"}
    increment = tools["increment_counter"]
    assert str(inspect.signature(increment)) == "(count: int) -> str"
    assert increment.__name__ == "increment_counter"
    assert (inspect.getdoc(increment) or "").startswith("Add to the counter.\n\nArgs:\n    count: ")


def completion(environment: Any, *counts: int) -> list[dict[str, Any]]:
    """What the trainer collects while it plays: calls, results, a last message."""
    messages: list[dict[str, Any]] = []
    for count in counts:
        function = {"name": "increment_counter", "arguments": {"count": count}}
        messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
        )
        told = tools_of(environment)["increment_counter"](**function["arguments"])  # type: ignore[arg-type]
        messages.append({"role": "tool", "name": "increment_counter", "content": told})
    return [*messages, {"role": "assistant", "content": "Done."}]


def test_a_batch_is_played_and_scored(counter: TrlEnvironment) -> None:
    columns = counter.dataset()[0]
    row = json.loads(columns["nemo_gym_row"])
    assert columns["prompt"][-1]["role"] == "user"
    missing = row["expected_count"] - row["initial_count"]
    pool = [counter.environment_factory() for _ in range(3)]
    for _batch in range(2):
        for environment in pool:
            assert environment.reset(**columns) is None
        played = [(missing,), (missing, 1), (1, missing - 1)]
        completions = [completion(environment, *counts) for environment, counts in zip(pool, played, strict=True)]
        assert counter.reward_func(completions=completions, environments=pool, prompts=[]) == [1.0, 0.0, 1.0]


def test_a_rollout_that_was_not_scored_is_forgotten_by_the_next_reset(counter: TrlEnvironment) -> None:
    environment, columns = counter.environment_factory(), counter.dataset()[1]
    environment.reset(**columns)
    completion(environment, 5)
    environment.reset(**columns)
    row = json.loads(columns["nemo_gym_row"])
    done = completion(environment, row["expected_count"] - row["initial_count"])
    assert counter.reward_func(completions=[done], environments=[environment]) == [1.0]


def test_calls_and_results_are_paired() -> None:
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in ("a", "b")]
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": "Both.", "tool_calls": calls},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": [{"type": "text", "text": "2"}]},
    ]
    items = output_items(messages)
    assert [item["type"] for item in items] == ["message", *["function_call"] * 2, *["function_call_output"] * 2]
    assert [item["call_id"] for item in items[1:3]] == [item["call_id"] for item in items[3:]]
    assert [item["output"] for item in items[3:]] == ["1", "2"]
    assert output_items("Hello.")[0]["content"][0]["text"] == "Hello."


def test_rows_that_trl_cannot_play_are_refused(counter: TrlEnvironment) -> None:
    row: dict[str, Any] = {"responses_create_params": {"input": [], "tools": []}}
    with pytest.raises(ConfigError, match="user message"):
        TrlEnvironment(host=counter.host, rows=[row]).dataset()
    tools = [{"type": "function", "name": "reset", "parameters": {}}]
    with pytest.raises(ConfigError, match="reset"):
        TrlEnvironment(host=counter.host, rows=[{"responses_create_params": {"input": "Hi.", "tools": tools}}])
    with pytest.raises(ConfigError, match="no rows to train on"):
        TrlEnvironment(host=counter.host, rows=[])
    with pytest.raises(ConfigError, match=r"Row 1 .*\n.*responses_create_params"):
        TrlEnvironment(host=counter.host, rows=[counter.rows[0], {"prompt": "Hi."}])


def test_a_rollout_without_result_has_no_reward_and_training_goes_on(
    counter: TrlEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    environment, columns = counter.environment_factory(), counter.dataset()[0]
    bad_row = {**json.loads(columns["nemo_gym_row"]), "initial_count": "many"}
    environment.reset(nemo_gym_row=json.dumps(bad_row))
    assert "a rollout cannot start" in caplog.text
    with pytest.raises(RolloutError, match="no rollout"):
        environment.get_counter_value()
    played = counter.environment_factory()
    played.reset(**columns)
    scores = counter.reward_func(completions=["Done.", "Done."], environments=[environment, played])
    assert scores == [None, 0.0]


def test_the_error_of_an_incomplete_trainer_says_what_to_add(counter: TrlEnvironment) -> None:
    with pytest.raises(ConfigError, match=r"'nemo_gym_row'.*: prompt"):
        counter.environment_factory().reset(prompt=[])
    with pytest.raises(ConfigError, match="environment_factory"):
        counter.reward_func(completions=["Done."])

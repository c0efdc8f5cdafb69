"""Signals of reward hacking are seen in rollouts that show them, and in no others."""

from typing import Any

import orjson
import pytest

from nemo_gym.rollouts.hacking_signals import ALL_UNTIL, MIN_ROLLOUTS, HackingSignals
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.testing import calls, example_row, message, tool_output

Items = list[dict[str, Any]]


def record(*items: dict[str, Any], reward: float = 1.0, prompt: str = "What is it?") -> dict[str, Any]:
    return {**example_row(prompt), "response": {"output": list(items)}, "reward": reward}


def alarms_of(records: list[dict[str, Any]]) -> dict[str, str]:
    signals = HackingSignals()
    for task, each in enumerate(records):
        signals.add_line(orjson.dumps(each), task)
    return {alarm.signal: alarm.says for alarm in signals.alarms()}


def honest(number: int) -> dict[str, Any]:
    return record(message(f"I add them up and get {number}. The answer is {number}."), reward=float(number % 2))


def with_tool(number: int, answer: str) -> dict[str, Any]:
    made = calls("look_up", {"key": "k"}, call_id="one")
    return record(made, tool_output(f"the value is {number}77", call_id="one"), message(answer))


@pytest.mark.parametrize(
    "records",
    [
        [honest(number) for number in range(100)],
        [record(message("\\boxed{A}")) for _ in range(100)],
        [with_tool(number, f"It is {number}77.") for number in range(100)],
        [record(message("[[A=B]]"), prompt="Reply with [[A=B]] or [[A!=B]].") for _ in range(100)],
        [record(message("Always the same long answer, and wrong."), reward=0.0) for _ in range(100)],
        [record(calls("read", {"path": "tests/test_app.py"}), message("I have read it.")) for _ in range(100)],
    ],
)
def test_honest_rollouts_raise_no_alarm(records: list[dict[str, Any]]) -> None:
    assert alarms_of(records) == {}


@pytest.mark.parametrize(
    ("signal", "records"),
    [
        (
            "reward_jump_with_length_collapse",
            [record(message(f"{number} " * 300), reward=0.0) for number in range(40)]
            + [record(message(f"It is {number}.")) for number in range(40)],
        ),
        ("identical_answers", [record(message("The answer is as it was said above.")) for _ in range(40)]),
        ("judge_labels", [record(message(f"It is {number}. [[A=B]]")) for number in range(40)]),
        ("outputs_never_read", [with_tool(number, f"I think {number}.") for number in range(1, 40)]),
        (
            "tests_edited",
            [honest(number) for number in range(40)]
            + [record(calls("shell", {"command": "sed -i s/assert/pass/ tests/test_app.py"}), message("Done it."))],
        ),
    ],
)
def test_each_signal_is_seen(signal: str, records: list[dict[str, Any]]) -> None:
    assert set(alarms_of(records)) == {signal}


def test_few_rollouts_raise_no_alarm() -> None:
    records = [record(message("The answer is as it was said above.")) for _ in range(MIN_ROLLOUTS - 1)]
    assert alarms_of(records) == {}


def test_after_many_rollouts_a_sample_of_them_is_read() -> None:
    signals = HackingSignals()
    for task in range(ALL_UNTIL):
        signals.add_line(orjson.dumps(honest(task)), task)
    signals.add_line(b"not JSON, and not read", ALL_UNTIL)


def test_alarms_are_in_the_metrics_and_in_their_table() -> None:
    metrics = RunningMetrics(num_repeats=1)
    for task in range(20):
        metrics.add({**record(message("The answer is as it was said above.")), "_task_index": task})
    [alarm] = metrics.summary()["alarms"]
    assert (alarm["signal"], alarm["rollouts"][0]) == ("identical_answers", 0)
    assert "ALARM identical_answers" in metrics.table()

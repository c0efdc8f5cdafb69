"""Files of rollouts for the tests of the viewer."""

import json
from pathlib import Path
from typing import Any

from tests.jsonl import write_lines

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


def text_message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "status": "completed", "content": content}


def tool_call(name: str, result: Any, *, call_id: str = "call_1", **arguments: Any) -> list[dict[str, Any]]:
    call = {"type": "function_call", "call_id": call_id, "name": name, "arguments": json.dumps(arguments)}
    return [call, {"type": "function_call_output", "call_id": call_id, "output": json.dumps(result)}]


def reasoning(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": text}]}


def record(
    prompt: Any, *output: Any, reward: float | None = 1.0, task: int | None = 0, repeat: int = 0, **fields: Any
) -> dict[str, Any]:
    """A scored rollout as the collector writes it; without `task` as the public NeMo Gym writes it."""
    given = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    usage = {"input_tokens": 40, "output_tokens": 10 * len(output) + repeat, "total_tokens": 50}
    items = [text_message(item) if isinstance(item, str) else item for item in output]
    found = {
        "responses_create_params": {"input": given},
        "response": {"id": "resp_1", "model": "test-model", "status": "completed", "output": items, "usage": usage},
        **fields,
    }
    place = {} if task is None else {"_task_index": task, "_repeat_index": repeat, "_row_hash": f"{task:016x}"}
    scored = {} if reward is None else {"reward": reward}
    return {**found, **scored, **place, "_attempts": 1, "_retries": 0, "_seconds": 0.5 + repeat}


def failure(cause: str, message: str, *, task: int = 0, code: str | None = None) -> dict[str, Any]:
    row = {"responses_create_params": {"input": [{"role": "user", "content": "What is 2 + 2?"}]}}
    place = {"_task_index": task, "_repeat_index": 0, "_row_hash": "0" * 16}
    return {**place, "cause": cause, "code": code, "message": message, "server": "policy", "attempt": 1} | {
        "is_final": True,
        "started_at": 1.0,
        "seconds": 2.0,
        "row": row,
    }


def math_records(*, repeats: int = 4, tasks: int = 6, luck: int = 1) -> list[dict[str, Any]]:
    """Tasks from never solved to always solved, with reasoning, a tool call, code and formulas."""
    found = []
    for task in range(tasks):
        for repeat in range(repeats):
            passed = repeat * (tasks - 1) < (task * luck) * repeats
            value = (task + 2) ** 2
            given = value if passed else value + 1
            answer = (
                f"The square is $x^2 = {given}$.\n\n```python\nprint({task + 2} ** 2)\n```\nSo \\boxed{{{given}}}."
            )
            found.append(
                record(
                    [
                        {"role": "system", "content": "Use the calculator."},
                        {
                            "role": "user",
                            "content": f"What is the square of {task + 2}? Write $\\frac{{a}}{{b}}$ if needed.",
                        },
                    ],
                    reasoning(f"I have to multiply {task + 2} by itself. The calculator can do that."),
                    *tool_call("calculator", {"value": given}, expression=f"{task + 2} * {task + 2}", precision=2),
                    answer,
                    reward=float(passed),
                    task=task,
                    repeat=repeat,
                    expected_answer=str(value),
                    extracted_answer=str(given),
                    verifier={"kind": "numeric", "level": task % 3},
                )
            )
    return found


def token_record() -> dict[str, Any]:
    """Three model calls; the prompt of the third was tokenized anew."""

    def call(prompt: list[int], made: list[int], log_probs: list[float]) -> dict[str, Any]:
        names = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
        return text_message("A sentence.") | dict(zip(names, (prompt, made, log_probs), strict=True))

    first = call([1, 2, 3], [10, 11], [-0.1, -2.5])
    second = call([1, 2, 3, 10, 11, 4, 5], [12], [-0.01])
    third = call([1, 2, 99, 10, 11, 4, 5, 12, 6], [13, 14], [-4.0, -0.2])
    return record("Count.", first, second, third)


HOSTILE = (
    "<img src=x onerror=\"document.body.dataset.owned='1'\"><script>document.body.dataset.owned='2'</script>"
    "<a href=\"javascript:document.body.dataset.owned='3'\">click</a> [link](javascript:alert(1)) "
    "<svg onload=\"document.body.dataset.owned='4'\"></svg> \x00\x1b[31mred\x07 \u202eesrever ```</code><script>\n"
    "$\\href{javascript:alert(1)}{x}$ ${{constructor.constructor('alert(1)')()}}"
)


def hostile_record() -> dict[str, Any]:
    """What a model may write to harm whoever looks at it."""
    parts = [
        {"type": "input_text", "text": HOSTILE},
        {"type": "input_image", "image_url": PIXEL},
        {"type": "input_image", "image_url": "javascript:document.body.dataset.owned='5'"},
        {"type": "input_image", "image_url": "data:image/svg+xml,<svg onload=alert(1)>"},
    ]
    broken = {"type": "function_call", "call_id": HOSTILE, "name": HOSTILE, "arguments": "{not json " + HOSTILE}
    names: dict[str, Any] = {HOSTILE: HOSTILE, "__proto__": {"x": 1}, "constructor": "c", "expected_answer": HOSTILE}
    return record(
        [{"role": HOSTILE, "content": parts}], reasoning(HOSTILE), broken, HOSTILE, "y" * 5_000_000, HOSTILE, **names
    )


def write_sample(folder: Path) -> Path:
    """A file with a bit of everything, and its failures."""
    records = [*math_records(), token_record(), hostile_record()]
    write_lines(
        folder / "rollouts_failures.jsonl",
        [
            failure("model", "The endpoint answered 500: overloaded"),
            failure("model", "The endpoint answered 500: overloaded", task=1),
            failure("judge", "The judge gave no verdict", task=2, code="refused"),
        ],
    )
    return write_lines(folder / "rollouts.jsonl", records)


def talk_of_two() -> dict[str, object]:
    """A rollout with a sub-agent and a simulated user that has called a tool."""
    heard = {"role": "user", "content": "Hello!", "produced_by": "user"}
    sub_agent = {"role": "assistant", "content": "I look.", "produced_by": "policy", "thread": 1}
    call = {"type": "function_call", "name": "restart_router", "call_id": "c", "arguments": "{}"}
    user = {"responses_create_params": {"input": "You are Ada."}, "response": {"output": [call]}}
    response = {"output": [heard, sub_agent], "turns": 1, "ended_by": "user", "participants": {"user": user}}
    return {"responses_create_params": {"input": []}, "response": response, "reward": 1.0}

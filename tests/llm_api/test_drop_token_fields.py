"""Token fields of a stranger's request are dropped wherever they are."""

from typing import Any

from nemo_gym.llm_api.base import drop_token_fields

TOKENS = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5], "policy_version": 3}


def test_token_fields_are_dropped_at_every_depth() -> None:
    part = {"type": "output_text", "text": "Hello.", **TOKENS}
    messages: list[Any] = [{"role": "assistant", "content": [part], "extra": {"deep": [TOKENS.copy()]}, **TOKENS}]
    drop_token_fields(messages)
    content = [{"type": "output_text", "text": "Hello."}]
    assert messages == [{"role": "assistant", "content": content, "extra": {"deep": [{}]}}]


def test_texts_and_deeply_nested_lists_are_left_alone() -> None:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    drop_token_fields(nested)
    drop_token_fields("text")
    drop_token_fields(None)

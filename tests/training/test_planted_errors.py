"""Every way in which tokens of rollouts are known to go wrong is found, and nothing is found in sound ones.

Rollouts are made with a real tokenizer that is trained here: turns of text and tool calls, rendered by a chat
template, with log-probs that depend on the token."""

import copy
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from nemo_gym.errors import ConfigError
from nemo_gym.llm_api.builders import calls, message, response_of, tool_output
from nemo_gym.training import token_check
from nemo_gym.training.token_check import TokenReport, check_tokens

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "saw",
    "seven",
    "birds",
    "over",
    "grey",
    "hills",
    "while",
    "rain",
    "fell",
    "into",
    "rivers",
    "of",
    "cold",
    "clear",
    "light",
]
SPECIAL = ("<|start|>", "<|end|>", "<think>", "</think>")
GROUP = 4
Record = dict[str, Any]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    corpus = [" ".join(random.Random(seed).choices(WORDS, k=30)) for seed in range(50)] + ['{"name": "x"}'] * 10
    made.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens([AddedToken(each, special=True) for each in SPECIAL])
    return made


class Simulated:
    """Rollouts of an engine that renders only what is new."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._end = tokenizer.encode("<|end|>").ids[0]

    def rollouts(self, count: int) -> list[Record]:
        return [self.rollout(number // GROUP, number % GROUP) for number in range(count)]

    def rollout(self, task: int, repeat: int) -> Record:
        chance, asked = random.Random(task * 1000 + repeat), random.Random(task)
        ids = self._ids(f"<|start|>user\n{self._words(asked, 12)}<|end|>\n<|start|>assistant\n")
        output: list[Record] = []
        usage = {"input_tokens": 0, "output_tokens": 0}
        turns = chance.randint(2, 4)
        for turn in range(turns):
            thought, said = self._words(chance, 8), self._words(chance, chance.randint(5, 20))
            items: list[Record] = [
                {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": thought}]}
            ]
            text = f"<think>{thought}</think>"
            if turn < turns - 1:
                arguments = {"city": self._words(chance, 1), "days": chance.randrange(9)}
                items.append(calls("weather", arguments, call_id=f"c{turn}"))
                text += orjson.dumps({"name": "weather", "arguments": arguments}, option=orjson.OPT_INDENT_2).decode()
            else:
                items.append(message(said))
                text += f"{said}\n"
            sampled = [*self._ids(text), self._end]
            items[-1] |= {
                "prompt_token_ids": ids,
                "generation_token_ids": sampled,
                "generation_log_probs": [self._log_prob(token, chance) for token in sampled],
                "policy_version": 3 + turn // 2,
            }
            usage["input_tokens"] += len(ids)
            usage["output_tokens"] += len(sampled)
            heard = self._words(chance, 6)
            output += items
            if turn < turns - 1:
                output.append(tool_output(heard, call_id=f"c{turn}"))
            ids = [*ids, *sampled, *self._ids(f"\n<|start|>tool\n{heard}<|end|>\n<|start|>assistant\n")]
        usage["total_tokens"] = sum(usage.values())
        place = {"_task_index": task, "_repeat_index": repeat, "_row_hash": "0" * 16}
        return {"reward": 1.0, "response": response_of(*output, usage=usage), **place}

    def _words(self, chance: random.Random, count: int) -> str:
        return " ".join(chance.choices(WORDS, k=count))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def _log_prob(self, token: int, chance: random.Random) -> float:
        """Some tokens are likely, some are not; rounding differs from batch to batch."""
        return -(zlib.crc32(b"%d" % token) % 1000) / 250 - 0.02 * chance.random()


def turns_of(record: Record) -> list[Record]:
    return [item for item in record["response"]["output"] if "generation_token_ids" in item]


def change_prompt(record: Record) -> None:
    turns_of(record)[1]["prompt_token_ids"][3] += 1


def shorten_prompt(record: Record) -> None:
    del turns_of(record)[1]["prompt_token_ids"][5:]


def drop_log_prob(record: Record) -> None:
    turns_of(record)[0]["generation_log_probs"].pop()


def remove_list(record: Record) -> None:
    del turns_of(record)[0]["generation_log_probs"]


def negative_id(record: Record) -> None:
    turns_of(record)[-1]["generation_token_ids"][0] = -1


def positive_log_prob(record: Record) -> None:
    turns_of(record)[0]["generation_log_probs"][2] = 0.7


def null_log_prob(record: Record) -> None:
    turns_of(record)[0]["generation_log_probs"][2] = None


def drop_end_token(record: Record) -> None:
    """The engine left it out of what it reports; the template adds it to the next prompt."""
    item = turns_of(record)[0]
    item["generation_token_ids"].pop()
    item["generation_log_probs"].pop()


def shift_log_probs(record: Record) -> None:
    for item in turns_of(record):
        values = item["generation_log_probs"]
        item["generation_log_probs"] = [*values[1:], 0.0]


def drop_tokens_of_a_turn(record: Record) -> None:
    item = turns_of(record)[0]
    for name in ("prompt_token_ids", "generation_token_ids", "generation_log_probs"):
        del item[name]


def count_tool_output_as_sampled(record: Record) -> None:
    first, second = turns_of(record)[:2]
    whole = second["prompt_token_ids"]
    first["generation_token_ids"] = whole[len(first["prompt_token_ids"]) :]
    first["generation_log_probs"] += [-0.5] * (len(first["generation_token_ids"]) - len(first["generation_log_probs"]))


def old_version(record: Record) -> None:
    turns_of(record)[-1]["policy_version"] = 1


def zero_log_probs(record: Record) -> None:
    for item in turns_of(record):
        item["generation_log_probs"] = [0.0] * len(item["generation_log_probs"])


def other_text(record: Record) -> None:
    record["response"]["output"][-1]["content"][0]["text"] = "Forty-two."


def id_beyond_vocabulary(record: Record) -> None:
    turns_of(record)[-1]["generation_token_ids"][0] = 9999


def other_usage(record: Record) -> None:
    record["response"]["usage"]["output_tokens"] += 3


PLANTED: dict[Callable[[Record], None], str] = {
    change_prompt: "token 3 of the prompt",
    shorten_prompt: "token 5 of the prompt is missing",
    drop_log_prob: "have log-probs",
    remove_list: "no list `generation_log_probs`",
    negative_id: "a token id is not a whole number",
    positive_log_prob: "expected at most 0",
    null_log_prob: "a log-prob is not a finite number",
    drop_end_token: "its end token is missing",
    shift_log_probs: "shifted",
    drop_tokens_of_a_turn: "turn 1: no item of it has tokens",
    count_tool_output_as_sampled: "is an end token, but",
    old_version: "policy version 1 after",
    zero_log_probs: "log-probs are 0",
    other_text: "the tokens do not say 'Forty-two.'",
    id_beyond_vocabulary: "token 9999 is beyond the vocabulary",
    other_usage: "output_tokens, but the turns have",
}
NEEDS_TOKENIZER = {other_text, id_beyond_vocabulary}


@pytest.fixture(scope="module")
def sound(tokenizer: Tokenizer) -> list[Record]:
    return Simulated(tokenizer).rollouts(1000)


@pytest.fixture(scope="module")
def checked_with(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> token_check.Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    return token_check.Tokenizer(str(folder))


def found_in(records: list[Record], tokenizer: token_check.Tokenizer | None) -> TokenReport:
    return check_tokens([orjson.dumps(record) for record in records], tokenizer=tokenizer)


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_nothing_is_found_in_a_thousand_sound_rollouts(
    sound: list[Record], checked_with: token_check.Tokenizer, with_tokenizer: bool
) -> None:
    report = found_in(sound, checked_with if with_tokenizer else None)
    assert (report.rollouts, report.faults, report.breaks) == (1000, [], [])
    needed = [] if with_tokenizer else ["text and vocabulary: needs +tokenizer=<folder or tokenizer.json>"]
    assert report.not_run == needed


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_error_is_found_and_named(
    plant: Callable[[Record], None], sound: list[Record], checked_with: token_check.Tokenizer
) -> None:
    records = copy.deepcopy(sound[:60])
    plant(records[30])
    report = found_in(records, checked_with)
    found = [*report.faults, *report.breaks]
    assert any(PLANTED[plant] in line for line in found), found
    assert all(line.startswith("line 31 ") for line in found), found
    blind = found_in(records, None)
    assert bool([*blind.faults, *blind.breaks]) == (plant not in NEEDS_TOKENIZER)


def test_checks_that_lack_what_they_need_are_named(sound: list[Record]) -> None:
    record = copy.deepcopy(sound[0])
    del record["response"]["usage"]
    assert [text.partition(":")[0] for text in found_in([record], None).not_run] == [
        *("end tokens", "shifted log-probs", "log-probs of equal prompts", "usage", "text and vocabulary")
    ]


def test_a_turn_that_a_limit_cut_off_needs_no_end_token(sound: list[Record]) -> None:
    records = copy.deepcopy(sound[:20])
    last = turns_of(records[3])[-1]
    for name in ("generation_token_ids", "generation_log_probs"):
        last[name].pop()
    records[3]["response"] |= {"status": "incomplete", "usage": None}
    assert found_in(records, None).faults == []


def test_a_file_that_is_no_tokenizer_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"not a tokenizer\.json"):
        token_check.Tokenizer(str(tmp_path))

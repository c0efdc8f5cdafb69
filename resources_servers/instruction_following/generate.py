"""Rows from a seed: a topic, and as many instructions as the difficulty says. The gold response is built to follow
them all."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from nemo_gym.row_generators import distinct_rows

TOPICS = (
    *("an old harbour", "a night train", "a garden in winter", "a street market", "a mountain hut", "a small library"),
    *("a river in flood", "a village school", "a bakery at dawn", "an island ferry", "a clock tower", "a pear tree"),
    *("a snowed-in farm", "a glass workshop", "a chess club", "a lighthouse", "a vegetable stall", "a mill pond"),
)
TASKS = ("Describe {}.", "Write about {}.", "Tell a visitor about {}.", "Write a short text on {}.")
WORDS = ("amber", "basket", "copper", "drizzle", "ember", "feather", "gravel", "hollow", "ivory", "juniper", "kettle")
AVOIDED = ("very", "really", "always", "never", "maybe", "suddenly", "beautiful", "amazing")
SENTENCES = (
    "The place is quiet in the morning and busy by noon.",
    "People come here to meet and to rest for a while.",
    "Somebody has painted the door in a dark shade of green.",
    "You can hear the wind before you can feel it.",
    "Most of what you see was built by hand.",
    "Children know every corner of it.",
)
FILLER = "There is more to say about it and no hurry to say it."
END_PHRASES = ("That is all I know.", "Come and see for yourself.", "The rest is for another day.")


@dataclass(slots=True)
class Draft:
    """A text that instructions add to."""

    sentences: list[str]
    heading: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Lines after the text."""
    closing: list[str] = field(default_factory=list)
    """Lines after the notes."""
    paragraphs: int = 1
    least_words: int = 0
    is_quoted: bool = False

    def text(self) -> str:
        while len(" ".join(self.sentences).split()) < self.least_words:
            self.sentences.append(FILLER)
        share = -(-len(self.sentences) // self.paragraphs)
        parts = [" ".join(self.sentences[start : start + share]) for start in range(0, len(self.sentences), share)]
        body = "\n***\n".join(parts)
        text = "\n".join([*self.heading, body, *self.notes, *self.closing])
        return f'"{text}"' if self.is_quoted else text


class Instruction(NamedTuple):
    """An instruction: its id, its arguments, and how it is put to the model."""

    name: str
    arguments: dict[str, Any]
    text: str


def _existence(chance: Random, draft: Draft) -> Instruction:
    words = chance.sample(WORDS, 2)
    draft.sentences.append(f"There is {words[0]} and {words[1]} in the memory of it.")
    return Instruction("keywords:existence", {"keywords": words}, f"Use the words '{words[0]}' and '{words[1]}'.")


def _frequency(chance: Random, draft: Draft) -> Instruction:
    word, count = chance.choice(WORDS), chance.randint(2, 4)
    draft.sentences += [f"Here is {word} again."] * count
    arguments = {"keyword": word, "frequency": count, "relation": "at least"}
    return Instruction("keywords:frequency", arguments, f"Use the word '{word}' at least {count} times.")


def _forbidden(chance: Random, _draft: Draft) -> Instruction:
    words = chance.sample(AVOIDED, 2)
    text = f"Do not use the words '{words[0]}' and '{words[1]}'."
    return Instruction("keywords:forbidden_words", {"forbidden_words": words}, text)


def _no_comma(_chance: Random, _draft: Draft) -> Instruction:
    return Instruction("punctuation:no_comma", {}, "Do without commas.")


def _no_exclamation(_chance: Random, _draft: Draft) -> Instruction:
    return Instruction("punctuation:punctuation_exclamation", {}, "Do without exclamation marks.")


def _bullets(chance: Random, draft: Draft) -> Instruction:
    count = chance.randint(2, 6)
    draft.notes += [f"* point {number}" for number in range(1, count + 1)]
    text = f"Have exactly {count} bullet points, each on a line that starts with '* '."
    return Instruction("detectable_format:number_bullet_lists", {"num_bullets": count}, text)


def _title(_chance: Random, draft: Draft) -> Instruction:
    draft.heading.append("<<A place to remember>>")
    return Instruction("detectable_format:title", {}, "Give it a title in double angular brackets, such as <<title>>.")


def _highlights(chance: Random, draft: Draft) -> Instruction:
    count = chance.randint(1, 4)
    draft.sentences += [f"Note *part {number}* of it." for number in range(1, count + 1)]
    text = f"Highlight at least {count} parts of the text with asterisks, *like this*."
    return Instruction("detectable_format:number_highlighted_sections", {"num_highlights": count}, text)


def _placeholders(chance: Random, draft: Draft) -> Instruction:
    count = chance.randint(1, 4)
    draft.notes.append(" ".join(f"[detail {number}]" for number in range(1, count + 1)))
    text = f"Leave at least {count} placeholders in square brackets, such as [name]."
    return Instruction("detectable_content:number_placeholders", {"num_placeholders": count}, text)


def _postscript(_chance: Random, draft: Draft) -> Instruction:
    draft.notes.append("P.S. Bring a coat.")
    return Instruction(
        "detectable_content:postscript", {"postscript_marker": "P.S."}, "Add a postscript that starts with P.S."
    )


def _end(chance: Random, draft: Draft) -> Instruction:
    phrase = chance.choice(END_PHRASES)
    draft.closing.append(phrase)
    return Instruction("startend:end_checker", {"end_phrase": phrase}, f"End with exactly this: {phrase}")


def _quotation(_chance: Random, draft: Draft) -> Instruction:
    draft.is_quoted = True
    return Instruction("startend:quotation", {}, "Put the whole answer into double quotation marks.")


def _words(chance: Random, draft: Draft) -> Instruction:
    count = chance.choice((40, 60, 80, 100, 120))
    draft.least_words = count
    arguments = {"num_words": count, "relation": "at least"}
    return Instruction("length_constraints:number_words", arguments, f"Use at least {count} words.")


def _paragraphs(chance: Random, draft: Draft) -> Instruction:
    draft.paragraphs = chance.randint(2, 3)
    draft.sentences = list(SENTENCES)
    text = f"Write exactly {draft.paragraphs} paragraphs with a line of three asterisks (***) between them."
    return Instruction("length_constraints:number_paragraphs", {"num_paragraphs": draft.paragraphs}, text)


MAKERS: tuple[Callable[[Random, Draft], Instruction], ...] = (
    *(_paragraphs, _existence, _frequency, _forbidden, _no_comma, _no_exclamation, _bullets, _title, _highlights),
    *(_placeholders, _postscript, _end, _quotation, _words),
)
"""In an order in which none undoes what another did."""


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """The difficulty is the number of instructions."""
    made = distinct_rows("instruction_following", _row, seed=seed, count=count, difficulty=difficulty)
    return ({"id": number, **row} for number, row in enumerate(made))


def _row(chance: Random, level: int) -> dict[str, Any]:
    draft = Draft(chance.sample(SENTENCES, 3))
    chosen = sorted(chance.sample(range(len(MAKERS)), level))
    instructions = [MAKERS[place](chance, draft) for place in chosen]
    task = chance.choice(TASKS).format(chance.choice(TOPICS))
    prompt = " ".join([task, *(instruction.text for instruction in instructions)])
    return {
        "instruction_id_list": [instruction.name for instruction in instructions],
        "prompt": prompt,
        "kwargs": [instruction.arguments for instruction in instructions],
        "responses_create_params": {
            "input": [{"role": "user", "content": prompt}],
            "tools": [],
            "parallel_tool_calls": False,
        },
        "gold_response": draft.text(),
    }

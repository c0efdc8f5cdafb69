"""Rows from a seed: a topic, and as many instructions as the difficulty says. The gold response is built to follow
them all.

One of the instructions is such that neither the prompt nor any fixed text follows it, whatever the others are."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from nemo_gym.data.generate import distinct_rows

TOPICS = (
    *("an old harbour", "a night train", "a garden in winter", "a street market", "a mountain hut", "a small library"),
    *("a river in flood", "a village school", "a bakery at dawn", "an island ferry", "a clock tower", "a pear tree"),
    *("a snowed-in farm", "a glass workshop", "a chess club", "a lighthouse", "a vegetable stall", "a mill pond"),
)
TASKS = ("Describe {}.", "Write about {}.", "Tell a visitor about {}.", "Write a short text on {}.")
WORDS = (
    *("acorn", "amber", "basket", "bramble", "candle", "copper", "dagger", "drizzle", "easel", "feather", "ferret"),
    *("goblet", "gravel", "hammock", "hollow", "icicle", "ivory", "jasmine", "juniper", "kettle", "lantern", "lichen"),
    *("mallet", "marble", "needle", "nettle", "orchid", "otter", "parsnip", "pebble", "quarry", "quilt", "ribbon"),
    *("saddle", "thistle", "umbrella", "velvet", "walnut", "yarrow", "zinc"),
)
"""None is part of another, or of any text below: they are counted."""
AVOIDED = ("very", "really", "always", "never", "maybe", "suddenly", "beautiful", "amazing")
SENTENCES = (
    "The place is quiet in the morning and busy by noon.",
    "People come here to meet and to rest for a while.",
    "Somebody has painted the door in a dark shade of green.",
    "You can hear the wind before you can feel it.",
    "Most of what you see was built by hand.",
    "Children know every corner of it.",
)
EIGHT_WORDS = ("some", "people", "still", "come", "here", "to", "sit", "down")
FILLER = "There is more to say about it and no hurry to say it."
END_PHRASES = ("That is all I know.", "Come and see for yourself.", "The rest is for another day.")


@dataclass(slots=True)
class Draft:
    """A text that instructions add to."""

    sentences: list[str]
    words: list[str]
    """Words for instructions to take from, each once."""
    heading: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Lines after the text."""
    closing: list[str] = field(default_factory=list)
    """Lines after all else."""
    blocks: list[str] = field(default_factory=list)
    """Paragraphs after the notes, with blank lines between them."""
    paragraphs: int = 1
    least_words: int = 0
    is_quoted: bool = False

    def text(self) -> str:
        while len(" ".join(self.sentences).split()) < self.least_words:
            self.sentences.append(FILLER)
        share = -(-len(self.sentences) // self.paragraphs)
        parts = [" ".join(self.sentences[start : start + share]) for start in range(0, len(self.sentences), share)]
        body = "\n***\n".join(parts)
        first = "\n".join([*self.heading, body, *self.notes])
        text = "\n".join(["\n\n".join([first, *self.blocks]), *self.closing])
        return f'"{text}"' if self.is_quoted else text


class Instruction(NamedTuple):
    """An instruction: its id, its arguments, and how it is put to the model."""

    name: str
    arguments: dict[str, Any]
    text: str


def _once_and_twice(_chance: Random, draft: Draft) -> Instruction:
    once, twice = draft.words.pop(), draft.words.pop()
    draft.sentences += [f"One {once} is all that is left.", f"There is a {twice} at the gate and a {twice} inside."]
    text = f"Use the word '{once}' exactly once and the word '{twice}' exactly twice."
    return Instruction("count:count_increment_word", {"keyword1": once, "keyword2": twice}, text)


def _repeated_phrase(chance: Random, draft: Draft) -> Instruction:
    first, last, count = draft.words.pop(), draft.words.pop(), chance.randint(2, 4)
    phrase = f"{first} and stone and {last}"
    draft.notes += [phrase] * (count - 1) + [f"{first} and wood and {last}"]
    text = (
        f"Write the phrase '{phrase}' {count} times, each on a line of its own. Replace one word of it the last time, "
        f"but neither its first nor its last one."
    )
    return Instruction("copy:repeat_phrase", {"phrase": phrase, "small_n": count}, text)


def _nth_paragraph(chance: Random, draft: Draft) -> Instruction:
    word, count = draft.words.pop(), chance.randint(3, 10)
    place = chance.randint(2, count)
    draft.blocks += ["Nobody minds the weather."] * (count - 1)
    draft.blocks[place - 2] = f"{word.capitalize()} is what they sell on Sundays."
    text = f"Write {count} paragraphs with a blank line between them, and begin number {place} with the word '{word}'."
    arguments = {"num_paragraphs": count, "nth_paragraph": place, "first_word": word}
    return Instruction("length_constraints:nth_paragraph_first_word", arguments, text)


def _composition(chance: Random, draft: Draft) -> Instruction:
    count, length = chance.randint(2, 4), chance.randint(4, 8)
    draft.sentences, draft.paragraphs = [" ".join(EIGHT_WORDS[:length]).capitalize() + "."] * (3 * count), 3
    text = (
        f"Write three parts with a line of three asterisks (***) between them, each of {count} sentences with "
        f"{length} words each."
    )
    return Instruction("count:counting_composition", {"n_sent": count, "n_words": length}, text)


def _existence(_chance: Random, draft: Draft) -> Instruction:
    words = [draft.words.pop(), draft.words.pop()]
    draft.sentences.append(f"There is {words[0]} and {words[1]} in the memory of it.")
    return Instruction("keywords:existence", {"keywords": words}, f"Use the words '{words[0]}' and '{words[1]}'.")


def _frequency(chance: Random, draft: Draft) -> Instruction:
    word, count = draft.words.pop(), chance.randint(2, 4)
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


ANCHORS: tuple[Callable[[Random, Draft], Instruction], ...] = (_once_and_twice, _repeated_phrase, _nth_paragraph)
"""Neither the prompt nor a fixed text follows them."""
LONE_ANCHORS: tuple[Callable[[Random, Draft], Instruction], ...] = (*ANCHORS, _composition)
"""The same for a row of one instruction. The last of them would be undone by others."""
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
    draft = Draft(chance.sample(SENTENCES, 3), words=chance.sample(WORDS, len(WORDS)))
    anchor = chance.choice(LONE_ANCHORS if level == 1 else ANCHORS)
    others = [make for make in MAKERS if anchor is not _nth_paragraph or make is not _paragraphs]
    chosen = sorted(chance.sample(range(len(others)), level - 1))
    instructions = [make(chance, draft) for make in (*(others[place] for place in chosen), anchor)]
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

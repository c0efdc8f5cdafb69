"""Rows from a seed: a list of terms with synonyms, and questions about two of the terms. There are so many pairs of
terms that guessing one is of no use."""

from collections.abc import Iterator
from random import Random
from typing import Any

from nemo_gym.base_resources_server import tool_schemas_of
from nemo_gym.data.generate import distinct_rows
from resources_servers.example_multi_step.app import MultiStepResourcesServer

SYSTEM = (
    "Every line below pairs a term with one of its synonyms. Each question is about one of the terms: decide which. "
    "For each synonym of the two terms, from the top of the list to the bottom, ask get_synonym_value for its value. "
    "Then hand all the values in with one call of extract_synonym_values, in the order of the list. A term is not one "
    "of its own synonyms: leave it out."
)
SYNONYMS = {
    "Angry": ("Irate", "Cross", "Livid", "Furious", "Fuming", "Incensed"),
    "Clever": ("Astute", "Brainy", "Shrewd", "Sharp", "Bright", "Canny"),
    "Cold": ("Chilly", "Frosty", "Icy", "Nippy", "Wintry", "Freezing"),
    "Happy": ("Cheerful", "Joyful", "Merry", "Glad", "Content", "Elated"),
    "Huge": ("Colossal", "Vast", "Mammoth", "Immense", "Giant", "Massive"),
    "Laugh": ("Giggle", "Chuckle", "Cackle", "Snicker", "Titter", "Guffaw"),
    "Messy": ("Untidy", "Unkempt", "Cluttered", "Sloppy", "Chaotic", "Jumbled"),
    "Old": ("Ancient", "Aged", "Elderly", "Antique", "Archaic", "Vintage"),
    "Quick": ("Fast", "Rapid", "Speedy", "Swift", "Brisk", "Hasty"),
    "Shy": ("Timid", "Bashful", "Reserved", "Coy", "Meek", "Reticent"),
    "Tired": ("Weary", "Drained", "Bushed", "Drowsy", "Spent", "Fatigued"),
    "Walk": ("Stroll", "Amble", "Saunter", "Trudge", "March", "Wander"),
    "Afraid": ("Scared", "Fearful", "Anxious", "Alarmed", "Panicky", "Terrified"),
    "Brave": ("Bold", "Valiant", "Daring", "Gallant", "Heroic", "Plucky"),
    "Soft": ("Fluffy", "Downy", "Plush", "Velvety", "Silky", "Cushiony"),
    "Cry": ("Weep", "Sob", "Wail", "Whimper", "Bawl", "Blubber"),
    "Dirty": ("Grimy", "Filthy", "Muddy", "Soiled", "Grubby", "Stained"),
    "Empty": ("Vacant", "Bare", "Hollow", "Void", "Deserted", "Blank"),
    "Hot": ("Scorching", "Boiling", "Sweltering", "Torrid", "Blazing", "Sizzling"),
    "Hungry": ("Famished", "Starving", "Ravenous", "Peckish", "Unfed", "Esurient"),
    "Loud": ("Noisy", "Deafening", "Blaring", "Booming", "Thunderous", "Raucous"),
    "Rich": ("Wealthy", "Affluent", "Loaded", "Moneyed", "Opulent", "Prosperous"),
    "Strange": ("Odd", "Peculiar", "Weird", "Curious", "Bizarre", "Uncanny"),
    "Tiny": ("Minute", "Miniature", "Wee", "Microscopic", "Minuscule", "Teeny"),
}
QUESTIONS = {
    "Angry": ("His jaw was set and his fists were clenched. How was he?", "She slammed the door. How was she?"),
    "Clever": ("He solved the riddle before anyone else. What is he?", "She outwits everybody. What is she?"),
    "Cold": ("The pond had a skin of ice. What was the day like?", "You could see your breath. How was the air?"),
    "Happy": ("She hummed and smiled all the way home. How was she?", "He danced for no reason. How was he?"),
    "Huge": ("The ship was longer than the harbour. What was it?", "The tree hid the house. What was the tree?"),
    "Laugh": ("The joke was good and nobody could stop. What did they do?", "He held his sides. What did he do?"),
    "Messy": ("Socks hung from the lamp. How was the room?", "No inch of his desk was free. What was it?"),
    "Old": ("The oak was there before the town was. What is it?", "Its pages crumble at a touch. What is the book?"),
    "Quick": ("She was back before the kettle boiled. What was she?", "The fox was gone in a blink. What was it?"),
    "Shy": ("He hid behind his mother when guests came. What is he?", "She blushes when spoken to. What is she?"),
    "Tired": ("After two nights without sleep, what was he?", "Her eyes kept closing. What was she?"),
    "Walk": ("They went along the river on foot, in no hurry. What did they do?", "He took no bus. What did he do?"),
    "Afraid": (
        "The stairs creaked and he pulled up the blanket. How was he?",
        "She dared not look down. How was she?",
    ),
    "Brave": ("He went back into the burning house. What was he?", "She faced the bear alone. What was she?"),
    "Soft": ("His head sank into the pillow. What was it?", "The fur of the kitten felt like feathers. How was it?"),
    "Cry": ("Tears ran down his face. What did he do?", "She needed a handkerchief at the farewell. What did she do?"),
    "Dirty": ("He came in from the ditch. How were his boots?", "You cannot see through the pane. What is it?"),
    "Empty": ("There was nothing left in the box. What was it?", "Every seat was free. What was the hall?"),
    "Hot": ("You could fry an egg on the roof. How was it?", "The tar on the road was melting. What was the day?"),
    "Hungry": ("He had not eaten for two days. How was he?", "Her stomach growled. How was she?"),
    "Loud": ("We held our ears when the band began. What was it?", "The engine woke the street. What was it?"),
    "Rich": ("She owns three castles. What is she?", "He lights his pipe with bank notes. What is he?"),
    "Strange": ("A cow stood on the roof. What was the sight?", "Nobody had seen a bird like it. What was it?"),
    "Tiny": ("You need a lens to see the beetle. What is it?", "The house fitted into a matchbox. What was it?"),
}
FEWEST_TERMS = 10


def generate_rows(seed: int, count: int, difficulty: float | str | None = None) -> Iterator[dict[str, Any]]:
    """Each difficulty adds a synonym to every term, and two terms to the list."""
    tools = tool_schemas_of(MultiStepResourcesServer)
    made = distinct_rows(
        "example_multi_step",
        lambda chance, level: _row(chance, level, tools),
        seed=seed,
        count=count,
        difficulty=difficulty,
    )
    return ({"id": number, **row} for number, row in enumerate(made))


def _row(chance: Random, level: int, tools: list[dict[str, Any]]) -> dict[str, Any]:
    terms = chance.sample(list(SYNONYMS), FEWEST_TERMS + 2 * level)
    chosen = terms[:2]
    pairs = [(term, synonym) for term in terms for synonym in chance.sample(SYNONYMS[term], level + 1)]
    chance.shuffle(pairs)
    listed = "\n".join(f"{term}: {synonym}" for term, synonym in pairs)
    expected = [synonym for term, synonym in pairs if term in chosen]
    return {
        "responses_create_params": {
            "input": [
                {"role": "system", "content": f"{SYSTEM}\n\n{listed}"},
                {"role": "user", "content": " ".join(chance.choice(QUESTIONS[term]) for term in chosen)},
            ],
            "tools": tools,
            "parallel_tool_calls": False,
        },
        "expected_synonyms": expected,
        "expected_synonym_values": [_value(synonym) for synonym in expected],
        "minefield_label": chosen[0],
        "minefield_label_value": _value(chosen[0]),
    }


def _value(word: str) -> int:
    return sum(map(ord, word))

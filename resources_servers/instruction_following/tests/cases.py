"""For every instruction what it is about, texts that follow it and texts that do not."""

from typing import Any, NamedTuple


class Case(NamedTuple):
    name: str
    arguments: dict[str, Any] | None
    followed_by: list[str]
    broken_by: list[str]


AT_LEAST, LESS_THAN = "at least", "less than"
ENGLISH = "The quick brown fox jumps over the lazy dog, and nobody in the village was surprised by it."
GERMAN = "Der schnelle braune Fuchs springt über den faulen Hund, und niemand im Dorf war darüber erstaunt."
NO_LANGUAGE = ["123", "123 456 !?", "7"]
MOONS = ["the moon rose", "a moon.", "a Moon b", "moon", "moon-lit", "mo\u200bon", "\uff4doon"]
PALINDROMES = [
    "A level text",
    "Level",
    "on a level.",
    "12321 b!",
    'He said "Never odd or even" then',
    "Was it a cat I saw?",
]
NO_PALINDROMES = ["a", "I a", "no such", "aa", "aaa", "1", "111", "I saw a dog"]
SILENT = ["", " \n\t", "\u200b", "\u3164\uffa0", "...", "?!", "_ _", "[]", "{}", '""', "***", "<<>>", "-", "\u2800"]
"""Texts that say nothing."""

CASES = [
    Case("keywords:existence", {"keywords": ["sun", "moon"]}, ["Sun and MOON", "sunmoon"], ["Only the sun", ""]),
    Case("keywords:existence", {"keywords": ["colou?r"]}, ["color", "Colour"], ["colr"]),
    Case("keywords:frequency", {"keyword": "a.c", "frequency": 2, "relation": AT_LEAST}, ["abc ADC axc"], ["abc", ""]),
    Case("keywords:frequency", {"keyword": " ab\n", "frequency": 2, "relation": AT_LEAST}, ["ab,ab"], ["ab"]),
    Case("keywords:frequency", {"keyword": "ab", "frequency": 2, "relation": LESS_THAN}, ["c", "ab"], ["abAB"]),
    Case(
        "keywords:forbidden_words",
        {"forbidden_words": ["part", "in.vitable"]},
        ["party", "apart"],
        ["The Part.", "INEVITABLE", "a \uff50art", "pa\u200brt", "pa\u00adrt"],
    ),
    Case(
        "keywords:letter_frequency",
        {"letter": "a", "let_frequency": 3, "let_relation": AT_LEAST},
        ["aAbA"],
        ["aa", ""],
    ),
    Case("keywords:letter_frequency", {"letter": "Q", "let_frequency": 1, "let_relation": LESS_THAN}, ["abc"], ["q"]),
    Case("language:response_language", {"language": "en"}, [ENGLISH], [GERMAN, *NO_LANGUAGE]),
    Case("language:response_language", {"language": "de"}, [GERMAN], [ENGLISH, *NO_LANGUAGE]),
    Case(
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": AT_LEAST},
        ["One. Two.", "Dr. Who came! And left?"],
        ["Dr. Who came.", "One. ! ! !", "One. ... ...", ""],
    ),
    Case(
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": LESS_THAN},
        ["One.", "Really?!"],
        ["One. Two."],
    ),
    Case(
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["a\n***\nb", "a***b", "***\na\n***\nb", "a *** b ***", "***a***b***", "a\n* * *\nb"],
        ["a", "a\n\nb", "a *** *** b", "a *** b *** c", "a *** .", "a *** - *** b", ""],
    ),
    Case(
        "length_constraints:number_words",
        {"num_words": 3, "relation": AT_LEAST},
        ["a, b-c"],
        ["a b", "a _ _", "... !"],
    ),
    Case(
        "length_constraints:number_words", {"num_words": 3, "relation": LESS_THAN}, ["don't", "a b _ ___"], ["a b c"]
    ),
    Case(
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Crash"},
        ["a\n\ncrash b", "a\n\n  'CRASH', b", 'a\n\n"Crash! b', "a b\n\ncrash's\n\n"],
        ["a\n\nb", "crash", "a\n\n\n\ncrash b", "a\n\ncrash\n\nc", "a\n\ncrashed", ".\n\ncrash", ""],
    ),
    Case(
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[name] and [address]", "[[a] [b]", "[a]\n[b] [c]", "[___] [...] to fill in"],
        ["[name]", "[a\n] [b\n]", "[[a]]", "a [][]", "[a] [ ]", ""],
    ),
    Case(
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["End. P.S. more", "p. s. more"],
        ["PS more", "p.s more", "p .s.", "x p.s.", "End. P.S. ...", ""],
    ),
    Case(
        "detectable_content:postscript",
        {"postscript_marker": "P.P.S"},
        ["p.p.s more", "P. P. S more"],
        ["P.S. x", "pps x", "p.p.s"],
    ),
    Case("detectable_content:postscript", {"postscript_marker": "NOTE?:"}, ["note: x", "NOT: x"], ["note x"]),
    Case(
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "- a\n* b", "*a\ntext\n  - b", "* a\n---\n* b"],
        ["* a", "* a\n* b\n- c", "** a\n** b", "a * b\nc - d", "a\n*\n*", "a\n-\n-", "---\n* a", ""],
    ),
    Case(
        "detectable_format:constrained_response",
        None,
        ["My answer is yes.", "Well. My answer is maybe. So."],
        ["my answer is yes.", "My answer is yes", "My answer is yes. My answer is no.", ""],
    ),
    Case(
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and *b*", "*a* and **b**", "**a** **b**"],
        ["*a*", "**a**", "*a\n* *b\n*", "** ** * *", "****", "*a* *.*", ""],
    ),
    Case(
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        ["Section 1 a Section 2 b", "Section1 a Section22 b Section 3 c"],
        ["Section 1 a", "Section 1 Section 2", "section 1 a section 2 b", "Section A a Section B b", ""],
    ),
    Case("detectable_format:multiple_sections", {"section_spliter": "(", "num_sections": 1}, ["(1 a"], ["1 a", "(1"]),
    Case(
        "detectable_format:json_format",
        None,
        ['{"a": 1}', " [1] ", '```json\n{"a": 1}\n```', "```JSON\n1```", "```Json 1 ```", "```\n1\n```"],
        ["{a: 1}", 'Here: {"a": 1}', "```yaml\n1\n```", "NaN", '{"a": -Infinity}', "", "[" * 100_000],
    ),
    Case(
        "detectable_format:title",
        None,
        ["<<a>>", "text <<my title>> text", "<< a >>", "<<a>> <<>>"],
        ["a <<>>", "<< >> a", "<<...>> a", "<a>", "<<a\n>>", ">>a<<", "<<a", "<<>>>", ""],
    ),
    Case(
        "combination:two_responses",
        None,
        ["a ****** b", "******a******b******"],
        ["a", "a ****** a", "a ******  ****** b", "a******b******c", "a******", "a ****** .", ""],
    ),
    Case(
        "combination:repeat_prompt",
        {"prompt_to_repeat": " What is this? "},
        ["what IS this? An apple.", "\n What is this?\nNo idea"],
        ["An apple. What is this?", "What is this", "What is this?", "What is this? ...", ""],
    ),
    Case(
        "startend:end_checker",
        {"end_phrase": " That is all. "},
        ["So. That is all.", 'x "that IS all."', "That is all. \n"],
        ["That is all. Bye", "That is all", ""],
    ),
    Case(
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": AT_LEAST},
        ["AN APPLE a day", "I AM", "U.S. NASA"],
        ["An Apple", "I am", ""],
    ),
    Case(
        "change_case:capital_word_frequency",
        {"capital_frequency": 1, "capital_relation": LESS_THAN},
        ["nothing here"],
        ["I am"],
    ),
    Case("change_case:english_capital", None, [ENGLISH.upper()], [ENGLISH, GERMAN.upper(), *NO_LANGUAGE]),
    Case("change_case:english_lowercase", None, [ENGLISH.lower()], [ENGLISH, GERMAN.lower(), *NO_LANGUAGE]),
    Case(
        "punctuation:no_comma",
        None,
        ["no comma", "1\u066b5"],
        ["one, two", "one\uff0c two", "one\u060c two", "one\u3001 two", "a\ufe50 b"],
    ),
    Case("startend:quotation", None, ['"a"', ' "a b" \n'], ['"a', 'a"', '"', "'a'", ""]),
    Case(
        "copy:repeat_phrase",
        {"phrase": "the red fox runs", "small_n": 2},
        ["the red fox runs and the red dog runs", "the blue fox runs\nthe red cow runs"],
        [
            "the red fox runs and the red fox runs",
            "the red dog runs and the red fox runs",
            "the red dog runs",
            "the red fox runs the big fox runs the red cow runs",
            "the blue dog runs and the red dog runs",
            "the fox runs and the red dog runs",
            "the red fox runs and the red\ndog runs",
            "the red fox runs and the red fox Runs",
            "",
        ],
    ),
    Case("copy:copy", {"prompt_to_repeat": "Say this"}, ["say THIS\n"], ["Say this twice", ""]),
    Case(
        "new:copy_span_idx",
        {"prompt_to_repeat": "Copy some of this", "n_start": 5, "n_end": 9},
        ["SOME", " some "],
        ["Copy", "Copy some of this", ""],
    ),
    Case("new:copy_span_idx", {"prompt_to_repeat": "Copy this", "n_start": 0, "n_end": 4}, ["copy"], ["this"]),
    Case(
        "detectable_format:sentence_hyphens",
        None,
        ["One.-Two.-Three.", "One.", "One two.-"],
        ["One. - Two.", "One. Two.", "One-two.", "One.--Two."],
    ),
    Case(
        "keywords:no_adjacent_consecutive",
        None,
        ["a c e", "b a", "apple cat", "a A"],
        ["a b", "Apple banana", "x Y z"],
    ),
    Case("detectable_format:square_brackets", None, ["[a] [b]", "[a]"], ["[a] b", "[a b]", "[a]."]),
    Case("keywords:word_once", {"keyword": "moon"}, ["The moon.", "moonlight"], ["Moon, moon", "sun", ""]),
    Case(
        "keywords:word_count_different_numbers",
        {"keyword": "ha", "frequency": 2, "relation": AT_LEAST},
        ["haha", "ha ha ha"],
        ["ha", ""],
    ),
    Case("keywords:exclude_word_harder", {"keyword": "moon"}, ["moonlight", "a moo", "honeymoon"], MOONS),
    Case("keywords:exclude_word_harder", {"keyword": "c++"}, ["c", "c+"], ["I like C++."]),
    Case("paragraphs:paragraphs", None, ["a\n***\nb"], ["a", "a\n\nb", "a***b***c", "a*** ***b"]),
    Case(
        "paragraphs:paragraphs2", None, ["a\n\nb", "\n\na\n\nb\n\n"], ["a", "a***b", "a\n\n\n\nb", "a\n\nb\n\nc", ""]
    ),
    Case(
        "first_word:first_word_sent",
        {"first_word": "So"},
        ["So it is. so be it!", "So", "So, it is. “So be it,” he said", "So it is?! So."],
        ["So it is. Be it.", "It is so.", "Sofa. So."],
    ),
    Case(
        "first_word:first_word_answer",
        {"first_word": "So"},
        ["so it is", " SO", "So, it is", '"So"'],
        ["It is so", "Sofa", "."],
    ),
    Case(
        "last_word:last_word_sent",
        {"last_word": "now"},
        ["Come now. Go NOW!", "now", "Come now?! Go now."],
        ["Come now. Go.", "Now come.", "Come nowhere."],
    ),
    Case("last_word:last_word_sent", {"last_word": ["now", "then"]}, ["Come now."], ["Come then."]),
    Case(
        "last_word:last_word_answer",
        {"last_word": "Now"},
        ["Come now.", 'He said: "now!"', "now"],
        ["now come", "nowhere", ""],
    ),
    Case(
        "detectable_format:bigram_wrapping",
        None,
        ["<<a b>> <<c d>>", "<<a b>> c"],
        ["a b", "<<a b>> c d", "<<a>> b>>x", "lone", "<<a>>", "<< >> a"],
    ),
    Case("copy:copying_simple", {"prompt_to_repeat": "Say this"}, ["say this"], ["Say that", ""]),
    Case(
        "copy:copying_multiple",
        {"prompt_to_repeat": "Say this", "N": 2},
        ["say this ****** SAY THIS", "Say this******Say this"],
        [
            "Say this",
            "say this ****** say that",
            "say this******say this******",
            "say this******say this******say this",
        ],
    ),
    Case("punctuation:punctuation_dot", None, ["no dot!"], ["a dot.", "dots\u2026", "a dot\uff0e"]),
    Case("punctuation:punctuation_exclamation", None, ["none."], ["Ah!", "Ah\uff01", "Ah\u203c"]),
    Case("count:lowercase_counting", {"N": 2}, ["two words HERE", "Capital a1 b_c"], ["three words here", "a.b.c"]),
    Case("letters:letter_counting", {"N": 3, "relation": AT_LEAST}, ["a b c", "aBc"], ["a1 b2", "äöü", ""]),
    Case("letters:letter_counting", {"N": 3, "relation": LESS_THAN}, ["ab", "123"], ["abc"]),
    Case(
        "letters:letter_counting2",
        {"letter": "z", "let_frequency": 2, "let_relation": AT_LEAST},
        ["zZ"],
        ["z", ""],
    ),
    Case(
        "count:counting_composition",
        {"n_sent": 2, "n_words": 2},
        [
            "I ran. We sat.\n***\nI ate. We won.\n***\nI sang. We hid.",
            "I ran! We sat?\n\n* * *\n\nDon't go. Well-known - fact.\n\n* * *\n\n“I sang.” We hid",
            "One, two. Three: four.\n***\nFive six. Red blue.\n***\n(Go home). Come back!!",
        ],
        [
            "I ran. We sat. *** I ate. We won.",
            "I ran. We sat. *** I ate. We won. *** I sang. We hid. ***",
            "I ran. *** I ate. We won. *** I sang. We hid.",
            "I ran fast. We sat. *** I ate. We won. *** I sang. We hid.",
            "I. We. *** I. We. *** I. We.",
            "I . We . *** I . We . *** I . We .",
        ],
    ),
    Case(
        "count:count_unique",
        None,
        ["All words differ.", "One. Two.", "Were they here? We're not.", "a, b, c!"],
        ["a b a", "The cat saw the dog", "Go, go!", "A a"],
    ),
    Case(
        "count:count_increment_word",
        {"keyword1": "sun", "keyword2": "moon"},
        ["Sun, moon and moonlight"],
        ["sun moon", "sun sun moon moon", "moon moon", "sun moon moon moon", ""],
    ),
    Case("keywords:palindrome", None, PALINDROMES, NO_PALINDROMES),
    Case(
        "keywords:keyword_specific_position",
        {"keyword": "red", "n": 2, "m": 3},
        ["Go. The big red fox.", "Go! The, big, Red fox.", "Really?! A big “red” fox."],
        ["The red fox. The red fox.", "Go. The, red fox.", "Go. One.", "Go.", ""],
    ),
    Case("keywords:keyword_specific_position", {"keyword": ["a", "b"], "n": 1, "m": 1}, ["a c", "A c"], ["b c"]),
    Case("keywords:keyword_specific_position", {"keyword": "New York", "n": 1, "m": 2}, ["In New York."], ["In new."]),
    Case(
        "keywords:start_end",
        None,
        ["Go and go", "x x", "Don't say don't"],
        ["Go and go.", "go", ". a .", "a b", "It's it"],
    ),
]
BY_ID = {case.name: case for case in reversed(CASES)}

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
NO_LANGUAGE = ["", "123 456 !?"]

CASES = [
    Case("keywords:existence", {"keywords": ["sun", "moon"]}, ["Sun and MOON", "sunmoon"], ["Only the sun", ""]),
    Case("keywords:existence", {"keywords": ["colou?r"]}, ["color", "Colour"], ["colr"]),
    Case("keywords:frequency", {"keyword": "a.c", "frequency": 2, "relation": AT_LEAST}, ["abc ADC axc"], ["abc", ""]),
    Case("keywords:frequency", {"keyword": " ab\n", "frequency": 2, "relation": AT_LEAST}, ["ab,ab"], ["ab"]),
    Case("keywords:frequency", {"keyword": "ab", "frequency": 2, "relation": LESS_THAN}, ["", "ab"], ["abAB"]),
    Case(
        "keywords:forbidden_words",
        {"forbidden_words": ["part", "in.vitable"]},
        ["party", "apart", ""],
        ["The Part.", "INEVITABLE"],
    ),
    Case(
        "keywords:letter_frequency",
        {"letter": "a", "let_frequency": 3, "let_relation": AT_LEAST},
        ["aAbA"],
        ["aa", ""],
    ),
    Case("keywords:letter_frequency", {"letter": "Q", "let_frequency": 1, "let_relation": LESS_THAN}, ["abc"], ["q"]),
    Case("language:response_language", {"language": "en"}, [ENGLISH, *NO_LANGUAGE], [GERMAN]),
    Case("language:response_language", {"language": "de"}, [GERMAN, *NO_LANGUAGE], [ENGLISH]),
    Case("language:response_language", {"language": "zh-cn"}, [], ["这是一个用中文写的句子。", *NO_LANGUAGE]),
    Case(
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": AT_LEAST},
        ["One. Two.", "Dr. Who came! And left?"],
        ["Dr. Who came.", ""],
    ),
    Case(
        "length_constraints:number_sentences", {"num_sentences": 2, "relation": LESS_THAN}, ["One.", ""], ["One. Two."]
    ),
    Case(
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["a\n***\nb", "a***b", "***\na\n***\nb", "a *** b ***", "***a***b***"],
        ["a", "a\n\nb", "a *** *** b", "a *** b *** c", ""],
    ),
    Case("length_constraints:number_paragraphs", {"num_paragraphs": 0}, ["", "***"], ["a"]),
    Case("length_constraints:number_words", {"num_words": 3, "relation": AT_LEAST}, ["a, b-c"], ["a b", "... !"]),
    Case("length_constraints:number_words", {"num_words": 3, "relation": LESS_THAN}, ["don't", ""], ["a b c"]),
    Case(
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Crash"},
        ["a\n\ncrash b", "a\n\n  'CRASH', b", 'a\n\n"Crash! b', "a b\n\ncrash's\n\n"],
        ["a\n\nb", "crash", "a\n\n\n\ncrash b", "a\n\ncrash\n\nc", "a\n\ncrashed", ""],
    ),
    Case(
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 1, "nth_paragraph": 2, "first_word": "a"},
        [],
        ["a", "a\n\na"],
    ),
    Case(
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[name] and [address]", "[[a] [b]", "[][]", "[a]\n[b] [c]"],
        ["[name]", "[a\n] [b\n]", "[[a]]", ""],
    ),
    Case(
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["End. P.S. more", "p. s. more", "x p.s."],
        ["PS more", "p.s more", "p .s.", ""],
    ),
    Case("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["p.p.s", "P. P. S"], ["P.S.", "pps"]),
    Case("detectable_content:postscript", {"postscript_marker": "NOTE?:"}, ["note: x", "NOT: x"], ["note x"]),
    Case(
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "- a\n* b", "*a\ntext\n  - b", "-\n-"],
        ["* a", "* a\n* b\n- c", "** a\n** b", "a * b\nc - d", "*\n*", ""],
    ),
    Case(
        "detectable_format:constrained_response",
        None,
        ["My answer is yes.", "Well. My answer is maybe. So."],
        ["my answer is yes.", "My answer is yes", ""],
    ),
    Case(
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and *b*", "*a* and **b**", "**a** **b**"],
        ["*a*", "**a**", "*a\n* *b\n*", "** ** * *", "****", ""],
    ),
    Case(
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        ["Section 1 a Section 2 b", "Section1 Section22 Section 3"],
        ["Section 1", "section 1 section 2", "Section A Section B", ""],
    ),
    Case("detectable_format:multiple_sections", {"section_spliter": "(", "num_sections": 1}, ["(1"], ["1"]),
    Case(
        "detectable_format:json_format",
        None,
        ['{"a": 1}', " [1] ", '```json\n{"a": 1}\n```', "```JSON\n1```", "```Json 1 ```", "```\n1\n```", "NaN"],
        ["{a: 1}", 'Here: {"a": 1}', "```yaml\n1\n```", "", "[" * 100_000],
    ),
    Case(
        "detectable_format:title",
        None,
        ["<<a>>", "text <<my title>> text", "<< a >>", "<<a>> <<>>"],
        ["<<>>", "<< >>", "<a>", "<<a\n>>", ">>a<<", "<<a", "<<>>>", ""],
    ),
    Case(
        "combination:two_responses",
        None,
        ["a ****** b", "******a******b******"],
        ["a", "a ****** a", "a ******  ****** b", "a******b******c", "a******", ""],
    ),
    Case(
        "combination:repeat_prompt",
        {"prompt_to_repeat": " What is this? "},
        ["what IS this? An apple.", "\n What is this?"],
        ["An apple. What is this?", "What is this", ""],
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
        ["nothing here", ""],
        ["I am"],
    ),
    Case("change_case:english_capital", None, [ENGLISH.upper()], [ENGLISH, GERMAN.upper(), *NO_LANGUAGE]),
    Case("change_case:english_lowercase", None, [ENGLISH.lower()], [ENGLISH, GERMAN.lower(), *NO_LANGUAGE]),
    Case("punctuation:no_comma", None, ["no comma", ""], ["one, two"]),
    Case("startend:quotation", None, ['"a"', ' "a b" \n', '""'], ['"a', 'a"', '"', "'a'", ""]),
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
        ["One.-Two.-Three.", "One.", "", "One two.-"],
        ["One. - Two.", "One. Two.", "One-two.", "One.--Two."],
    ),
    Case(
        "keywords:no_adjacent_consecutive",
        None,
        ["a c e", "b a", "apple cat", "", "a A"],
        ["a b", "Apple banana", "x Y z"],
    ),
    Case("detectable_format:square_brackets", None, ["[a] [b]", "", "[a]"], ["[a] b", "[a b]", "[a]."]),
    Case("keywords:word_once", {"keyword": "moon"}, ["The moon.", "moonlight"], ["Moon, moon", "sun", ""]),
    Case(
        "keywords:word_count_different_numbers",
        {"keyword": "ha", "frequency": 2, "relation": AT_LEAST},
        ["haha", "ha ha ha"],
        ["ha", ""],
    ),
    Case("keywords:exclude_word_harder", {"keyword": "moon"}, ["a moon.", "a Moon b", "moon", ""], ["the moon rose"]),
    Case("paragraphs:paragraphs", None, ["a\n***\nb"], ["a", "a\n\nb", "a***b***c", "a*** ***b"]),
    Case(
        "paragraphs:paragraphs2", None, ["a\n\nb", "\n\na\n\nb\n\n"], ["a", "a***b", "a\n\n\n\nb", "a\n\nb\n\nc", ""]
    ),
    Case(
        "first_word:first_word_sent",
        {"first_word": "So"},
        ["So it is. so be it!", "", "So"],
        ["So it is. Be it.", "So, it is.", "It is so."],
    ),
    Case("first_word:first_word_answer", {"first_word": "So"}, ["so it is", " SO"], ["So, it is", "It is so", ""]),
    Case(
        "last_word:last_word_sent",
        {"last_word": "now"},
        ["Come now. Go NOW!", "", "now"],
        ["Come now. Go.", "Now come.", "Come now. !"],
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
        ["<<a b>> <<c d>>", "<<a b>> c", "", "lone"],
        ["a b", "<<a b>> c d", "<<a>> b>>x"],
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
    Case("punctuation:punctuation_dot", None, ["no dot!", ""], ["a dot."]),
    Case("punctuation:punctuation_exclamation", None, ["none.", ""], ["Ah!"]),
    Case(
        "count:lowercase_counting", {"N": 2}, ["two words HERE", "", "Capital a1 b_c"], ["three words here", "a.b.c"]
    ),
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
        {"n_sent": 2, "n_words": 3},
        ["I ran. We sat.\n***\nI ate. We won.\n***\nI sang. We hid."],
        [
            "I ran. We sat. *** I ate. We won.",
            "I ran. We sat. *** I ate. We won. *** I sang. We hid. ***",
            "I ran. *** I ate. We won. *** I sang. We hid.",
            "I ran fast. We sat. *** I ate. We won. *** I sang. We hid.",
            "",
        ],
    ),
    Case("count:count_unique", None, ["All words differ.", "", "A a"], ["a b a", "One. Two."]),
    Case(
        "count:count_increment_word",
        {"keyword1": "sun", "keyword2": "moon"},
        ["Sun, moon and moonlight"],
        ["sun moon", "sun sun moon moon", "moon moon", "sun moon moon moon", ""],
    ),
    Case("keywords:palindrome", None, ["A level text", "a", "12321 b!"], ["Level", "no such", "level."]),
    Case(
        "keywords:keyword_specific_position",
        {"keyword": "red", "n": 2, "m": 3},
        ["Go. The, red fox."],
        ["The red fox. The red fox.", "Go. The, Red fox.", "Go. One.", "Go.", ""],
    ),
    Case("keywords:keyword_specific_position", {"keyword": ["a", "b"], "n": 1, "m": 1}, ["a c"], ["b c"]),
    Case("keywords:start_end", None, ["Go and go", "x x", ". a ."], ["Go and go.", "go", "", "a b"]),
]
BY_ID = {case.name: case for case in reversed(CASES)}

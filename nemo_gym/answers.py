"""Ways to read an answer out of a response.

Environments differ in what counts as the answer, and rewards depend on it, so choose a function by its name. Refusals
and messages that the model did not write have no text. A message whose content is a plain string has none either,
except for `last_part_of_last_item`.

One rule for final answers holds in all environments: of what is `shown`, the last declaration counts, such as a box,
unless the words beside it negate or withdraw it. `final_declaration` is that rule, and `last_box` applies it to boxes.
Every function but `matches` takes time linear in the text."""

import json
import math
import re
import unicodedata
from collections import deque
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import partial
from html import unescape
from itertools import dropwhile, pairwise
from typing import Any, NamedTuple

from nemo_gym.llm_api.base import type_of
from nemo_gym.llm_api.responses import (
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseOutputMessage,
    ResponseItem,
)

_MESSAGES = (NeMoGymResponseOutputMessage, NeMoGymEasyInputMessage)
MAX_BOXES = 50
"""How many of the last boxes of a text are read."""
NEAR_CHARS = 120
"""How far before and after a declaration its negation or withdrawal is looked for."""

THOUGHT_TAGS = (
    *("think", "thinking", "thought", "thoughts", "reasoning", "scratchpad", "reflection"),
    *("analysis", "internal", "internal_monologue", "inner_monologue"),
)
_THINK_TAG = re.compile(
    rf"[<\uff1c](?P<tag>/?)(?:\w{{1,20}}:)?(?:{'|'.join(THOUGHT_TAGS)})(?:\s[^<>]{{0,200}})?[>\uff1e]|\[(?P<bracket>/?)think\]"
    r"|◁(?P<triangle>/?)think▷|<\|(?P<token>begin|end)_of_thought\|>|<\|(?P<bars>/?)think(?:ing)?\|>"
    r"|<\|channel\|>\s*(?P<channel>analysis|commentary|final)\b[^<]{0,200}(?:<\|message\|>)?|<\|(?P<over>end)\|>",
    re.IGNORECASE,
)
_TAG_START = re.compile("[<\uff1c\\[\u25c1]")
_CLOSING = frozenset(("/", "end", "final"))
_HIDING_STYLE = (
    r"\shidden\b|type\s*=\s*.?hidden\b|display\s*:\s*none\b|visibility\s*:\s*(?:hidden|collapse)\b"
    r"|(?:opacity|font-size|width|height)\s*:\s*0(?!\.?\d)|position\s*:\s*(?:absolute|fixed)\b|text-indent\s*:\s*-"
    r"|clip(?:-path)?\s*:|color\s*:\s*(?:transparent|white|#fff(?:fff)?)\b|style\s*=[^<>]{0,100}?[&\\]"
)
_ATTRIBUTE = r"""\s+[\w:-]{1,40}(?:\s*=\s*(?:"[^"]{0,2000}"|'[^']{0,2000}'|[^\s"'<>=`]{1,500}))"""
_HIDDEN = re.compile(
    r"(?P<comment><!--)|(?P<data><!\[CDATA\[)|(?P<instruction><\?)|(?P<latex>\\begin\{comment\})|(?P<false>\\iffalse\b)"
    r"|(?P<struck>(?<!~)(?!~~~+[ \t]*[\w+-]{0,20}[ \t]*$)~~(?=\S))"
    r"|(?<!<)<(?P<tag>(?:del|s|strike|template|script|style|noscript|dialog|title|head|object|datalist|annotation)(?=[\s>])"
    rf"|[a-z]\w{{0,20}}(?=[^<>]{{0,200}}?(?:{_HIDING_STYLE})))(?:\s[^<>]{{0,300}})?>"
    r"|(?P<line>^[ \t]*%[^\n]*|^[ \t]{0,3}\[[^\]\n]{1,100}\]:[ \t]*(?:#|<#?>|https?:)[^\n]*)"
    r"|(?P<image>!\[[^\n]{0,2000}?\]\([^\s()]{0,500}\)|\]\([^\s()]{0,500}\s+[\"'][^\n]{0,2000}?[\"']\))"
    rf"|(?P<attributes><[a-z]\w{{0,20}}(?:{_ATTRIBUTE}){{1,10}}\s*/?>)"
    r"|(?P<command>\\(?:[hv]?phantom|sout|st|[bx]?cancel|textcolor\s*\{white\}|enclose\s*\{\w*strike\})\s*\{"
    r"|\{(?=\\color\s*\{white\}))|(?P<white>\\color\s*\{white\})",
    re.IGNORECASE | re.MULTILINE,
)
_MAY_HIDE = re.compile(r"[<~%\[\]\\](?!(?<=\\)boxed\b)")
"""A sign that everything hidden has. Most texts have none, and `_HIDDEN` takes a hundred times as long."""
_SHOWN_IF_OPEN = frozenset(("~~", "<s>"))
"""What hides nothing if it is not closed; anything else hides the rest of the text."""
_HIDDEN_ENDS = {
    "comment": "-->",
    "data": "]]>",
    "instruction": "?>",
    "latex": r"\end{comment}",
    "false": r"\fi",
    "struck": "~~",
}
_FONT_COMMAND = (
    r"\\(?:(?:text|math)(?:bf|it|rm|sf|tt|normal|up)?|underline|boldsymbol|bm|mbox|operatorname|bf|it|rm|sf|tt"
    r"|tiny|small|large|Large|LARGE|huge|Huge)"
)
_FONT = re.compile(rf"{_FONT_COMMAND}\s*\{{([^{{}}]*)\}}|\\textcolor\s*\{{[^{{}}]*\}}\s*\{{([^{{}}]*)\}}")
_FONT_SWITCH = re.compile(
    rf"{_FONT_COMMAND}(?![A-Za-z])\s*|\\color\s*\{{[^{{}}]*\}}|\\(?:display|text)style(?![A-Za-z])\s*"
    r"|</?(?:b|i|u|em|strong|code|span|p)>|<br\s?/?>",
    re.IGNORECASE,
)
_FONT_DEPTH = 3
"""How deep font commands may be nested in each other."""
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_INVISIBLE = re.compile(
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff]"
)
"""Characters that are not shown, such as zero-width spaces. Some of them are letters."""
_CYRILLIC = "\u0430\u0432\u0435\u0455\u0456\u0458\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445\u04bb\u0501"
_GREEK = "\u03b1\u03b2\u03b5\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7"
TO_LATIN = str.maketrans(_CYRILLIC + _GREEK, "abesijkmhopctyxhd" + "abeikvoptux")
"""Small letters that look like Latin ones, as small or as capital letters."""
_STYLED_LETTERS = re.compile("[\uff01-\uff5e\u3000\U0001d400-\U0001d7ff]+")
"""Full-width and mathematical forms of ASCII characters."""

_BRACE = re.compile(r"\\(?:(?P<box>\\?(?:boxed|fbox)\s*\{)|.)|\{|\}", re.DOTALL)
_OR = (
    r"(?:\b(?:or|oder|ou|maybe|perhaps|possibly|alternatively|otherwise|versus|vs)\b|或者?|または|\bили\b"
    r"|\\lor\b|\\vee\b"
    r"|\u2228|(?-i:\bo\b))"
)
JOINER = (
    rf"(?:&amp;|[,;:&/|+\u3001\uff0c\uff1b]|{_OR}|\b(?:and|und|et|plus|also|else|either)\b|\bas\s+well\s+as\b"
    r"|(?-i:\b[ye]\b)|\bи\b|和|と|\\text\{\s*(?:and|or)\s*\}|\\(?:land|wedge)\b|\u2227"
    r"|\b(?:option|candidate)\s*\d{1,2}\b|\d{1,3}[.)]|(?<=\n)[-+•*](?=\s))"
)
"""Between two answers: they are one, with several. To be compiled with `re.IGNORECASE`."""
_JOINER = re.compile(JOINER, re.IGNORECASE)
_BETWEEN = re.compile(rf"(?:{JOINER}|\b(?:the|my)\b|[\s$*_()?!.`])*+", re.IGNORECASE)
ALTERNATIVE = re.compile(rf"[\s$*_)\]}}.,;!\u2013\u2014-]*{_OR}(?!\w)", re.IGNORECASE)
"""After an answer: another one follows."""

_TOKEN = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?|-?\d+(?:,\d{3})*(?:\.\d+)?|!=|\S")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SMALL_WORDS = _words(
    """the my a an that this it it's that's these which i i'm i've you am is was are be been has have had to for
    of than from out like can could may must should shall will would do does did so then and but wait hmm
    actually sorry please on reflection first second thought one just equal equals value number final correct
    right true think believe say claim use mark give anything pick choose select option choice answer letter
    result solution guess box boxed above list calendar schedule plan json die la ist es"""
)
"""Words that may stand between a declaration and what negates or withdraws it."""
_NEGATIONS = _words(
    """not cannot never neither nor without except rather instead reject refute
    other far differs differ unequal rule ruled exclude excluded
    ne neq neg \u2260 \u00ac != nicht kein keine pas \u043d\u0435"""
)
_WRONG = _words("wrong incorrect false untrue mistaken invalid rejected falsch")
_WITHDRAWALS = _WRONG | _words(
    """mistake error impossible excluded eliminated discarded ruled correction oops nope nein
    ignore disregard forget discard scratch withdraw retract retracted revoke kidding
    distractor \u274c \u2717 \u2718 \U0001f6ab"""
)
_WRONG_LABEL = re.compile(
    rf"(?:\A|[.!?\n])[\s*_#>]*(?:{'|'.join(sorted(_WRONG))})(?:\s\w{{1,12}})?\s*:[\s*_$`]*\Z", re.IGNORECASE
)
"""At the start of a sentence: what follows is wrong."""
_NOUNS = _words("answer option choice letter result solution")
_RIGHT = _NOUNS | _words("right correct true valid so fit work hold use calendar list schedule")
_SENTENCE_END, _CLAUSE_END = _words(". ! ?"), _words(". ! ? , ;")
_STATEMENT = re.compile(r"\b(?:answer|wait|actually|correction|sorry|oops|no)\b", re.IGNORECASE)
_NO_END = re.compile(r"[\s$*_)\]}]*+[-+*/^=\u00d7\u00b7\u00f7%\\\d]")
"""After a number: it goes on."""
_VISIBLE_WORD = re.compile(r"(?<![\\<&/#\w])[^\W_]")
"""A letter or digit that does not belong to a command, tag or entity."""
_NOTHING_SHOWN = re.compile(
    r"<(\w{1,20})[^<>]{0,200}>\s*</\1\s?>|<(?:br|hr|wbr|img)(?:\s[^<>]{0,200})?/?>|<!--|-->|\\[()\[\],;:! ]"
    r"|\\(?:boxed|fbox|q?quad)(?![A-Za-z])|^[ \t]*(?:-{3,}|={3,})[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_MARKUP_CHARS = frozenset("*_#`$~{}|")
_NUMBER = re.compile(r"(?:(?<!\w)-)?\d+(?:,\d{3})*(?:\.\d+)?")


def message_texts(response: NeMoGymResponse) -> list[list[str]]:
    """The text parts of each assistant message."""
    return [_texts(parts) for item in response.output if (parts := _parts(item)) is not None]


def last_text(response: NeMoGymResponse) -> str:
    """The last assistant message: its text parts joined by newlines, stripped."""
    messages = message_texts(response)
    return "\n".join(messages[-1]).strip() if messages else ""


def all_text(response: NeMoGymResponse) -> str:
    """All assistant messages: all text parts joined by newlines, stripped."""
    return "\n".join([text for message in message_texts(response) for text in message]).strip()


def joined_text(response: NeMoGymResponse) -> str:
    """All assistant messages: all text parts concatenated, not stripped."""
    return "".join(text for message in message_texts(response) for text in message)


def first_part_of_last_item(response: NeMoGymResponse) -> str:
    """The first part of the last item, if that is an assistant message and the part is text."""
    return "".join(_texts(_last_parts(response)[:1]))


def last_part_of_last_item(response: NeMoGymResponse) -> str:
    """The last part of the last item, if that is an assistant message and the part is text; or its plain string."""
    last = response.output[-1] if response.output else None
    if isinstance(last, NeMoGymEasyInputMessage) and last.role == "assistant" and isinstance(last.content, str):
        return last.content
    return "".join(_texts(_last_parts(response)[-1:]))


def is_refusal(response: NeMoGymResponse) -> bool:
    """True if the last item is an assistant message with a refusal in it."""
    return any(type_of(part) == "refusal" for part in _last_parts(response))


def text_of_last_item(response: NeMoGymResponse) -> str:
    """The last item, if that is a message of the model: its text parts joined by newlines."""
    parts = _parts(response.output[-1]) if response.output else None
    return "\n".join(_texts(parts)) if parts else ""


def without_thinking(text: str) -> str:
    """Remove thoughts, such as `<think>` parts, from a text.

    A part without an end reaches to the end of the text. One without a start begins where the text does, since chat
    templates may open it in the prompt. What was said before a part with a start still counts.
    """
    if _TAG_START.search(text) is None:
        return text
    kept, is_thinking, place = list[str](), False, 0
    for tag in _THINK_TAG.finditer(text):
        if not is_thinking:
            kept.append(text[place : tag.start()])
        is_closing = tag[tag.lastgroup or 0].lower() in _CLOSING
        if is_closing and not is_thinking and not tag["over"]:
            kept.clear()
        is_thinking, place = not is_closing, tag.end()
    if not is_thinking:
        kept.append(text[place:])
    return "".join(kept)


def shown(text: str) -> str:
    """Remove thoughts, characters that are not shown, comments, and text that is struck out or hidden."""
    text = visible(without_thinking(text))
    if _MAY_HIDE.search(text) is None:
        return text
    kept, place, endless = list[str](), 0, set[str]()
    while found := _HIDDEN.search(text, place):
        kept.append(text[place : found.start()])
        end = None if found[0] in endless else _end_of_hidden(text, found)
        if end is None and found[0] in _SHOWN_IF_OPEN:
            endless.add(found[0])
            kept.append(found[0])
            end = found.end()
        place = len(text) if end is None else end
    return "".join([*kept, text[place:]])


def _end_of_hidden(text: str, opening: re.Match[str]) -> int | None:
    """Where a hidden part ends; None if it has no end."""
    if opening.lastgroup in ("line", "image", "attributes"):
        return opening.end()
    if opening["white"]:
        return None
    if opening["command"]:
        depth = 1
        for token in _BRACE.finditer(text, opening.end()):
            depth += 1 if token["box"] or token[0] == "{" else -1 if token[0] == "}" else 0
            if depth == 0:
                return token.end()
        return None
    if opening["tag"]:
        return _end_of_element(text, opening)
    found = re.compile(re.escape(_HIDDEN_ENDS[opening.lastgroup or ""]), re.IGNORECASE).search(text, opening.end())
    return found.end() if found else None


def _end_of_element(text: str, opening: re.Match[str]) -> int | None:
    """Where an HTML element ends that may have others of its name in it."""
    depth = 1
    for tag in re.compile(rf"<(/?){opening['tag']}(?![\w-])[^<>]*>", re.IGNORECASE).finditer(text, opening.end()):
        depth += -1 if tag[1] else 1
        if depth == 0:
            return tag.end()
    return None


def visible(text: str) -> str:
    """Remove characters that are not shown, such as zero-width spaces and marks of direction."""
    return text if text.isascii() else _INVISIBLE.sub("", text)


def says_something(text: str) -> bool:
    """True if there is a letter or a digit in the text. Some invisible characters are letters: see `visible`."""
    return _LETTER_OR_DIGIT.search(text) is not None


def is_blank(text: str) -> bool:
    r"""True if a text has nothing but white space, invisible characters and empty markup, such as `**` or `\boxed{}`.

    Such an answer is wrong without asking a judge."""
    text = visible(unescape(text))
    shown = _NOTHING_SHOWN.sub("", text) if "<" in text else text
    if _VISIBLE_WORD.search(shown):
        return False
    shown = _NOTHING_SHOWN.sub("", without_fonts(shown))
    return all(char in _MARKUP_CHARS or unicodedata.category(char)[0] in "CZ" for char in shown)


class Declaration(NamedTuple):
    r"""A part of a text that gives an answer, such as a box, or several `joined` ones: `\boxed{1} and \boxed{2}`."""

    start: int
    end: int
    content: str
    """The answer; of several, joined by a comma."""
    outer: tuple[int, int] | None = None
    """Where it starts and ends together with its label or tags, if it has any."""


def boxes(text: str) -> list[Declaration]:
    r"""The last boxes that are not blank.

    A box ends at its own brace and is not within another one; `\boxed{\boxed{4}}` is 4. Thoughts are not removed.
    """
    return [box for box in _boxes(text) if box.content.strip()][-MAX_BOXES:]


def last_box(text: str) -> str | None:
    """The content, stripped, of the box in what is `shown` that is the `final_declaration`."""
    text = shown(text)
    found = final_declaration(text, boxes(text))
    return found.content.strip() if found else None


def final_declaration(text: str, found: Sequence[Declaration]) -> Declaration | None:
    """The last of the declarations that is not negated; None if the text after it withdraws it or states another one.

    Declarations with only a comma, "and" or "or" between them are one, with several answers. A
    content that is negated later ("It is not 4.") does not count earlier either.
    """
    negated = set[str]()
    for each in reversed(joined(text, found)):
        content = each.content.strip()
        if any(is_negated(text, start) for start in {each.start, (each.outer or each)[0]}):
            negated.add(content)
        elif content not in negated:
            is_kept = not is_withdrawn(text, each.end, content) and not _states_other(text, each.end, content)
            return each if is_kept else None
    return None


def is_negated(text: str, start: int) -> bool:
    """True if there are only small words between a negation and the declaration that starts here: "not the answer".
    Two negations cancel out: "not the wrong answer"."""
    near = max(0, start - NEAR_CHARS)
    if text.find(":", near, start) >= 0 and _WRONG_LABEL.search(text, near, start):
        return True
    following, is_negated = "", False
    sentence = max(near, text.rfind(". ", near, start))  # the loop ends at a full stop: most tokens need not be found
    for token in reversed(_TOKEN.findall(text, sentence, start)):
        word = _lowered(token)
        if word in ("anything", "everything") and following == "but":
            is_negated = not is_negated
        elif following == "but":
            break
        elif _is_negation(word) or (word == "no" and following == "longer") or _is_wrong(word, following):
            is_negated = not is_negated
        elif word in _CLAUSE_END or not (_is_small(token) or word == "longer"):
            break
        following = word
    return is_negated


def is_withdrawn(text: str, end: int, answer: str) -> bool:
    """True if there are only small words between the declaration that ends here and its withdrawal: "4 is wrong",
    "4. No, ignore that.", "4. Wait, it is not 4."."""
    tokens = [*dropwhile(lambda token: _is_small(token[0]), _TOKEN.finditer(text, end, end + NEAR_CHARS))]
    if not tokens:
        return False
    word, following = _lowered(tokens[0][0]), [_lowered(token[0]) for token in tokens[1:5]]
    if word in _WITHDRAWALS:  # "Incorrect options: …" is about others
        is_of_others = following and len(following[0]) > 4 and following[0].endswith("s")
        is_question_or_past = "?" in following[:1] or "before" in following
        return not (word in _WRONG and (is_of_others or is_question_or_past))
    if word == "no":
        return not following or not following[0].isalnum() or following[0] == "wait"
    if word in ("take", "change", "changed"):
        return "back" in following or following[:2] == ["my", "mind"]
    return _is_negation(word) and _denies(text, tokens, answer)


def _denies(text: str, tokens: Sequence[re.Match[str]], answer: str) -> bool:
    """True if a negation, the first of the tokens, is about an answer: "not the right one", "not 4", "Not!"."""
    if len(tokens) == 1 or tokens[1][0] in (*_SENTENCE_END, ")", "]"):
        return True
    for token in tokens[1:]:
        if _lowered(token[0]) in _RIGHT or (answer and text.startswith(answer, token.start())):
            return True
        if token[0] in _CLAUSE_END or not _is_small(token[0]):
            return token[0] in (".", "!")
    return False


def _states_other(text: str, end: int, answer: str) -> bool:
    """True if a text states another letter or number after this place: "Final answer: 5", "Wait, no: 5."."""
    rest, bare = without_fonts(text[end:]), without_fonts(answer)
    return any(_is_other(said, bare) for said in map(partial(_stated, rest), _STATEMENT.finditer(rest)) if said)


def _stated(text: str, statement: re.Match[str]) -> str | None:
    """The capital letter or number that a statement goes on with after small words."""
    has_verb = False
    for token in _TOKEN.finditer(text, statement.end(), statement.end() + NEAR_CHARS):
        word = token[0]
        if word.lower() == "wait":  # begins a statement of its own
            return None
        has_verb = has_verb or word.lower() in ("is", "be", ":", "=", "\uff1a")
        if _NUMBER.fullmatch(word) or (len(word) == 1 and "A" <= word <= "Z" and word != "I"):
            is_whole = not (_NO_END.match(text, token.end()) or text[token.end() : token.end() + 1] in ("'", "_"))
            return word if is_whole and (has_verb or statement[0].lower() != "answer") else None
        if not _is_small(word) and word.lower() != "no":
            return None
    return None


def _lowered(token: str) -> str:
    return token.lower().replace("\u2019", "'")


def _is_wrong(word: str, following: str) -> bool:
    """True for "wrong" before what it is said of: "the wrong answer", "it is wrong that"."""
    return (
        following in (*_NOUNS, "calendar", "that", "to") if word in _WRONG else word == "mistake" and following == "to"
    )


def _is_negation(word: str) -> bool:
    return word in _NEGATIONS or word.endswith(("n't", "不是"))


def _is_small(written: str) -> bool:
    """True for small words, adverbs and punctuation. `A` is an option, not an article."""
    word = _lowered(written)
    is_word = word in _SMALL_WORDS or (len(word) > 3 and word.endswith("ly"))
    return (is_word and written != "A") or not (word[-1].isalnum() or _is_negation(word) or word in _WITHDRAWALS)


def _is_other(said: str, answer: str) -> bool:
    """True for another letter, and for another number than the one that is the whole answer, unless it is rounded."""
    if said.isalpha():
        letters = re.findall(r"\b[A-Z]\b", answer.upper())
        return bool(letters) and said not in letters
    bare, decimals = answer.strip(" $()."), len(said.partition(".")[2])
    if len(said) + len(bare) > NEAR_CHARS or not _NUMBER.fullmatch(bare):
        return False
    one, other = (float(each.replace(",", "")) for each in (said, bare))
    rounding = 0.51 / 10**decimals if "." in said + bare else 0.0
    return abs(one - other) > rounding


def _boxes(text: str) -> list[Declaration]:
    """Every complete box that is not within another one."""
    found: list[Declaration] = []
    opened: list[re.Match[str] | None] = []  # None for any other brace
    for token in _BRACE.finditer(text):
        if token["box"] or token[0] == "{":
            opened.append(token if token["box"] else None)
        elif token[0] == "}" and opened and (box := opened.pop()):
            within: list[Declaration] = []
            while found and found[-1].start > box.start():
                within.append(found.pop())
            content = _content_of_wrapper(text, box.end(), token.start(), within)
            found.append(Declaration(box.start(), token.end(), content))
    return found


def _content_of_wrapper(text: str, start: int, end: int, within: list[Declaration]) -> str:
    """The content of a box; of one that has nothing but another box in it, the content of that one."""
    if len(within) == 1 and not text[start : within[0].start].strip() and not text[within[0].end : end].strip():
        return within[0].content
    return text[start:end]


def _joins(text: str, start: int, end: int) -> bool:
    return _BETWEEN.fullmatch(text, start, end) is not None and _JOINER.search(text, start, end) is not None


def joins_next(text: str, start: int, end: int) -> int:
    """Where the words between these places begin that join the answer before them to one that begins at the end."""
    start = max(start, end - NEAR_CHARS)
    return next((at for at in range(start, end) if _joins(text, at, end)), end)


def joined(text: str, found: Sequence[Declaration]) -> list[Declaration]:
    """Combine declarations with only a comma, "and" or "or" between them into one, which has several answers unless
    they are the same. Blank space alone joins nothing."""
    combined = list(found[:1])
    for one, other in pairwise(found):
        end, start = (one.outer or (0, one.end))[1], (other.outer or (other.start, 0))[0]
        if end <= start <= end + NEAR_CHARS and _joins(text, end, start):
            first = combined.pop()
            is_same = first.content.strip() == other.content.strip()
            content = other.content if is_same else f"{first.content}, {other.content}"
            outer = ((first.outer or first)[0], (other.outer or (0, other.end))[1])
            combined.append(Declaration(first.start, other.end, content, outer))
        else:
            combined.append(other)
    return combined


def plain_letters(text: str) -> str:
    """Replace full-width letters, digits and signs, and mathematical letters, by those of ASCII."""
    return (
        text if text.isascii() else _STYLED_LETTERS.sub(lambda styled: unicodedata.normalize("NFKC", styled[0]), text)
    )


def without_fonts(text: str) -> str:
    r"""Replace LaTeX font commands by their arguments: `\text{B}`, `\mathbf{\mathrm{B}}` and `{\bf B}` become `B`, as
    do bold tags of HTML, full-width letters and mathematical ones."""
    if not text.isascii():
        text = plain_letters(text)
    if "\\" not in text and "<" not in text:
        return text
    for _ in range(_FONT_DEPTH):
        text = _FONT.sub(lambda font: font[1] if font[2] is None else font[2], text)
    return _FONT_SWITCH.sub("", text)


def matches(pattern: str, text: str, flags: re.RegexFlag) -> Iterator[re.Match[str]]:
    """All matches of a regex; none if it is invalid.

    A regex from the data may never finish: run this in `nemo_gym.compute`.
    """
    try:
        yield from re.finditer(pattern, text, flags)
    except (re.error, OverflowError, RecursionError):
        return


def last_match(pattern: str, text: str, flags: re.RegexFlag) -> re.Match[str] | None:
    """The last match of a regex; None if there is none or the regex is invalid. May never finish, as `matches`."""
    last = deque(matches(pattern, text, flags), maxlen=1)
    return last[0] if last else None


def last_number(response: NeMoGymResponse) -> float | None:
    """The last number in the last assistant message, with or without commas between thousands."""
    numbers = _NUMBER.findall(last_text(response))
    return float(numbers[-1].replace(",", "")) if numbers else None


def strict_json(text: str, *, unique_keys: bool = False) -> Any:
    """Return the value of JSON text as RFC 8259 defines it, or raise ValueError.

    Python's own parser also accepts `NaN`, `Infinity` and numbers beyond the range of a double, such as `1e400`. If an
    object has a key twice, the last one counts; with `unique_keys` that is an error. A number that is only nearly an
    integer, such as `3.0000000000000000001`, does not become one."""
    pairs_hook = _object_with_unique_keys if unique_keys else None
    try:
        return json.loads(
            text, parse_constant=_finite_number, parse_float=_finite_number, object_pairs_hook=pairs_hook
        )
    except RecursionError as error:
        raise ValueError("The value is nested too deeply.") from error


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is not a finite number.")
    if number.is_integer() and abs(number) < 2**52 and (exact := Decimal(text)) != number:
        return math.nextafter(number, math.inf if exact > number else -math.inf)
    return number


def _object_with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("An object has a key twice.")
    return value


def _parts(item: ResponseItem) -> list[Any] | None:
    """The content parts of an assistant message; None if the item is something else."""
    if not isinstance(item, _MESSAGES) or item.role != "assistant":
        return None
    return [] if isinstance(item.content, str) else item.content


def _last_parts(response: NeMoGymResponse) -> list[Any]:
    return (_parts(response.output[-1]) or []) if response.output else []


def _texts(parts: list[Any]) -> list[str]:
    return [part.text for part in parts if type_of(part) == "output_text"]

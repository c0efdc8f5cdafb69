"""Ways to read an answer out of a response.

Environments differ in what counts as the answer, and rewards depend on it, so choose a function by its name. Refusals
and messages that the model did not write have no text. A message whose content is a plain string has none either,
except for `last_part_of_last_item`. In all environments the final answer outside thoughts counts: remove these, and
what is hidden or struck out, with `shown`, then read `answer_boxes` or `last_box`. Every function but `matches` takes
time linear in the text."""

import json
import math
import re
import unicodedata
from collections import deque
from collections.abc import Iterator
from html import unescape
from itertools import pairwise
from typing import Any, NamedTuple

from nemo_gym.llm_api.base import type_of
from nemo_gym.llm_api.responses import (
    NeMoGymEasyInputMessage,
    NeMoGymResponse,
    NeMoGymResponseOutputMessage,
    ResponseItem,
)

LONG_TEXT = 32_768
"""Characters. Checking a longer text may block other rollouts: run that in `nemo_gym.compute`."""

_MESSAGES = (NeMoGymResponseOutputMessage, NeMoGymEasyInputMessage)
MAX_BOXES = 50
"""How many of the last boxes of a text are read."""
DENIAL_CHARS = 120
"""How far before and after an answer a denial of it is looked for."""

THOUGHT_TAGS = ("think", "thinking", "thought", "thoughts", "reasoning", "scratchpad", "reflection")
_THINK_TAG = re.compile(
    rf"<(?P<tag>/?)(?:\w{{1,20}}:)?(?:{'|'.join(THOUGHT_TAGS)})(?:\s[^<>]{{0,200}})?>|\[(?P<bracket>/?)think\]"
    r"|◁(?P<triangle>/?)think▷|<\|(?P<token>begin|end)_of_thought\|>|<\|(?P<bars>/?)think(?:ing)?\|>"
    r"|<\|channel\|>\s*(?P<channel>analysis|commentary|final)\b[^<]{0,200}(?:<\|message\|>)?|<\|(?P<over>end)\|>",
    re.IGNORECASE,
)
_CLOSING = frozenset(("/", "end", "final"))
_HIDDEN = re.compile(
    r"(?P<comment><!--)|<(?P<tag>del|s|strike|template)(?:\s[^<>]{0,200})?>"
    r"|(?P<latex>\\begin\{comment\})|(?P<false>\\iffalse\b)"
    r"|(?P<struck>~~(?=\S))|(?P<line>^[ \t]*%[^\n]*)"
    r"|(?P<command>\\(?:[hv]?phantom|sout|st|[bx]?cancel|textcolor\s*\{white\})\s*\{)",
    re.IGNORECASE | re.MULTILINE,
)
_SHOWN_IF_OPEN = frozenset(("~~", "<s>"))
"""What hides nothing if it is not closed; anything else hides the rest of the text."""
_HIDDEN_ENDS = {"comment": "-->", "latex": r"\end{comment}", "false": r"\fi", "struck": "~~"}
_FONT_COMMAND = r"\\(?:(?:text|math)(?:bf|it|rm|sf|tt|normal|up)?|boldsymbol|bm|mbox|operatorname|bf|it|rm|sf|tt)"
_FONT = re.compile(rf"{_FONT_COMMAND}\s*\{{([^{{}}]*)\}}|\\textcolor\s*\{{[^{{}}]*\}}\s*\{{([^{{}}]*)\}}")
_FONT_SWITCH = re.compile(
    rf"{_FONT_COMMAND}(?![A-Za-z])\s*|\\color\s*\{{[^{{}}]*\}}|\\(?:display|text)style(?![A-Za-z])"
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
_STYLED_LETTERS = re.compile("[\uff01-\uff5e\u3000\U0001d400-\U0001d7ff]+")
"""Full-width and mathematical forms of ASCII characters."""

_BRACE = re.compile(r"(?P<box>\\{1,2}(?:boxed|fbox)\s*\{)|\\.|[{}]", re.DOTALL)
_OR = r"(?:\b(?:or|oder|ou|maybe|perhaps|possibly|alternatively)\b|或者?|または|или|\\lor\b|\\vee\b|\u2228)"
_JOIN = re.compile(
    rf"[\s$*_()?!.]*(?:(?:[,;:&/]|{_OR}|\b(?:and|und|et|else|also|either)\b|\\text\{{\s*(?:and|or)\s*\}}"
    r"|\d{1,3}[.)]|(?<=\n)[-+•])[\s$*_()?!.]*)+",
    re.IGNORECASE,
)
_ALTERNATIVE = re.compile(
    rf"[\s$*_)\]}},;?!.]*{_OR}(?:[\s$*_(\[,]|(?:option|choice|maybe|perhaps)\b)*[A-Z0-9](?![A-Za-z])"
)
"""After an answer: another one."""
_DENIAL_FLAGS = re.IGNORECASE | re.VERBOSE
_NOT = r"""(?: \bnot | \w+n't | \bcannot | \bnever | \bneither | \bnor | \bexcept | \bunlike
    | \bdiffer(?:s|ent)?\s+from | \bunequal\s+to | \bfar\s+from
    | (?<!t\sbe\s)\b(?:anything|everything|all)\s+but | (?<!none\s)(?<!nothing\s)(?<!answer\s)\bother\s+than
    | \brather\s+than | \binstead\s+of
    | \b(?:less|more|greater|fewer|larger|smaller|bigger)\s+than | \\neq? | \\not | ≠ | != | ¬
    | \brul(?:e|ed|ing)\s+out | \b(?:exclud|eliminat|reject)(?:e|es|ed|ing)?
    | \b(?:wrong|incorrect|false)\s+(?:answer|option|choice|letter|result)
    | \bnicht | \bkeine? | \bpas | \bno\s+es | \bnon\s+è | \b\u043d\u0435 | 不是 | 不选 | 并非 )
    (?: \s+ (?:the|my|an?|to|be|is|that|would|equal|for|number|value|simply|just|exactly|going|really|actually|even
        |pick|say|choose|select|(?:(?:correct|right|final)\s+)?(?:option|choice|answer|letter)|die|la)\b )*"""
_DENIED_CLAIM = r"""\b(?: not\s+(?:true|correct|right|the\s+case) | false | untrue | wrong | incorrect | doubt
    | (?:not|\w+n't)\s+(?:think|believe|say|claim) ) \s+ (?:that|to|the|it) \b [^.,!?\n]{0,60}
    | \b(?:not|\w+n't)\s+(?:think|believe|say|claim)\s
      (?: (?!\b(?:but|so|hence|thus|therefore|instead|because|since)\b) [^.,:;!?\n] ){0,60}"""
_DENIAL_BEFORE = re.compile(rf"(?: {_NOT} | {_DENIED_CLAIM} ) [\s:*_$(\[\\]* $", _DENIAL_FLAGS)
_DENIAL_AFTER = re.compile(
    r"""[\s$)\]*_.,!?\\—-]* (?:(?:but|no|wait|hmm|sorry|actually)\b[,.!]?\s*)* (?:(?:that|this|it|which)\b\s*)?
    (?: (?:is|was|'s|seems|(?:can|could|may|must|should|would)\ be)\s+(?:\w+ly\s+)?
        (?:(?:wrong|incorrect|false|untrue)(?!\s+to\b)|impossible|ruled\ out|excluded|eliminated|rejected|discarded
          |an?\ (?:mistake|error|wrong))
      | (?:is|was|would)? \s* (?:\w+ly\s+)? (?:not|n't) \s+ (?:be\s+)?
        (?:right|correct|true|(?:the|my|an?)\ (?:\w+\ )?(?:answer|solution|result|option|choice))
      | can(?:not|'t|\ not) \s+ be \b (?!\s+(?:wrong|incorrect|false))
      | (?:does|did)(?:n't|\ not) \s+ (?:work|fit|hold)\b
      | (?:wrong|incorrect|false)\b (?=[\s*_]*(?:[.!\n]|$))
      | ist\s+(?:falsch|nicht\s+(?:richtig|korrekt|die)) | n'est\s+pas | est\s+faux | 不对 | 是错 | 错了 )
    | [\s$)\]}*_\\]* \? [\s$)\]*_\\]* (?:no|nope|never|hardly|wrong|nein|non)\b""",
    _DENIAL_FLAGS,
)
_SELF_CORRECTION = r"(?:wait|actually|correction|sorry|oops|scratch\ that|on\ second\ thought|hmm|no)"
_WITHDRAWN = re.compile(
    rf"""\bI(?:\ have|'ve)?\ chang(?:e|ed)\ my\ mind\b | \bscratch\ that\b
    | \bI(?:\ hereby|\ must|\ have\ to|\ would\ like\ to)?\ (?:withdraw|retract|take\ back|revoke)\b
    | \b(?:disregard|ignore|forget)\ (?:that|this|it|the\ above|my\ (?:\w+\ )?answer)\b
    | \b{_SELF_CORRECTION}[\s,.:!]{{1,5}}
      (?:that|this|it|my\ answer|the\ above|I)\ (?:is|was|am)
      \ (?:wrong|incorrect|mistaken|an?\ (?:mistake|error))\b""",
    _DENIAL_FLAGS,
)
_OTHER_ANSWER = re.compile(
    rf"""(?: (?i: \banswer\ (?:is|should\ be|must\ be|would\ be) | (?:^|[.!?\n(])[\s*_]{{0,8}}{_SELF_CORRECTION}\b )
      (?: [\s,.!:*_$(…—-]
        | (?i: \b(?:no|wait|so|sorry|it|is|it's|that|the|i|meant|mean|should|must|be|correct|right
          |answer|option|choice)\b )
      ){{1,40}} )
      (?P<said> [A-Z](?![A-Za-z0-9']) | -?\d+(?:,\d{{3}})*(?:\.\d+)? )
      (?= [*_$)]{{0,8}} (?:[\s,;]{{0,8}}not\b|\s{{0,8}}(?:[.,;!?\n]|$)) )""",
    re.VERBOSE,
)
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
    if opening["line"] is not None:
        return opening.end()
    if opening["command"]:
        depth = 1
        for token in _BRACE.finditer(text, opening.end()):
            depth += 1 if token["box"] or token[0] == "{" else -1 if token[0] == "}" else 0
            if depth == 0:
                return token.end()
        return None
    closing = f"</{opening['tag']}>" if opening["tag"] else _HIDDEN_ENDS[opening.lastgroup or ""]
    found = re.compile(re.escape(closing), re.IGNORECASE).search(text, opening.end())
    return found.end() if found else None


def visible(text: str) -> str:
    """Remove characters that are not shown, such as zero-width spaces and marks of direction."""
    return _INVISIBLE.sub("", text)


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


class Box(NamedTuple):
    """A box of a text, or several that are joined, as in `\\boxed{1} and \\boxed{2}`."""

    start: int
    end: int
    content: str
    """What is in the box; of several, joined by a comma."""
    opening: str
    r"""How the last of them begins, such as `\boxed{`."""


def boxes(text: str) -> list[Box]:
    r"""The last boxes that are not blank.

    A box ends at its own brace and is not within another one; `\boxed{\boxed{4}}` is 4. Boxes with only a comma, "and"
    or "or" between them are one. Thoughts are not removed.
    """
    return _joined([box for box in _boxes(text) if box.content.strip()][-MAX_BOXES:], text)


def answer_boxes(text: str) -> list[Box]:
    r"""The boxes that give an answer, the last one at the end.

    Left out of `boxes` are contents that the text denies at that place or later: "not `\boxed{4}`",
    "`\boxed{4}` is wrong". There is none if what follows the last one takes it back: see `is_taken_back`.
    """
    found, denied = list[Box](), set[str]()
    for box in reversed(boxes(text)):
        if is_denied(text, box.start, box.end):
            denied.add(box.content.strip())
        elif box.content.strip() not in denied:
            found.append(box)
    if found and is_taken_back(text, found[0].end, found[0].content):
        return []
    return found[::-1]


def last_box(text: str) -> str | None:
    """The content, stripped, of the last box in what is `shown` that gives an answer, as `answer_boxes` finds it."""
    found = answer_boxes(shown(text))
    return found[-1].content.strip() if found else None


def is_denied(text: str, start: int, end: int) -> bool:
    """True if a text denies the answer at this place: "not 4", "4 is wrong"."""
    before, after = text[max(0, start - DENIAL_CHARS) : start], text[end : end + DENIAL_CHARS]
    return bool(_DENIAL_BEFORE.search(before) or _DENIAL_AFTER.match(after))


def has_alternative(text: str, end: int) -> bool:
    """True if the answer that ends here is followed by another one: "A or B"."""
    return _ALTERNATIVE.match(text, end, end + DENIAL_CHARS) is not None


def is_taken_back(text: str, end: int, answer: str) -> bool:
    """True if a text withdraws its answer after this place, or gives another letter or number in words: "I change my
    mind", "Wait, no: 5."."""
    if _is_withdrawn(text, end):
        return True
    bare = without_fonts(answer)
    return any(_is_other(found["said"], bare) for found in _OTHER_ANSWER.finditer(text, end))


def _is_withdrawn(text: str, end: int) -> bool:
    """True if a text withdraws its answer after this place: "I take that back"."""
    return _WITHDRAWN.search(text, end) is not None


def _is_other(said: str, answer: str) -> bool:
    """True for another letter, and for another number than the one that is the whole answer, unless it is rounded."""
    if said.isalpha():
        letters = re.findall(r"\b[A-Z]\b", answer.upper())
        return bool(letters) and said not in letters
    bare, decimals = answer.strip(" $()."), len(said.partition(".")[2])
    if len(said) + len(bare) > DENIAL_CHARS or not _NUMBER.fullmatch(bare):
        return False
    one, other = (float(each.replace(",", "")) for each in (said, bare))
    rounding = 0.51 / 10**decimals if "." in said + bare else 0.0
    return abs(one - other) > rounding


def _boxes(text: str) -> list[Box]:
    """Every complete box that is not within another one."""
    found: list[Box] = []
    opened: list[re.Match[str] | None] = []  # None for any other brace
    for token in _BRACE.finditer(text):
        if token["box"] or token[0] == "{":
            opened.append(token if token["box"] else None)
        elif token[0] == "}" and opened and (box := opened.pop()):
            within: list[Box] = []
            while found and found[-1].start > box.start():
                within.append(found.pop())
            content = _content_of_wrapper(text, box.end(), token.start(), within)
            found.append(Box(box.start(), token.end(), content, box[0]))
    return found


def _content_of_wrapper(text: str, start: int, end: int, within: list[Box]) -> str:
    """The content of a box; of one that has nothing but another box in it, the content of that one."""
    if len(within) == 1 and not text[start : within[0].start].strip() and not text[within[0].end : end].strip():
        return within[0].content
    return text[start:end]


def _joined(found: list[Box], text: str) -> list[Box]:
    """Combine boxes that are joined by a comma, "and" or "or"."""
    combined = found[:1]
    for one, other in pairwise(found):
        if other.start - one.end <= DENIAL_CHARS and _JOIN.fullmatch(text, one.end, other.start):
            first = combined.pop()
            content = f"{first.content}, {other.content}"
            combined.append(Box(first.start, other.end, content, other.opening))
        else:
            combined.append(other)
    return combined


def plain_letters(text: str) -> str:
    """Replace full-width letters, digits and signs, and mathematical letters, by those of ASCII."""
    return _STYLED_LETTERS.sub(lambda styled: unicodedata.normalize("NFKC", styled[0]), text)


def without_fonts(text: str) -> str:
    r"""Replace LaTeX font commands by their arguments: `\text{B}`, `\mathbf{\mathrm{B}}` and `{\bf B}` become `B`, as
    do bold tags of HTML, full-width letters and mathematical ones."""
    text = plain_letters(text)
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
    object has a key twice, the last one counts; with `unique_keys` that is an error."""
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

"""Compare a reply with the expected answer by the rules of math-verify.

Runs in a compute worker. The server imports this module too, so the library, which is slow to import, is only imported
inside the functions."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple


class LibraryCheck(NamedTuple):
    """The library's reward, 1.0 or 0.0, and the answer that it extracted from the reply, as text."""

    reward: float
    extracted: str | None


NOTHING = LibraryCheck(0.0, None)


FORMS = (
    "-12.5",
    r"9\pi",
    r"-\frac{3\sqrt{2}}{4}",
    "x(x+1)^2 - 2x",
    r"2^{10} \cdot 3!",
    "(-1, 3]",
    r"(-\infty, 2) \cup [3, \infty)",
    r"\{1, 2\}",
    "x=2, y=-1",
    r"x=2 \text{ or } x=3",
    r"1 < x \le 3",
    r"\sin(x) + \log_2 8",
    r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
    r"50\%",
    r"30^\circ",
)
"""Common kinds of answers."""


def warm_up() -> None:
    """Import the library and parse common forms once: the first time is slow for each of them."""
    for form in FORMS:
        check(form, f"The answer is $x$, so \\boxed{{{form}}}")


def check(expected: str, reply: str) -> LibraryCheck:
    """Compare everything that can be extracted from a reply with the expected answer.

    The library's own time limits are off: they need signals and turn into a silent 0.0. The caller limits the time.
    """
    from math_verify import (  # type: ignore[import-untyped]
        ExprExtractionConfig,
        LatexExtractionConfig,
        parse,
        verify,
    )

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    try:
        golds = parse(f"\\boxed{{{expected}}}", [LatexExtractionConfig()], parsing_timeout=None, raise_on_error=True)
        if not golds:
            return NOTHING
        targets = [ExprExtractionConfig(), LatexExtractionConfig()]
        predictions = parse(reply, targets, parsing_timeout=None, raise_on_error=True)
        is_equal = any(verify(golds, prediction, timeout_seconds=None) for prediction in predictions)
        return LibraryCheck(float(is_equal), _extracted(golds, predictions))
    except (MemoryError, SystemError):  # failures of this process, which say nothing about the answer
        raise
    except Exception:
        return NOTHING


def _extracted(golds: Sequence[Any], predictions: Sequence[Any]) -> str | None:
    """The first printed prediction that equals a printed gold answer as text, else the first one."""
    from math_verify import verify

    printed_golds, printed = [str(gold) for gold in golds], [str(prediction) for prediction in predictions]
    for text in printed:
        if any(verify(gold, text, timeout_seconds=None) for gold in printed_golds):
            return text
    return printed[0] if printed else None

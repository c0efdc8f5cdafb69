"""Replies with known rewards: right answers in many notations, near misses, and what must not pass for an answer."""

from collections.abc import Iterator
from typing import NamedTuple


class Transcript(NamedTuple):
    kind: str
    expected: str
    reply: str
    reward: float


NOTATIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "4": (
        ("4", "4.", "4.0", "x = 4", r"\text{4}", r"\mathbf{4}", r"\$4", "04", r"4\text{ cm}", "= 4"),
        ("-4", "44", "0.4", "4i"),
    ),
    "-17": (("-17", "\N{MINUS SIGN}17", "x=-17", "-17.0", r"-17\,\text{m}"), ("17", "-16", "1/-17")),
    "150932": (
        (
            "150932",
            "150,932",
            r"150\,932",
            "150{,}932",
            "150 932",
            r"150\;932",
            "150~932",
            r"1.50932 \times 10^5",
            "1.50932e5",
        ),
        ("150.932", "150933", "15,0932", r"150 \cdot 932"),
    ),
    "750000": (
        ("7.5e5", "7.5E+5", r"7.5\cdot10^{5}", "750,000", r"0.75 \text{ million}", "750 thousand"),
        ("7.5e4", "7.5", "75e5"),
    ),
    r"\frac{9}{2}": (
        (
            "4 1/2",
            "9/2",
            "4.5",
            r"4\frac{1}{2}",
            r"4\frac12",
            r"\dfrac{9}{2}",
            r"\tfrac92",
            "4½",
            r"\frac{18}{4}",
            r"\nicefrac{9}{2}",
            "4.50",
        ),
        ("4/2", "2/9", "41/2", "-4 1/2", "4.05", r"4 \cdot \frac{1}{2}"),
    ),
    r"-\frac{7}{3}": (
        ("-7/3", "-2 1/3", r"-2\frac{1}{3}", r"\frac{-7}{3}", r"\frac{7}{-3}", "-2.333333"),
        ("7/3", "2 1/3", "-2.33"),
    ),
    r"74\pi": (
        ("74pi", "74π", r"74 \pi", r"74 \cdot \pi", "74*pi", r"\pi \cdot 74", r"74\pi \text{ cm}^2"),
        ("74", r"74\pi^2", "47pi"),
    ),
    "63": (("63°", r"63^\circ", r"63^{\circ}", r"63 \text{ degrees}", "63 degrees", "63."), ("36°", "6.3", "63/2")),
    r"2\sqrt{3}": (
        (r"2\sqrt3", "2√3", "2*sqrt(3)", r"\sqrt{12}", "2 sqrt(3)", "3.464102", r"\sqrt{3} \cdot 2"),
        (r"3\sqrt2", "2√2", r"\sqrt{3}"),
    ),
    "(-14,17]": (
        (
            r"-14<x\le 17",
            r"-14 < x \leq 17",
            "-14 < x <= 17",
            "\N{MINUS SIGN}14<x≤17",
            r"x \in (-14,17]",
            r"\left(-14,17\right]",
            r"17 \ge x > -14",
        ),
        (r"-14\le x\le 17", "(-14,17)", "[-14,17]", r"-14<x<17", "(14,17]", "-14, 17"),
    ),
    r"[3,\infty)": (
        (r"x \ge 3", r"x\geq 3", "x >= 3", r"[3, \infty)", "[3,infinity)", "3 ≤ x"),
        ("x > 3", r"(3,\infty)", r"x \le 3"),
    ),
    r"(-\infty,2)\cup(3,\infty)": (
        (r"x<2 \text{ or } x>3", r"(3,\infty) \cup (-\infty,2)", "(-∞,2) \N{UNION} (3,∞)"),
        (r"x \le 2 \text{ or } x>3", "(2,3)", r"(-\infty,2]\cup(3,\infty)"),
    ),
    r"\{1, 2, 5\}": (
        (r"\{5,2,1\}", "1, 2, 5", "{2, 5, 1}", r"1, 2 \text{ and } 5", "x=1, x=2, x=5", r"x=1\text{, }x=2 \lor x=5"),
        (r"\{1,2\}", "1, 2, 5, 7", "1, 2, 3", r"x=1 \lor x=2"),
    ),
    "(3, -1, 2)": (("(3,-1,2)", r"\left(3, -1, 2\right)", "(3.0, -1, 2)"), ("(2,-1,3)", "(3,-1)", r"\{3,1,2\}")),
    "B": ((r"\text{B}", "B", r"\textbf{(B)}", r"\mathrm{B}", "(B)"), (r"\text{A}", "AB", "C")),
    r"25\%": (("25%", r"25\%", "25", "0.25", "1/4", r"25 \text{ percent}"), ("2.5%", "0.025", "52%", "0.25%")),
    "0.125": (("1/8", r"12.5\%", ".125", "0.1250", r"\frac18"), ("0.0125", "1.25%", "0.12")),
    "0.00000012": (("1.2e-7", r"1.2 \times 10^{-7}"), ("0.0", "0.0000003", "1e-9")),
    "x^2+x": (("x(x+1)", "x^2 + x", "x²+x", "x + x**2"), ("x^2-x", "x^2+1", "y^2+y")),
    "x=5": (("5", "x = 5", "5.0"), ("y=5", "-5")),
    "4500": (
        ("n = 4{,}500", r"4500 \text{ km/h}", "4500 km/h", r"4500\ \text{m/s}^2", "4500 dollars"),
        ("4500_8", "4500_{16}", "4500'", r"4500^\prime", r"4500\text{ one/two}"),
    ),
    r"\sqrt{7}": (("7^{0.5}", "7^{.5}", r"7^{\frac{1}{2}}"), ("7^{0.25}", "7^{-0.5}")),
    "12.5": (("12.50 dollars", r"\$12.50", "12.5 USD"), ("12 dollars", "12.5 hundred")),
    "(3, -2)": (
        (r"\langle 3,-2\rangle", r"\left\langle 3, -2\right\rangle", "3, -2", "y=-2, x=3"),
        ("{3,-2}", r"\{3,-2\}", "-2, 3", "y=3, x=-2"),
    ),
    "[2,7)": ((r"\{x: 2\le x<7\}", r"\{x \in \mathbb{R} \mid 2\le x<7\}"), (r"\{x: 2<x<7\}", r"\{2,7\}")),
    r"\text{Yes}": ((r"\text{Yes.}", r"\text{yes}"), (r"\text{No.}",)),
    r"\emptyset": ((r"\varnothing", r"\{\}", "∅"), (r"\{0\}", "0")),
}
"""For each expected answer what equals it and what does not."""

BOXES = (
    r"So the answer is \boxed{%s}.",
    r"Therefore $\boxed{%s}$",
    "Adding 3 and 8 we get\n\\[\n\\boxed{%s}\n\\]\nI hope this helps.",
    "<think>Maybe 99, or \\boxed{98}?</think>\n\\boxed{%s}",
    r"First I had \boxed{97}. Checking again, it is \boxed{%s}.",
)
STATEMENTS = (
    "The answer is $%s$.",
    "**Answer:** $%s$",
    "Final answer: $%s$",
    "So 2 + 9 matters. The final answer is $%s$. I hope it is correct.",
)

CORRECTIONS = (
    r"\boxed{%s} \boxed{%s}",
    r"So \boxed{%s}. Wait, no, it is \boxed{%s}.",
    r"\boxed{%s}... hold on: \boxed{%s}",
    "I get $\\boxed{%s}$.\n\nCorrection: $\\boxed{%s}$",
    r"The answer is \boxed{%s}. I forgot a sign, so it is \boxed{%s}.",
    "The answer is %s. Wait, the answer is %s.",
    "The answer is $%s$. No, sorry, it should be $%s$.",
    r"\boxed{%s}. Actually, the answer is %s.",
    "Answer: %s\n\nOn second thought, it is %s.",
    r"<think>\boxed{%s}</think>\boxed{%s}",
)
"""First one answer, then another: the second counts."""

DENIALS = (
    "The answer is not $%s$.",
    "The answer is not %s.",
    "The answer isn't $%s$.",
    r"The answer is not \boxed{%s}.",
    r"It is certainly not $\boxed{%s}$",
    r"The answer cannot be \boxed{%s}.",
    "I do not know, but it can't be %s.",
    "The answer is anything but $%s$.",
    "Any number other than %s",
    r"It is not true that the answer is \boxed{%s}.",
    r"I don't think that the answer is \boxed{%s}",
    r"\boxed{%s} is wrong.",
    r"\boxed{%s}. No, that is incorrect.",
    r"\boxed{%s} is not the answer.",
    r"\boxed{\ne %s}",
    r"\boxed{x \neq %s}",
    r"\boxed{\text{not } %s}",
    r"\boxed{%s \text{ is wrong}}",
    r"$x \ne %s$",
    r"\boxed{%s}. Wait, the answer is not %s.",
)
THOUGHTS = (
    r"<think>It is \boxed{%s}.</think>",
    r"<think>It is \boxed{%s}.</think> I am done.",
    r"<think>It is \boxed{%s}.",
    r"It is \boxed{%s}.</think>",
    "<think>The answer is %s</think>\n",
    r"<thinking>\boxed{%s}</thinking>",
    r"<think>a</think><think>\boxed{%s}",
)
DUMPS = (
    r"\boxed{%s} or \boxed{31}",
    r"\boxed{31}, \boxed{%s}, \boxed{32}",
    r"\boxed{%s, 31, 32}",
    r"\boxed{%s \text{ or } 31}",
    r"\boxed{\{30, %s\}}",
    r"\boxed{%s} \boxed{31} \boxed{32} \boxed{33}",
    r"\boxed{31;%s}",
    r"\boxed{%s = 31}",
    "The answer is %s or 31.",
    "The answer is %s, or maybe 31.",
    "The answer is $%s$ or perhaps $31$.",
    "Answer: %s 31 32 33",
    "Answer: 31, %s, 32",
    "%s 31",
    r"\boxed{31 %s}",
)
RIGHT_DESPITE_DENIALS = (
    r"It is not 5, so the answer is \boxed{%s}.",
    r"The number of those who do not play is \boxed{%s}.",
    r"The number that is not prime is \boxed{%s}.",
    r"Since 7 does not divide it, we get \boxed{%s}.",
    r"The answer is \boxed{%s}, not \boxed{31}.",
    r"The answer is \boxed{%s} rather than \boxed{31}.",
    "The answer is not 31, but %s.",
    r"\boxed{31} is wrong. The answer is \boxed{%s}.",
    r"\boxed{%s}. There are no other solutions.",
    r"\boxed{%s}. Note that no digit is 0, and this is not a prime.",
    r"We cannot have x = 31. Hence \boxed{%s}.",
    r"I first thought 31, which is wrong: \boxed{%s}",
    r"It is \boxed{%s}. I put it inside \boxed{}, as you asked.",
)
LISTS = (
    (r"\{2, 9\}", r"\boxed{2} and \boxed{9}", 1.0),
    (r"\{2, 9\}", r"$\boxed{9}$, $\boxed{2}$", 1.0),
    (r"\{2, 9\}", r"\boxed{2} \boxed{9}", 0.0),
    (r"\{2, 9\}", "The answers are $2$ and $9$.", 1.0),
    ("2, 9", r"\boxed{(2, 9)}", 0.0),
    ("2, 9", r"\boxed{9, 2}", 1.0),
    (r"\{2, 9\}", r"\boxed{2} or \boxed{9} or \boxed{4}", 0.0),
)


PROBLEMS = (
    ("(-1, 3)", "|x-1|<2"),
    ("(-1, 3)", "-3<x-2<1"),
    (r"(-\infty,2)\cup(3,\infty)", "x^2-5x+6>0"),
    (r"\{2, 3\}", "x^2-5x+6=0"),
    (r"x \ge 3", r"x-3 \ge 0"),
    ("1<x<3", "2<2x<6"),
    ("x=3", "2x+1=7"),
    ("x=2, y=1", "x+y=3, x-y=1"),
)
"""Equations and inequalities with their solutions: who only copies the problem has not solved it."""


OTHER_VALUES = (
    *(r"9\mathrm{0}", r"9\text{ plus one}", r"9\text{ hundred}", r"9\mathrm{^2}", r"9\mathrm{\pi}", r"9\mathrm{i}"),
    *(r"9\text{ dozen}", r"9\text{ (or 4)}", "7=9", "1=2=9", r"7\equiv 9", r"x=7 \lor x=9", r"x=7 \Rightarrow x=9"),
)
"""What is in a box with a 9 and is not 9."""
NINES = (
    *(r"\textcolor{blue}{9}", r"\color{red}{9}", r"\large 9", r"9\ (\mathrm{mod}\ 13)", r"9\text{ apples}"),
    *("4+5=9", "x+y=9", r"\frac{18}{2}=9", r"x \equiv 9 \pmod{13}", r"9\text{ square units}"),
)
GUESSES = (
    *("It is either 8 or 9", "It is between 8 and 9", "It differs from 9", "It is unequal to 9", "It is far from $9$"),
    *("It cannot be determined; 9", "1 2 3 4 5 6 7 8 9", "at least 9", "The answer is at most 9.", "It lies near 9"),
    *("It is unclear whether it is 9", "Is it 9?", r"\boxed{}9", "So f(x) = x² + 9."),
)
UNBOXED = (
    *(("3000000", reply) for reply in ("The answer is 3 million.", "3 million", "$3$ million")),
    *(("1000000", reply) for reply in ("one million (1,000,000)", "1 million")),
    *(("x^2+1", reply) for reply in ("The answer is x²+1.", "x²+1", "So f(x) = x² + 1.")),
    *((r"\text{No}", reply) for reply in ("No.", "The answer is no.")),
    *(("(3, 4)", "The point is (3, 4)."), ("42", "```\n42\n```"), ("42", "Is it 42? Yes.")),
)
"""Expected answers, and right replies without a box."""
INTERVALS = (r"x > -1 \text{ and } x < 3", "]-1,3[", r"\big(-1,3\big)")
CHECKED = (
    r"\boxed{9}, since 8 is not 9.",
    "\\boxed{9}\n\nLet me verify: 5+5 is 10, not 9. But 4+5=9. OK.",
    "It is 9.",
)


def transcripts() -> Iterator[Transcript]:
    for expected, (equal, different) in NOTATIONS.items():
        for number, notation in enumerate(equal):
            yield Transcript("notation", expected, BOXES[number % len(BOXES)] % notation, 1.0)
            yield Transcript("notation", expected, STATEMENTS[number % len(STATEMENTS)] % notation, 1.0)
        for number, notation in enumerate(different):
            yield Transcript("near miss", expected, BOXES[number % len(BOXES)] % notation, 0.0)
            yield Transcript("near miss", expected, STATEMENTS[number % len(STATEMENTS)] % notation, 0.0)
    for answer in ("17", r"\frac{3}{8}", "-204", r"6\pi"):
        for form in CORRECTIONS:
            yield Transcript("wrong, then right", answer, form % ("12", answer), 1.0)
            yield Transcript("right, then wrong", answer, form % (answer, "12"), 0.0)
        yield from (Transcript("denied", answer, form.replace("%s", answer), 0.0) for form in DENIALS)
        yield from (Transcript("thought", answer, form.replace("%s", answer), 0.0) for form in THOUGHTS)
        yield from (Transcript("several answers", answer, form.replace("%s", answer), 0.0) for form in DUMPS)
        yield from (
            Transcript("right despite a denial", answer, form.replace("%s", answer), 1.0)
            for form in RIGHT_DESPITE_DENIALS
        )
    yield from (Transcript("list", *each) for each in LISTS)
    yield from (Transcript("another value", "9", f"\\boxed{{{box}}}", 0.0) for box in OTHER_VALUES)
    yield from (Transcript("notation", "9", f"\\boxed{{{box}}}", 1.0) for box in NINES)
    yield from (Transcript("notation", expected, reply, 1.0) for expected, reply in UNBOXED)
    yield from (Transcript("guess", "9", guess, 0.0) for guess in GUESSES)
    yield from (Transcript("notation", "(-1,3)", f"\\boxed{{{box}}}", 1.0) for box in INTERVALS)
    yield from (Transcript("right despite a denial", "9", reply, 1.0) for reply in CHECKED)
    for solution, problem in PROBLEMS:
        yield from (Transcript("copied problem", solution, form % problem, 0.0) for form in (*BOXES, *STATEMENTS))

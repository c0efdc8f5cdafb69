"""Scripted solutions of tasks, which act as a model does: by the tools alone, on what they show."""

import re
from collections.abc import Awaitable, Callable

from tests.browser.chromium import Player

Solution = Callable[[Player, str], Awaitable[object]]
QUOTED = re.compile(r'"([^"]*)"')


def named(role: str, name: str) -> str:
    """The beginning of an element's line."""
    return f'{role} "{name}"'


async def click_first(role: str, page: Player, goal: str) -> None:
    await page.click(f"- {role} ")


async def click_quoted(role: str, page: Player, goal: str) -> None:
    await page.click(named(role, QUOTED.findall(goal)[0]))


async def click_one(page: Player, _: str) -> None:
    await page.click(named("button", "ONE"))


async def click_one_and_two(page: Player, goal: str) -> None:
    await click_one(page, goal)
    await page.click(named("button", "TWO"))


async def close_dialog(page: Player, _: str) -> None:
    await page.click(named("button", "Close"))


async def choose_from_list(role: str, page: Player, goal: str) -> None:
    wanted = goal.removeprefix("Select ").partition(" from")[0]
    await page.do("select", ref=page.ref(f"- {role} "), options=re.split(", ", wanted))
    await submit(page)


async def check(role: str, page: Player, goal: str) -> None:
    for name in re.split(", ", goal.removeprefix("Select ").removesuffix(" and click Submit.")):
        if name != "nothing":
            await page.click(named(role, name))
    await submit(page)


async def expand(page: Player, _: str) -> None:
    await page.click("Section #")
    await submit(page)


async def enter(text: str, page: Player) -> None:
    await page.do("fill", ref=page.ref("- textbox"), text=text)
    await submit(page)


async def enter_quoted(page: Player, goal: str) -> None:
    text = QUOTED.findall(goal)[0]
    await enter(text.lower() if "lower case" in goal else text.upper() if "upper case" in goal else text, page)


async def enter_date(page: Player, goal: str) -> None:
    month, day, year = re.findall(r"\d+", goal)
    await enter(f"{year}-{month}-{day}", page)


async def enter_time(page: Player, goal: str) -> None:
    hour, minute, half = re.findall(r"(\d+):(\d+) (AM|PM)", goal)[0]
    await enter(f"{int(hour) % 12 + 12 * (half == 'PM'):02}:{minute}", page)


async def fill_fields(page: Player, goal: str) -> None:
    texts = QUOTED.findall(goal) * 2
    for ref, text in zip(page.refs("- textbox"), texts, strict=False):
        await page.do("fill", ref=ref, text=text)
    await page.click("- button ")


async def find_word(page: Player, goal: str) -> None:
    number = int(re.findall(r"\d+", goal)[0])
    await enter(re.findall(r"[\w']+", page.text("- paragraph"))[number - 1], page)


async def focus(page: Player, goal: str) -> None:
    number = re.findall(r"\d+", goal) or ["1"]
    await page.do("click", ref=page.refs("- textbox")[int(number[0]) - 1])


async def copy_and_paste(page: Player, goal: str) -> None:
    number = re.findall(r"(\d)\w\w text area", goal) or ["1"]
    fields = page.refs("- textbox")
    await page.do("click", ref=fields[int(number[0]) - 1])
    for keys in ("Control+a", "Control+c"):
        await page.do("press", keys=keys)
    await page.do("click", ref=fields[-1])
    await page.do("press", keys="Control+v")
    await submit(page)


async def click_tab(page: Player, goal: str) -> None:
    await page.click(f'link "{re.findall("Tab #[0-9]", goal)[0]}"')


async def read_table(page: Player, goal: str) -> None:
    cells = re.findall(r'cell "([^"]*)"', page.seen)
    await enter(cells[cells.index(goal.removeprefix("Enter the value of ").partition(" into")[0]) + 1], page)


async def compute(page: Player, _: str) -> None:
    first, sign, second = re.findall(r": (\d+) ([-+*x×]) (\d+) =", page.seen)[0]
    a, b = int(first), int(second)
    await enter(str({"+": a + b, "-": a - b}.get(sign, a * b)), page)


async def solve(page: Player, _: str) -> None:
    left, sign, right, result = re.findall(r": (x|\d+) ([-+]) (x|\d+) = (-?\d+)", page.seen)[0]
    total = int(result)
    if left == "x":
        answer = total - int(right) if sign == "+" else total + int(right)
    else:
        answer = total - int(left) if sign == "+" else int(left) - total
    await enter(str(answer), page)


async def transform(page: Player, _: str) -> None:
    shown = page.seen.partition("Type the text below")[2].partition("textbox")[0]
    await enter("".join(re.findall(r'\]: "?(\w)"?$', shown, re.MULTILINE)), page)


async def ascend(page: Player, _: str) -> None:
    positions = await page.positions("text")
    for number in sorted(positions, key=int):
        x, y = positions[number]
        await page.do("click_at", x=x, y=y)


async def find_link(page: Player, goal: str) -> None:
    x, y = (await page.positions("span"))[QUOTED.findall(goal)[0]]
    await page.do("click_at", x=x, y=y)


async def buy(page: Player, goal: str) -> None:
    prices = [int(price) for price in re.findall(r"Book for \$(\d+)", page.seen)]
    times = [60 * int(hours) + int(minutes) for hours, minutes in re.findall(r"(\d+)h (\d+)m", page.seen)]
    ranked = prices if "cheapest" in goal else times
    await page.click(f"Book for ${prices[ranked.index(min(ranked))]}")


async def click_widget(page: Player, goal: str) -> None:
    roles = {"text": "textbox", "textarea": "textbox", "button": "button", "radio": "radio", "checkbox": "checkbox"}
    await page.click(f"- {roles[QUOTED.findall(goal)[0]]} ")


async def guess(page: Player, _: str) -> None:
    for number in range(10):
        await page.do("fill", ref=page.ref("- spinbutton"), text=str(number))
        await submit(page)
        if "has ended" in page.seen:
            return


async def odd_or_even(page: Player, _: str) -> None:
    numbers = re.findall(r': "?(-?\d+)"?$', page.seen, re.MULTILINE)
    for place, number in enumerate(numbers):
        name = named("button", "Even" if int(number) % 2 == 0 else "Odd")
        await page.do("click", ref=page.refs(name)[place])
    await submit(page)


async def click_greatest(page: Player, _: str) -> None:
    cards = re.findall(r'\[ref=(e\d+)\] \[cursor=pointer\]: "(\d+)"', page.seen)
    await page.do("click", ref=max(cards, key=lambda card: int(card[1]))[0])
    await submit(page)


async def spin(page: Player, goal: str) -> None:
    await page.do("fill", ref=page.ref("- spinbutton"), text=re.findall(r"-?\d+", goal)[0])
    await submit(page)


async def fill_sequence(page: Player, goal: str) -> None:
    radio, text, field = re.findall(r"the (\d)\w\w radio.*\"(-?\d+)\" into the (\d)", goal)[0]
    await page.do("click", ref=page.refs("- radio")[int(radio) - 1])
    await page.do("fill", ref=page.refs("- textbox")[int(field) - 1], text=text)
    await submit(page)


async def submit(page: Player) -> None:
    await page.click('button "Submit"')


def on(role: str, solution: Callable[[str, Player, str], Awaitable[object]]) -> Solution:
    async def solve(page: Player, goal: str) -> None:
        await solution(role, page, goal)

    return solve


SOLUTIONS: dict[str, Solution] = {
    "ascending-numbers": ascend,
    "buy-ticket": buy,
    "choose-list": on("combobox", choose_from_list),
    "click-button": on("button", click_quoted),
    "click-button-sequence": click_one_and_two,
    "click-checkboxes": on("checkbox", check),
    "click-checkboxes-large": on("checkbox", check),
    "click-checkboxes-transfer": on("checkbox", check),
    "click-collapsible": expand,
    "click-collapsible-nodelay": expand,
    "click-dialog": close_dialog,
    "click-dialog-2": on("button", click_quoted),
    "click-link": find_link,
    "click-option": on("radio", check),
    "click-scroll-list": on("listbox", choose_from_list),
    "click-tab": click_tab,
    "click-test": on("button", click_first),
    "click-test-2": click_one,
    "click-test-transfer": click_one,
    "click-widget": click_widget,
    "copy-paste": copy_and_paste,
    "copy-paste-2": copy_and_paste,
    "enter-date": enter_date,
    "enter-password": fill_fields,
    "enter-text": enter_quoted,
    "enter-text-2": enter_quoted,
    "enter-text-dynamic": enter_quoted,
    "enter-time": enter_time,
    "find-greatest": click_greatest,
    "find-word": find_word,
    "focus-text": focus,
    "focus-text-2": focus,
    "form-sequence-2": fill_sequence,
    "guess-number": guess,
    "login-user": fill_fields,
    "odd-or-even": odd_or_even,
    "read-table": read_table,
    "simple-algebra": solve,
    "simple-arithmetic": compute,
    "text-transform": transform,
    "unicode-test": on("button", click_quoted),
    "use-spinner": spin,
}

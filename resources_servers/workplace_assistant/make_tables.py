"""Make the tables of a made-up company: `python -m resources_servers.workplace_assistant.make_tables [folder]`.

The seed is fixed, so the tables are the same each time. Rows refer to them: change them, and the rows are void."""

import csv
import sys
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from random import Random

from resources_servers.workplace_assistant.customer_tools import PRODUCTS, STATUSES
from resources_servers.workplace_assistant.tables import DIRECTORY_FILE
from resources_servers.workplace_assistant.task_tools import LISTS

FOLDER = Path(__file__).parent / "data/csv_data"
DOMAIN = "larkhill.example"
TODAY = date(2023, 11, 30)
PEOPLE = (
    *("mara.lindqvist", "tomasz.wrona", "ines.carvalho", "hiro.nakano", "abena.owusu", "lars.thorsen", "priya.menon"),
    *("diego.salas", "yara.haddad", "colin.byrne", "mei.fong", "viktor.hruby", "zuri.kamau", "elif.demir"),
    *("paolo.greco", "hana.novak", "samir.aziz", "greta.weiss", "kiri.tane", "rafael.pinto"),
)
ADDRESSES = tuple(f"{person}@{DOMAIN}" for person in PEOPLE)
SALES, BUILDERS = ADDRESSES[:6], ADDRESSES[6:]

MEETINGS = (
    *("Budget check", "Design critique", "Hiring round", "Incident review", "Launch rehearsal", "Office move"),
    *("Onboarding", "Partner call", "Planning poker", "Pricing workshop", "Release go or no-go", "Roadmap talk"),
    *("Sales huddle", "Security drill", "Support handover", "Team breakfast", "Training day", "User interviews"),
    *("Vendor meeting", "Weekly review"),
)
TASKS = {
    "Back end": ("Cache", "Index", "Migrate", "Profile", "Secure", "Shard"),
    "Front end": ("Animate", "Restyle", "Speed up", "Translate", "Simplify", "Test"),
    "Design": ("Draw", "Prototype", "Redesign", "Review", "Sketch", "Unify"),
}
SUBJECTS = {
    "Back end": ("audit log", "billing service", "job queue", "login service", "search service", "user table"),
    "Front end": ("checkout page", "help page", "landing page", "profile page", "search box", "settings page"),
    "Design": ("brand colours", "email layout", "icon set", "mobile menu", "pricing table", "sign-up form"),
}
SENTENCES = (
    "The first part is done and the rest follows this week.",
    "I am stuck and could use a second pair of eyes.",
    "Could we talk about it before the end of the week?",
    "All went well. Nothing to do for you.",
    "There is a delay of about two days, sorry for that.",
    "Please have a look and tell me what you think.",
)
FIRST_NAMES = ("Alma", "Bruno", "Clara", "Dario", "Edda", "Finn", "Gwen", "Hugo", "Ilse", "Jonas", "Kaya", "Luca")
LAST_NAMES = (
    *("Abbott", "Berger", "Conti", "Duarte", "Ekman", "Farkas", "Gruber", "Hollis", "Ivarsson", "Jansen"),
    *("Keller", "Lund", "Moreno", "Nyberg", "Orlov", "Pereira", "Quist", "Rossi", "Sandoval", "Tanaka"),
)
COMPANIES = ("brightmill", "coppergate", "fernhollow", "harbourline", "oakbridge", "silverpine")
CONTACTS = ("Had a call.", "Met at a fair.", "Saw the demo.", "Asked for a quote.", "Is on holiday.")
SOURCES = ("direct", "referral", "search engine", "social media")


def make_tables(folder: Path) -> None:
    """Write all tables."""
    chance = Random("the tables of a made-up company")
    mails = sorted(_mails(chance), key=lambda mail: mail[3])
    events = sorted(_events(chance), key=lambda event: event[2])
    tasks = sorted(_tasks(chance), key=lambda task: task[3])
    customers = sorted(_customers(chance), key=lambda customer: customer[4], reverse=True)
    processed = folder / "processed"
    header = "email_id inbox/outbox sender/recipient subject sent_datetime body"
    _write(processed / "emails.csv", header, _with_ids(chance, mails))
    header = "event_id event_name participant_email event_start duration"
    _write(processed / "calendar_events.csv", header, _with_ids(chance, events))
    header = "task_id task_name assigned_to_email list_name due_date board"
    _write(processed / "project_tasks.csv", header, _with_ids(chance, tasks))
    header = (
        "customer_id assigned_to_email customer_name customer_email customer_phone last_contact_date "
        "product_interest status follow_up_by notes"
    )
    _write(processed / "customer_relationship_manager_data.csv", header, _with_ids(chance, customers))
    header = "date_of_visit visitor_id page_views session_duration_seconds traffic_source user_engaged"
    _write(processed / "analytics_data.csv", header, _visits(chance))
    (folder / DIRECTORY_FILE).parent.mkdir(parents=True, exist_ok=True)
    (folder / DIRECTORY_FILE).write_text("\n".join(ADDRESSES), encoding="utf-8")


def _write(file: Path, header: str, rows: Iterable[Sequence[str]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(header.split())
        writer.writerows(rows)


def _with_ids(chance: Random, rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Ids from 0, in no order."""
    ids = list(range(len(rows)))
    chance.shuffle(ids)
    return [(f"{row_id:08}", *row) for row_id, row in zip(ids, rows, strict=True)]


def task_name(chance: Random, board: str) -> str:
    return f"{chance.choice(TASKS[board])} the {chance.choice(SUBJECTS[board])}"


def _moment(chance: Random, first_day: date, days: int) -> datetime:
    """A time of day between 8 and 18 on one of so many days."""
    start = datetime.combine(first_day, datetime.min.time()) + timedelta(days=chance.randrange(days), hours=8)
    return start + timedelta(seconds=chance.randrange(10 * 3600))


def _mails(chance: Random) -> Iterable[tuple[str, ...]]:
    for _ in range(500):
        address = chance.choice(ADDRESSES)
        board = chance.choice(list(TASKS))
        about = chance.choice((chance.choice(MEETINGS), f"{task_name(chance, board)}"))
        box, greeting, name = "inbox", "Hello Robin", address.split(".")[0].title()
        if chance.random() < 0.2:
            box, greeting, name = "outbox", f"Hello {name}", "Robin"
        body = f"{greeting},\\n\\nthis is about '{about}'. {chance.choice(SENTENCES)}\\n\\nBest\\n{name}"
        yield box, address, f"News on {about}", str(_moment(chance, date(2023, 10, 1), 60)), body


def _events(chance: Random) -> Iterable[tuple[str, ...]]:
    days = [date(2023, 8, 1) + timedelta(days=offset) for offset in range(143)]
    slots = [(day, half) for day in days if day.weekday() < 5 for half in range(18, 36, 3)]
    for day, half in chance.sample(slots, 300):
        start = datetime(day.year, day.month, day.day, half // 2, 30 * (half % 2))
        yield chance.choice(MEETINGS), chance.choice(ADDRESSES), str(start), chance.choice(("30", "60", "90"))


def _tasks(chance: Random) -> Iterable[tuple[str, ...]]:
    for _ in range(300):
        board = chance.choice(list(TASKS))
        due = TODAY + timedelta(days=chance.randrange(-4, 15))
        yield task_name(chance, board), chance.choice(BUILDERS), chance.choice(LISTS), str(due), board


def _customers(chance: Random) -> Iterable[tuple[str, ...]]:
    names = [(first, last) for first in FIRST_NAMES for last in LAST_NAMES]
    for first, last in chance.sample(names, 200):
        address = f"{first}.{last}@{chance.choice(COMPANIES)}.example".lower()
        phone = f"555-{chance.randrange(100, 1000)}-{chance.randrange(1000, 10000)}" if chance.random() < 0.5 else ""
        contact = TODAY - timedelta(days=chance.randrange(60))
        follow_up = contact + timedelta(days=chance.randrange(7, 30))
        notes = " ".join(f"{contact}: {chance.choice(CONTACTS)}" for _ in range(chance.randrange(4)))
        yield (
            *(chance.choice(SALES), f"{first} {last}", address, phone, f"{contact} 23:59:00"),
            *(chance.choice(PRODUCTS), chance.choice(STATUSES), f"{follow_up} 23:59:00", notes),
        )


def _visits(chance: Random) -> Iterable[tuple[str, ...]]:
    for _ in range(1000):
        day = TODAY - timedelta(days=chance.randrange(91))
        seconds = chance.randrange(1, 40)
        visitor = f"{chance.randrange(10000):04}"
        engaged = str(seconds > chance.randrange(30))
        yield str(day), visitor, str(chance.randrange(1, 20)), str(seconds), chance.choice(SOURCES), engaged


if __name__ == "__main__":
    make_tables(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)

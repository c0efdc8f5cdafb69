"""Visits to the web site, and plots of them."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from resources_servers.workplace_assistant.arguments import text
from resources_servers.workplace_assistant.tables import Office, Row

PLOTTED = (
    "total_visits",
    "session_duration_seconds",
    "user_engaged",
    "visits_direct",
    "visits_referral",
    "visits_search_engine",
    "visits_social_media",
)
PLOT_TYPES = ("bar", "line", "scatter", "histogram")


def get_visitor_information_by_id(office: Office, /, visitor_id: Any = None) -> Any:
    if not visitor_id:
        return "Visitor ID not provided."
    return [row for row in office.visits.rows if row["visitor_id"] == visitor_id] or "Visitor not found."


def create_plot(
    office: Office,
    /,
    time_min: Any = None,
    time_max: Any = None,
    value_to_plot: Any = None,
    plot_type: Any = None,
) -> Any:
    if not time_min:
        return "Start date not provided."
    if not time_max:
        return "End date not provided."
    if value_to_plot not in PLOTTED:
        return f"Value to plot must be one of {', '.join(map(repr, PLOTTED))}"
    if plot_type not in PLOT_TYPES:
        return "Plot type must be one of 'bar', 'line', 'scatter', or 'histogram'"
    path = f"plots/{time_min}_{time_max}_{value_to_plot}_{plot_type}.png"
    office.plots = office.plots.appended({"file_path": path})
    return path


def total_visits_count(office: Office, /, time_min: Any = None, time_max: Any = None) -> Any:
    return _by_date(office, time_min, time_max, len)


def engaged_users_count(office: Office, /, time_min: Any = None, time_max: Any = None) -> Any:
    return _by_date(office, time_min, time_max, lambda visits: sum(visit["user_engaged"] for visit in visits))


def traffic_source_count(
    office: Office, /, time_min: Any = None, time_max: Any = None, traffic_source: Any = None
) -> Any:
    if not traffic_source:
        return total_visits_count(office, time_min, time_max)
    return _by_date(
        office,
        time_min,
        time_max,
        lambda visits: sum(visit["traffic_source"] == traffic_source for visit in visits),
    )


def get_average_session_duration(office: Office, /, time_min: Any = None, time_max: Any = None) -> Any:
    def average(visits: list[Row]) -> float:
        return float(sum(visit["session_duration_seconds"] for visit in visits) / len(visits))

    return _by_date(office, time_min, time_max, average)


def _by_date(office: Office, time_min: Any, time_max: Any, measure: Callable[[list[Row]], float]) -> dict[str, float]:
    """Return a metric of the visits of each day, from the first day on. The limits are compared as text."""
    first, last = text(time_min or ""), text(time_max or "\U0010ffff")
    visits_of: defaultdict[str, list[Row]] = defaultdict(list)
    for visit in office.visits.rows:
        if first <= visit["date_of_visit"] <= last:
            visits_of[visit["date_of_visit"]].append(visit)
    return {date: measure(visits_of[date]) for date in sorted(visits_of)}

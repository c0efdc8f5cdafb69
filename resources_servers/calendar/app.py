"""Keep a day's calendar over a conversation: the reply shows all events, none overlapping, each where it may be."""

import json
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from nemo_gym.answers import first_part_of_last_item
from nemo_gym.base_resources_server import BaseResourcesServerConfig, BaseVerifyRequest, SimpleResourcesServer
from nemo_gym.compute import Compute
from nemo_gym.llm_api.builders import message
from resources_servers.calendar.schedule import MOST_SEARCHED, scheduled
from resources_servers.calendar.state import checked_event, is_expected


class CalendarResourcesServerConfig(BaseResourcesServerConfig, extra="forbid"):
    check_timeout_s: float = Field(default=10.0, gt=0)
    """Time limit for checking a very long reply."""


class CalendarVerifyRequest(BaseVerifyRequest):
    exp_cal_state: dict[str, Annotated[dict[str, Any], AfterValidator(checked_event)]]
    """The expected events by id: `duration`, `constraint`, `min_time` and `max_time` of each."""


class CalendarResourcesServer(SimpleResourcesServer):
    config: CalendarResourcesServerConfig

    async def verify(self, body: CalendarVerifyRequest, compute: Compute) -> float:
        text = first_part_of_last_item(body.response)
        timeout_s = self.config.check_timeout_s
        return float(
            await compute.run_if_long(is_expected, text, body.exp_cal_state, timeout_s=timeout_s, on_limit=False)
        )

    @classmethod
    def check_row(cls, row: dict[str, Any]) -> None:
        """Refuse a day without a place for everything, or with events under other ids than their own."""
        events = row["exp_cal_state"]
        if not events:
            raise ValueError("exp_cal_state is empty: every text without a calendar would be right")
        for key, event in events.items():
            if str(event.get("event_id", key)) != key:
                raise ValueError(f"the event of {key!r} in `exp_cal_state` has the event_id {event['event_id']!r}")
        if len(events) <= MOST_SEARCHED and scheduled(events) is None:
            raise ValueError("no calendar keeps to all constraints of `exp_cal_state`")

    @classmethod
    def gold_response(cls, row: dict[str, Any]) -> list[dict[str, Any]] | None:
        """A calendar in which everything has its place."""
        entries = scheduled(row["exp_cal_state"])
        return None if entries is None else [message(json.dumps(entries))]

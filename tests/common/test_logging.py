"""A thousand equal warnings are one line."""

import logging

import pytest

from nemo_gym.common.logging import RateLimitedLog


def test_events_of_a_kind_are_logged_once_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    seldom = RateLimitedLog(logging.getLogger("test"), every_s=60)
    for number in range(1000):
        seldom.warning("429", "answered %d", number)
    seldom.warning("500", "answered badly")
    assert [record.getMessage() for record in caplog.records] == ["answered 0", "answered badly"]


def test_the_next_line_tells_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    seldom = RateLimitedLog(logging.getLogger("test"), every_s=0)
    seldom._since["429"] = (float("-inf"), 41)
    seldom.warning("429", "answered %d", 7)
    assert caplog.records[0].getMessage() == "answered 7 (and 41 more like it since the last such line)"

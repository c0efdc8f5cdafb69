"""Environments in the loops of others: what fails has no score, what ends leaves nothing behind."""

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.errors import ConfigError, GymError, RolloutError
from nemo_gym.interop.environment_host import EnvironmentHost, HostedEpisode

COUNTER = PARENT_DIR / "resources_servers/example_stateful_counter/configs/stateful_counter.yaml"
WEATHER = PARENT_DIR / "resources_servers/example_simple_weather/configs/simple_weather.yaml"
PARAMS = {"input": "Hello."}


class Unreliable:
    """An environment that fails as it is told, and the pipe on which it reports."""

    def __init__(self, host: EnvironmentHost, reading: int, writing: int) -> None:
        self.host, self._reading, self._writing = host, reading, writing

    def episode(self, **fields: Any) -> HostedEpisode:
        row = {"responses_create_params": PARAMS, "events_fd": self._writing, **fields}
        return HostedEpisode(self.host, row)

    def next_event(self) -> str:
        """What is reported next."""
        event = b""
        while not event.endswith(b"\n"):
            assert select.select([self._reading], [], [], 30)[0], "nothing was reported"
            event += os.read(self._reading, 1)
        return event.decode().strip()


@pytest.fixture
def unreliable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Unreliable]:
    server = {"resources_servers": {"unreliable": {"entrypoint": "app.py", "domain": "other"}}}
    (tmp_path / "config.yaml").write_text(json.dumps({"unreliable": server}))
    monkeypatch.chdir(PARENT_DIR / "tests/servers")
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing), EnvironmentHost(tmp_path / "config.yaml") as host:
        yield Unreliable(host, reading, writing)


def test_a_session_ends_with_its_episode(unreliable: Unreliable) -> None:
    episode = unreliable.episode()
    episode.call_tool("work", {})
    assert episode.score()["reward"] == 1.0
    assert unreliable.next_event() == "ended"
    unreliable.episode().close()
    assert unreliable.next_event() == "ended"


def test_an_environment_that_fails_gives_no_score(unreliable: Unreliable) -> None:
    with pytest.raises(RolloutError, match="the seed is gone"):
        unreliable.episode(fails_in="seed")
    assert unreliable.next_event() == "ended"

    episode = unreliable.episode()
    for _attempt in range(2):
        with pytest.raises(RolloutError, match="the tool is gone"):
            episode.call_tool("lose", {})
    with pytest.raises(RolloutError, match="the tool is gone") as raised:
        episode.score()
    assert raised.value.cause == "environment"
    assert unreliable.next_event() == "ended"

    with pytest.raises(RolloutError, match="the verifier is gone"):
        unreliable.episode(fails_in="verify").score()
    assert unreliable.next_event() == "ended"


@pytest.mark.parametrize(("amount", "is_error"), [(10**30, False), ("\ud800", True)], ids=["long", "half"])
def test_strange_arguments_and_texts_do_not_end_an_episode(
    unreliable: Unreliable, amount: Any, is_error: bool
) -> None:
    episode = unreliable.episode()
    assert episode.call_tool("work", {"amount": amount}).is_error == is_error
    episode.add_message("\ud800")
    assert episode.score()["reward"] == float(not is_error)


def test_a_call_ends_when_its_caller_is_interrupted(unreliable: Unreliable) -> None:
    episode, main, interrupted = unreliable.episode(), threading.get_ident(), threading.Event()

    def handle(*_: Any) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def interrupt() -> None:
        assert unreliable.next_event() == "hangs"
        while sys._current_frames()[main].f_code.co_name != "wait":
            time.sleep(0.01)
        while not interrupted.is_set():  # Python does not see a signal that comes just before it begins to wait
            signal.pthread_kill(main, signal.SIGINT)
            interrupted.wait(0.05)

    before = signal.signal(signal.SIGINT, handle)
    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            episode.call_tool("hang", {})
        assert unreliable.next_event() == "cancelled"
        interrupting.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_closed_environment_says_so(unreliable: Unreliable) -> None:
    episode, failures = unreliable.episode(), []

    def play() -> None:
        with pytest.raises(GymError) as raised:
            episode.call_tool("hang", {})
        failures.append(str(raised.value))

    playing = threading.Thread(target=play)
    playing.start()
    assert unreliable.next_event() == "hangs"
    unreliable.host.close()
    playing.join()
    (failure,) = failures
    assert "unreliable was closed" in failure
    with pytest.raises(GymError, match="is closed"):
        unreliable.episode()


@pytest.mark.parametrize(
    ("paths", "settings", "said"),
    [
        ([], {}, "Expected one environment, but the config has none. Pass a config file"),
        (
            [COUNTER, WEATHER],
            {},
            "example_stateful_counter_resources_server, example_simple_weather. .* choose one with",
        ),
        ([COUNTER], {"environment": "other"}, "the environment 'other', but the config has example_stateful_counter"),
        ([COUNTER.with_name("no_such.yaml")], {}, "No config file '.*no_such.yaml'"),
    ],
    ids=["none", "two", "other", "no file"],
)
def test_a_config_must_have_one_environment(paths: list[Path], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        EnvironmentHost(*paths, **settings)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (None, "found None"),
        ({"input": "Hello."}, "responses_create_params: Field required; found only: input"),
        ({"responses_create_params": {}}, "input: Field required"),
        ({"responses_create_params": {**PARAMS, "tools": [{"type": "function"}]}}, "name: Field required"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(unreliable: Unreliable, row: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"The row is not valid:\n.*{said}"):
        HostedEpisode(unreliable.host, row)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("\n", "is empty, expected one row"),
        ('{"a": 1}\n{"a":\n', ":2 is not JSON"),
        (None, "No dataset '.*rows"),
    ],
    ids=["empty", "invalid", "missing"],
)
def test_what_is_wrong_with_a_dataset_is_said(
    unreliable: Unreliable, tmp_path: Path, content: str | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(GymError, match=said):
        unreliable.host.rows(str(tmp_path / "rows.jsonl"))


def test_a_row_without_tools_offers_none(unreliable: Unreliable) -> None:
    params = {**PARAMS, "tools": None}
    episode = unreliable.episode(responses_create_params=params)
    assert episode.tools == []
    episode.close()

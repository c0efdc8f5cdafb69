"""Sessions begin, are told apart, and end."""

import asyncio
import pickle

import pytest

from nemo_gym.errors import GymError, RolloutError, SessionError, UpstreamError
from nemo_gym.server.session import SESSION_ID_KEY, SessionState, SessionStore


class Pages(SessionState):
    seen: list[str] = []  # noqa: RUF012 - pydantic copies it

    def close(self) -> None:
        CLOSED.append(list(self.seen))


class Faulty(SessionState):
    def close(self) -> None:
        raise RuntimeError("no")


CLOSED: list[list[str]] = []


def store(**options: float) -> SessionStore:
    return SessionStore("server", secret=b"secret", **options)  # type: ignore[arg-type]


def test_a_token_opens_its_own_session_and_state() -> None:
    sessions = store()
    first, second = sessions.open(None), sessions.open(None)
    first.state(Pages).seen.append("a")
    assert sessions.open(first.token).state(Pages).seen == ["a"]
    assert sessions.open(second.token).state(Pages).seen == []
    assert first.data[SESSION_ID_KEY] != second.data[SESSION_ID_KEY]


def test_a_released_session_is_closed_once_and_starts_empty_under_the_same_name() -> None:
    CLOSED.clear()
    sessions = store()
    session = sessions.open(None)
    session.state(Pages).seen.append("a")
    sessions.release(session.token)
    sessions.release(session.token)
    assert CLOSED == [["a"]]
    again = sessions.open(session.token)
    assert again.data[SESSION_ID_KEY] == session.data[SESSION_ID_KEY]
    assert again.state(Pages).seen == []


def test_a_state_that_fails_to_close_does_not_keep_the_others() -> None:
    CLOSED.clear()
    sessions = store()
    session = sessions.open(None)
    session.state(Faulty)
    session.state(Pages)
    sessions.close()
    assert CLOSED == [[]]
    assert len(sessions) == 0


async def test_a_session_that_nobody_uses_ends_by_itself() -> None:
    CLOSED.clear()
    sessions = store(time_to_live_s=0.1)
    sessions.open(None).state(Pages)
    busy = sessions.open(None)
    busy.users += 1
    for _ in range(50):
        await asyncio.sleep(0.02)
        if CLOSED:
            break
    assert CLOSED == [[]]
    assert len(sessions) == 1


@pytest.mark.parametrize("tampered", ["", "x", "0.abc", "0.abc.def", "1.{id}.{mark}", "0.{id}.{mark}x", "0.{id}"])
def test_a_token_that_this_run_did_not_make_is_refused(tampered: str) -> None:
    sessions = store()
    _worker, session_id, mark = sessions.open(None).token.split(".")
    token = tampered.format(id=session_id, mark=mark)
    if token:
        with pytest.raises(SessionError):
            sessions.open(token)


def test_the_secret_of_another_run_makes_other_tokens() -> None:
    token = SessionStore("server", secret=b"other").open(None).token
    with pytest.raises(SessionError, match="was not made by this run"):
        store().open(token)


def test_a_token_names_its_worker() -> None:
    token = SessionStore("server", secret=b"secret", worker=3).open(None).token
    with pytest.raises(SessionError, match="belongs to worker 3"):
        store().open(token)


@pytest.mark.parametrize(
    "error",
    [
        RolloutError("judge", "no answer", server="judge"),
        UpstreamError("model", 429, "slow down", cause="model", retry_after_s=2.0),
        SessionError("gone"),
    ],
)
def test_errors_survive_pickling(error: GymError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)

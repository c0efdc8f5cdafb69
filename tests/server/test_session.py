"""Sessions begin, are kept apart, and end."""

import pickle

import pytest

from nemo_gym.errors import GymError, RolloutError, SessionError, SessionLostError, UpstreamError
from nemo_gym.server.session import SESSION_ID_KEY, SessionState, SessionStore
from tests.polling import until


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


def test_a_released_session_is_closed_once_and_never_comes_back() -> None:
    CLOSED.clear()
    sessions = store()
    session = sessions.open(None)
    session.state(Pages).seen.append("a")
    sessions.release(session.token)
    sessions.release(session.token)
    assert CLOSED == [["a"]]
    with pytest.raises(SessionLostError, match="ended or expired") as caught:
        sessions.open(session.token)
    assert (caught.value.cause, caught.value.code, caught.value.retryable) == ("environment", "session_lost", True)
    assert len(sessions) == 0


def test_a_session_of_an_earlier_incarnation_of_the_worker_is_lost() -> None:
    token = store().open(None).token
    restarted = store()
    with pytest.raises(SessionLostError, match="worker was restarted"):
        restarted.open(token)
    assert len(restarted) == 0


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
    unused = sessions.open(None)
    unused.state(Pages)
    busy = sessions.open(None)
    busy.users += 1
    await until(lambda: CLOSED)
    assert CLOSED == [[]]
    assert len(sessions) == 1
    with pytest.raises(SessionLostError):
        sessions.open(unused.token)


@pytest.mark.parametrize(
    "tampered", ["x", "0.abc", "0.abc.def", "1.{made}.{id}.{signature}", "0.{made}.{id}.{signature}x", "0.{made}.{id}"]
)
def test_a_token_that_this_run_did_not_make_is_refused(tampered: str) -> None:
    sessions = store()
    _worker, made, session_id, signature = sessions.open(None).token.split(".")
    with pytest.raises(SessionError) as caught:
        sessions.open(tampered.format(made=made, id=session_id, signature=signature))
    assert caught.value.code == "session_invalid"


def test_the_secret_of_another_run_makes_other_tokens() -> None:
    token = SessionStore("server", secret=b"other").open(None).token
    with pytest.raises(SessionError, match="did not issue"):
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
        SessionLostError("gone", server="counter"),
    ],
)
def test_errors_survive_pickling(error: GymError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)

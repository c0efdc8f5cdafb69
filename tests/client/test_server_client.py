"""What a program may do with the client of servers."""

import pytest

from nemo_gym.client.server_client import ServerClient


class RecordingClient(ServerClient):
    calls: list[str]


def test_a_subclass_may_declare_fields() -> None:
    assert RecordingClient(calls=["a"]).calls == ["a"]
    with pytest.raises(TypeError, match="call"):
        RecordingClient(call=["a"])

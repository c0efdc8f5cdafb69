"""Check the sessions of an environment that an environment server seeds and closes."""

from typing import Any


def check_resources_session_contract(app: Any, seed: Any, *, keeps_state: bool) -> None:
    """Raise AssertionError unless seeding twice gives one session, and closing twice or an unknown one succeeds. An
    environment that keeps state must refuse to seed a closed one."""
    from fastapi.testclient import TestClient

    body = seed if isinstance(seed, dict) else seed.model_dump(mode="json")
    close = {"resources_session_id": body["resources_session_id"], "episode_id": body["episode_id"]}
    with TestClient(app, raise_server_exceptions=False) as client:
        first, again = client.post("/seed_session", json=body), client.post("/seed_session", json=body)
        _expect(first.status_code == again.status_code == 200, f"seeding answered {first.text}, then {again.text}")
        _expect(first.json() == again.json(), "seeding again answered something else")
        _expect(first.json()["resources_session_id"] == body["resources_session_id"], "seeding answered another id")
        for _ in range(2):
            closed = client.post("/close_session", json=close)
            _expect(closed.status_code == 200, f"closing answered {closed.status_code}: {closed.text}")
        unknown = client.post("/close_session", json={**close, "resources_session_id": "never-seeded"})
        _expect(unknown.status_code == 200, f"closing an unknown session answered {unknown.text}")
        if keeps_state:
            late = client.post("/seed_session", json=body)
            _expect(late.status_code >= 400, "a closed session could be seeded again")


def _expect(is_so: bool, text: str) -> None:
    if not is_so:
        raise AssertionError(text)

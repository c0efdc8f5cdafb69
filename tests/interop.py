"""Rollouts of a random policy in environments of other packages, to compare with the package's own loop."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_gym.rollouts.collector import RolloutCollectionHelper
from nemo_gym.testing import running_servers, server_spec, servers_of
from tests.servers.responses_api_models.choosing_model.app import choice as choice

ROLLOUTS = 20
CHOOSING_MODEL = Path(__file__).parent / "servers/responses_api_models/choosing_model"


def with_choices(row: dict[str, Any], choices: Sequence[str], seed: int) -> dict[str, Any]:
    """A row for the random policy."""
    params = {"input": [], **row.get("responses_create_params", {})}
    metadata = {"choices": json.dumps(list(choices)), "seed": str(seed)}
    return {**row, "responses_create_params": {**params, "metadata": metadata}}


async def play_all(
    config: str, agent: str, rows: Sequence[dict[str, Any]], *, choices: Sequence[str] = (), **settings: Any
) -> list[dict[str, Any]]:
    """The results of all rows, in their order, played at the same time. `choices` is for rows that bring none."""
    policy: dict[str, Any] = {"folder": CHOOSING_MODEL, "choices": list(choices)}
    model = server_spec("policy_model", "responses_api_models", "choosing_model", **policy)
    servers = [each for each in servers_of(config, **_without_model(settings)) if each.name != "policy_model"]
    reference = {"type": "responses_api_agents", "name": agent}
    results: dict[int, dict[str, Any]] = {}
    async with running_servers([*servers, model]) as client:
        numbered = [{**row, "agent_ref": reference, "_rowidx": index} for index, row in enumerate(rows)]
        for future in RolloutCollectionHelper().run_examples(numbered, client=client):
            row, result = await future
            results[row["_rowidx"]] = result
    return [results[index] for index in range(len(rows))]


def _without_model(settings: dict[str, Any]) -> dict[str, Any]:
    """A model that the config refers to must be there; the random policy replaces it."""
    scripted = {"entrypoint": "app.py", "replies": [{"say": ""}]}
    return {"policy_model": {"responses_api_models": {"scripted_model": scripted}}, **settings}

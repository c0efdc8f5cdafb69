"""Ask agents for the figures of their rollouts, and write them beside the output.

Only agents whose environment computes figures of its own are asked: ours are in the metrics file already.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from nemo_gym.client.server_client import ServerClient
from nemo_gym.common.atomic_files import write_json
from nemo_gym.common.redaction import MASKED_FIELD
from nemo_gym.config.keys import AGENT_REF_KEY_NAME, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.config.tree import nodes
from nemo_gym.config.types import is_server_ref
from nemo_gym.errors import AggregationError
from nemo_gym.llm_api.base import JsonObject
from nemo_gym.rollouts.output_files import aggregate_metrics_path
from nemo_gym.rollouts.repeated_lines import RepeatedLines, SeenRollouts
from nemo_gym.rollouts.types import METADATA_FIELDS, REPEAT_INDEX_KEY_NAME, task_index_of
from nemo_gym.server.aggregate_metrics import AggregateMetrics, AggregateMetricsRequest

logger = logging.getLogger(__name__)

MAX_RECORDS = 200_000
"""Of one agent. More of them would be one request too large to answer."""
_DROPPED = METADATA_FIELDS | {
    *("responses_create_params", "ng_agent_observations", "ng_model_call_capture", "ng_trajectory")
}
"""What is no figure of the environment."""


async def write_aggregate_metrics(
    output: Path,
    client: ServerClient,
    *,
    agent_name: str | None,
    always: bool = False,
    inputs: Sequence[Path] = (),
) -> Path | None:
    """Write the figures of every agent that has its own, or with `always` of every agent. The records are in `inputs`,
    or else in the output. Raises AggregationError if that fails."""
    try:
        agents = [agent_name] if agent_name else client.names("responses_api_agents")
        own = [agent for agent in agents if not always and await _has_own_metrics(client, agent)]
        by_agent = (
            _records_by_agent(_records(inputs or [output], warn=bool(inputs)), agent_name) if always or own else {}
        )
        found = [await _figures(client, agent, by_agent[agent]) for agent in by_agent if always or agent in own]
    except Exception as error:
        raise AggregationError(f"The aggregate metrics of {output} are not computed: {error}") from error
    if not found:
        return None
    write_json(aggregate_metrics_path(output), found)
    return aggregate_metrics_path(output)


async def _has_own_metrics(client: ServerClient, agent: str) -> bool:
    for server in (agent, *_environments_of(client.setting(agent))):
        reply = await client.get(server, "/aggregate_metrics")
        if reply.status == 200 and (await reply.json()).get("has_own_metrics"):
            return True
    return False


def _environments_of(block: Any) -> list[str]:
    """The environments that an agent's block refers to."""
    refs = (is_server_ref(value) for _, value in nodes(block))
    return [ref.name for ref in refs if ref is not None and ref.type == "resources_servers"]


async def _figures(client: ServerClient, agent: str, records: list[JsonObject]) -> JsonObject:
    if len(records) > MAX_RECORDS:
        raise ValueError(f"'{agent}' has {len(records)} records, more than {MAX_RECORDS}")
    request = AggregateMetricsRequest(verify_responses=records)
    figures = await client.call(agent, "/aggregate_metrics", request, answer=AggregateMetrics)
    return {AGENT_REF_KEY_NAME: {"name": agent}, **figures.model_dump()}


def _records_by_agent(all_records: Iterable[JsonObject], agent_name: str | None) -> dict[str, list[JsonObject]]:
    """The stripped records of each agent, by task and rollout index."""
    found: dict[str, list[JsonObject]] = {}
    masked = 0
    for record in all_records:
        masked += MASKED_FIELD in record
        reference = record.get(AGENT_REF_KEY_NAME)
        agent = agent_name or (reference.get("name") if isinstance(reference, dict) else None)
        if agent is not None:
            found.setdefault(agent, []).append(_stripped(record))
    if masked:
        logger.warning(
            "secrets are masked in %d records: figures that are computed from their texts may be wrong", masked
        )
    for records in found.values():
        records.sort(key=lambda record: (record[TASK_INDEX_KEY_NAME], record[ROLLOUT_INDEX_KEY_NAME]))
    return found


def _stripped(record: JsonObject) -> JsonObject:
    response = record.get("response")
    usage = {"response": {"usage": response["usage"]}} if isinstance(response, dict) and response.get("usage") else {}
    kept = {name: value for name, value in record.items() if name not in _DROPPED and name != "response"}
    indices = {
        TASK_INDEX_KEY_NAME: task_index_of(record) or 0,
        ROLLOUT_INDEX_KEY_NAME: record.get(ROLLOUT_INDEX_KEY_NAME, record.get(REPEAT_INDEX_KEY_NAME)) or 0,
    }
    return {**kept, **usage, **indices}


def _records(paths: Iterable[Path], *, warn: bool) -> Iterator[JsonObject]:
    """The records of each file, each rollout once."""
    for path in paths:
        seen, repeated = SeenRollouts(), RepeatedLines()
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                record = orjson.loads(line) if line.strip() else None
                if record is not None and seen.is_repeated(record):
                    repeated.add(number)
                elif record is not None:
                    yield record
        if warn:
            repeated.warn(path)

"""What all workers of a run agree on: which servers share a process, how many workers serve
them, and what session tokens are signed with."""

import hmac
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from nemo_gym.compute.pool import available_cores
from nemo_gym.config.server_spec import ServerSpec
from nemo_gym.config.types import check_num_workers
from nemo_gym.errors import ConfigError
from nemo_gym.runtime.venvs import VenvSettings, python_for

NUM_WORKERS_KEY_NAME = "num_workers"


def session_secret(token: str | None) -> str:
    """What session tokens are signed with: made for each run, the same in all its workers."""
    if token is None:
        return secrets.token_hex(32)
    return hmac.digest(token.encode(), b"nemo-gym session tokens", "sha256").hex()


class Group(NamedTuple):
    """Servers that share a process."""

    python: str
    """The interpreter that they run in."""
    servers: list[ServerSpec]
    is_shared: bool = False
    """True for the group of all servers that need no process and no interpreter of their own."""


def grouped(instances: Sequence[ServerSpec], venvs: VenvSettings | None = None) -> list[Group]:
    """The servers by process, the shared one first. Slow if a virtualenv has to be made."""
    shared: list[ServerSpec] = []
    groups: list[Group] = []
    for instance in instances:
        python = python_for(instance.folder, venvs)
        if python is None and instance.isolation == "shared":
            shared.append(instance)
        else:
            groups.append(Group(python or sys.executable, [replace(instance, isolation="process")]))
    return [Group(sys.executable, shared, is_shared=True), *groups] if shared else groups


def shared_servers(groups: Sequence[Group]) -> list[ServerSpec]:
    """Those that a worker from outside holds."""
    if not groups or not groups[0].is_shared:
        raise ConfigError("No server of this configuration can share a process, so a worker that joins has none.")
    return groups[0].servers


def worker_count(config: Mapping[str, Any], servers: Sequence[ServerSpec]) -> int:
    """The largest number that one of the servers asks for, else the run's `num_workers`, else 1."""
    own = [
        _count(server.config[NUM_WORKERS_KEY_NAME], f"{server.config_path}.{NUM_WORKERS_KEY_NAME}")
        for server in servers
        if server.config.get(NUM_WORKERS_KEY_NAME) is not None
    ]
    wanted = config.get(NUM_WORKERS_KEY_NAME)
    return max(own) if own else 1 if wanted is None else _count(wanted, NUM_WORKERS_KEY_NAME)


def _count(value: Any, key: str) -> int:
    try:
        return available_cores() if check_num_workers(value) == "auto" else int(value)
    except ValueError as error:
        raise ConfigError(f"{key} is {value!r}; {error}.") from error

"""How many workers serve a group of servers that share a process."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.config.server_spec import ServerSpec
from nemo_gym.config.types import check_num_workers
from nemo_gym.errors import ConfigError

NUM_WORKERS_KEY_NAME = "num_workers"


def worker_count(config: Mapping[str, Any], servers: Sequence[ServerSpec]) -> int:
    """The largest number that one of the servers asks for, else the run's `num_workers`, else 1."""
    own = [
        _count(server.config[NUM_WORKERS_KEY_NAME], f"{server.config_path}.{NUM_WORKERS_KEY_NAME}")
        for server in servers
        if server.config.get(NUM_WORKERS_KEY_NAME) is not None
    ]
    wanted = config.get(NUM_WORKERS_KEY_NAME)
    return max(own) if own else 1 if wanted is None else _count(wanted, NUM_WORKERS_KEY_NAME)


def available_cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


def _count(value: Any, key: str) -> int:
    try:
        return available_cores() if check_num_workers(value) == "auto" else int(value)
    except ValueError as error:
        raise ConfigError(f"{key} is {value!r}; {error}.") from error

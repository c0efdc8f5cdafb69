"""A NeMo Gym environment for the package verifiers: its rows are the taskset, tools and verifier run here, and
verifiers runs harness and model."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nemo_gym.episodes import import_extra
from nemo_gym.interop.environment_host import EnvironmentHost, check_row
from nemo_gym.server.tools import with_tools


def verifiers_environment(
    *config_paths: str | Path, rows_path: str | Path | None = None, **settings: Any
) -> tuple[type, type]:
    """Return a `Taskset` and an `Env`. Export them in `__all__` of your own module, whose name is then the id of the
    taskset. The environment starts in this process with its first task."""
    vf = import_extra("verifiers.v1", extra="verifiers")
    theirs = import_extra("verifiers.v1.tasksets.nemo_gym", extra="verifiers")
    dialect = import_extra("verifiers.v1.dialects.responses", extra="verifiers").ResponsesDialect()
    hosts: list[EnvironmentHost] = []

    def host() -> EnvironmentHost:
        if not hosts:
            hosts.append(EnvironmentHost(*config_paths, serves_http=True, **settings))
        return hosts[0]

    class NeMoGymConfig(theirs.NeMoGymConfig):  # type: ignore[misc,name-defined]
        dataset: Any = rows_path

    class NeMoGymTaskset(theirs.NeMoGymTaskset, vf.Taskset[theirs.NeMoGymTask, NeMoGymConfig]):  # type: ignore[misc,name-defined]
        def load(self) -> Iterator[Any]:
            path = self.config.dataset
            for number, row in enumerate(host().rows(None if path is None else str(path))):
                played = with_tools(check_row(row, what=f"Row {number}"), host().tools)
                prompt = dialect.parse_request(played["responses_create_params"]).messages
                task = theirs.NeMoGymData(name=f"{host().name}:{number}", prompt=prompt, row=played)
                yield theirs.NeMoGymTask(task, self.config.task)

    class NeMoGymEnv(theirs.NeMoGymEnv):  # type: ignore[misc,name-defined]
        async def start(self) -> None:
            self.taskset.config.task.resources_url = (await asyncio.to_thread(host)).url

        async def stop(self) -> None:
            while hosts:
                await asyncio.to_thread(hosts.pop().close)

    return NeMoGymTaskset, NeMoGymEnv

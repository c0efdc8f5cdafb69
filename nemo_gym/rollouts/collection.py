"""A collection with its servers: those of the configuration are started, or those of a running `ng_run` are used."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym.errors import SetupError
from nemo_gym.rollouts.collector import Report, RolloutCollectionHelper
from nemo_gym.rollouts.config import RolloutCollectionConfig
from nemo_gym.rollouts.metrics import RunningMetrics
from nemo_gym.rollouts.progress import Progress
from nemo_gym.runtime.connect import connect_servers


@dataclass(frozen=True)
class Collection:
    """Servers, rows and the output of a collection."""

    config: DictConfig
    options: RolloutCollectionConfig
    classes: Mapping[str, type[Any]] = field(default_factory=dict)
    """Classes that are in no folder, by the name of their server."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Hashes of these classes."""
    check_rows: Callable[["Collection"], None] | None = None
    """Raises an error that lists invalid rows before the first model call. By default, each of them has no result."""

    names_in_messages: Mapping[str, str] = field(default_factory=dict)
    """What the user has set in place of a configuration key, such as an environment variable."""

    async def run(self, helper: RolloutCollectionHelper, report: Report) -> RunningMetrics:
        """Make all rollouts that are missing."""
        async with connect_servers(self.config, self.classes) as client:
            settings: Any = OmegaConf.to_container(client.global_config_dict, resolve=True)
            if self.check_rows is not None and client.local:
                self.check_rows(self)
            if isinstance(report, Progress):
                report.start()
            try:
                return await helper.run_from_config(
                    self.options, client=client, settings=settings, code=self.code, report=report
                )
            except SetupError as error:
                raise SetupError(_reworded(str(error), self.names_in_messages)) from error


def _reworded(text: str, names: Mapping[str, str]) -> str:
    for key, name in names.items():
        text = re.sub(rf"\b{key}\b", lambda _, name=name: name, text)  # type: ignore[misc]
    return text

"""Processes with limits and no confinement, for code you trust. Never chosen by `auto`; a config must name it."""

import logging
from typing import Any, ClassVar

from nemo_gym.sandbox.contract import Level, Limits, SandboxSpec
from nemo_gym.sandbox.landlock import folder_launch
from nemo_gym.sandbox.launcher import ForkServer, Launch
from nemo_gym.sandbox.local import LocalProvider
from nemo_gym.sandbox.runtime import Runtime

logger = logging.getLogger(__name__)


class UnconfinedProvider(LocalProvider):
    name: ClassVar[str] = "unconfined"
    level: ClassVar[Level] = "none"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        logger.warning("sandbox provider 'unconfined': model-written code can read your files and use the network")

    def launch(self, spec: SandboxSpec, limits: Limits, runtime: Runtime, server: ForkServer | None = None) -> Launch:
        return folder_launch(self, limits, runtime, server)

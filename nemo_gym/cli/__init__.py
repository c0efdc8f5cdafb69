"""The commands, one file for each family. Importing this imports none of them."""

from typing import Any

from nemo_gym.cli.commands import COMMANDS, exit_if_interrupted
from nemo_gym.common.lazy_exports import lazy_attributes

_load = lazy_attributes(
    __name__,
    {
        "main": "nemo_gym.cli.app:main",
        **{command.function: f"nemo_gym.cli.{command.target}" for command in COMMANDS.values()},
        "RunConfig": "nemo_gym.cli.servers:RunConfig",
        "RunHelper": "nemo_gym.cli.servers:RunHelper",
        "TestConfig": "nemo_gym.cli.environments:TestConfig",
        "TestAllConfig": "nemo_gym.cli.environments:TestAllConfig",
        "PipListConfig": "nemo_gym.cli.info:PipListConfig",
        "VersionConfig": "nemo_gym.cli.info:VersionConfig",
        "GlobalConfigDictParserConfig": "nemo_gym.compat.global_config:GlobalConfigDictParserConfig",
        "ServerInstanceDisplayConfig": "nemo_gym.runtime.head_server:ServerInstanceDisplayConfig",
    },
)


def __getattr__(name: str) -> Any:
    with exit_if_interrupted():
        return _load(name)

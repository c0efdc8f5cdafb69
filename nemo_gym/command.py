"""TEMPORARY"""

import functools
import sys
from collections.abc import Callable
from typing import Any

from nemo_gym.errors import ConfigError, GymError
from nemo_gym.log import set_up_logging


def command(kind: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def wrap(function: Callable[[], None]) -> Callable[[], None]:
        @functools.wraps(function)
        def run() -> None:
            set_up_logging()
            try:
                function()
            except GymError as error:
                sys.stderr.write(f"{error}\n")
                sys.exit(2 if isinstance(error, ConfigError) else 1)
            except KeyboardInterrupt:
                sys.exit(130)

        return run

    return wrap


def read_command_line(*, fill_ports: bool = True) -> Any:
    from nemo_gym.global_config import load_config

    return load_config(sys.argv[1:], fill_ports=fill_ports)

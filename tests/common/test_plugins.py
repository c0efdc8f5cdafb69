"""What outer packages register for the core."""

import tomllib

import pytest

from nemo_gym.common.paths import PARENT_DIR
from nemo_gym.common.plugins import GROUP, plugin
from nemo_gym.errors import StartupError

REGISTERED = tomllib.loads((PARENT_DIR / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]


@pytest.mark.parametrize("name", REGISTERED)
def test_what_is_registered_can_be_loaded(name: str) -> None:
    found = plugin(name)
    assert found.__name__ == REGISTERED[name].rpartition(":")[2]


def test_what_is_not_registered_is_an_error_that_names_it() -> None:
    with pytest.raises(StartupError, match="'teleport'"):
        plugin("teleport")

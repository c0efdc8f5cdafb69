import signal
from collections.abc import Iterator

import pytest

from nemo_gym.config.secrets import process_secrets, set_process_secrets

signal.signal(signal.SIGINT, signal.default_int_handler)
"""What a shell starts in the background ignores Ctrl+C, and so does all that it starts itself."""


@pytest.fixture(autouse=True)
def _secrets_of_one_test() -> Iterator[None]:
    """Loading a configuration makes its secrets known to the process; the next test has none of them."""
    before = process_secrets()
    yield
    set_process_secrets(before)

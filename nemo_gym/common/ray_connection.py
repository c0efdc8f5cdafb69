"""The connection of this process to a Ray cluster. Nothing imports Ray unless it is asked for."""

import threading
from typing import Any

from nemo_gym.errors import MissingExtraError

RAY_KEY_NAME = "ray"
_lock = threading.Lock()


def import_ray() -> Any:
    """The module `ray`, or an error that says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("Running on Ray", "ray") from error
    return ray


def connect_ray(address: str | None = None) -> str:
    """Connect this process, unless it is connected: to the cluster at `address`, or to a new one on this machine.
    Returns the address by which other processes connect. Blocks for seconds."""
    ray = import_ray()
    with _lock:
        if not ray.is_initialized():
            new = {} if address else {"include_dashboard": False}
            ray.init(address=address, ignore_reinit_error=True, log_to_driver=True, **new)
    found: str = ray.get_runtime_context().gcs_address
    return address or found

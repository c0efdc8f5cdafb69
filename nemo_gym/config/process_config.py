"""The configuration of the run that this process belongs to, for code that asks a global function for it.

Set once, by whoever owns the process: a worker, or a command that holds servers itself."""

from typing import Any

_settings: dict[str, Any] | None = None


def set_process_config(settings: dict[str, Any]) -> None:
    """Let `get_global_config_dict()` answer with these settings in this process."""
    global _settings  # noqa: PLW0603 - that is what this module is for
    _settings = settings


def process_config() -> dict[str, Any] | None:
    """What was published, if anything."""
    return _settings

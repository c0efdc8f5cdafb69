"""What all workers of a run agree on: which servers share a process, and what session tokens are signed with."""

import hmac
import secrets
import sys
from collections.abc import Sequence
from dataclasses import replace

from nemo_gym.config.loading import ServerSpec
from nemo_gym.runtime.venvs import VenvSettings, python_for


def session_secret(token: str | None) -> str:
    """What session tokens are signed with: made for each run, the same in all its workers."""
    if token is None:
        return secrets.token_hex(32)
    return hmac.digest(token.encode(), b"nemo-gym session tokens", "sha256").hex()


def grouped(instances: Sequence[ServerSpec], venvs: VenvSettings | None = None) -> list[tuple[str, list[ServerSpec]]]:
    """The servers that share a process, by interpreter. Slow if a virtualenv has to be made."""
    shared: list[ServerSpec] = []
    groups: list[tuple[str, list[ServerSpec]]] = []
    for instance in instances:
        python = python_for(instance.folder, venvs)
        if python is None and instance.isolation == "shared":
            shared.append(instance)
        else:
            groups.append((python or sys.executable, [replace(instance, isolation="process")]))
    return [(sys.executable, shared), *groups] if shared else groups


def is_shared(python: str, group: Sequence[ServerSpec]) -> bool:
    """True for the group of servers that share a process of this interpreter."""
    return python == sys.executable and group[0].isolation == "shared"

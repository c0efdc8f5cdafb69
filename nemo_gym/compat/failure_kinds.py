"""The kinds of failure that verify responses and episodes of the public NeMo Gym name."""

import re

from nemo_gym.compat.episodes import FailureStage as FailureStage

JUDGE_FAILED = "judge_failed"
VERIFIER_ERROR = "verifier_error"
FAILURE_KINDS = frozenset(
    (
        *("transport_unreachable", "transport_peer_drop", "transport_timeout", "transport_local_resource"),
        *("agent_run_error", "agent_request_failed", "agent_timeout", "agent_command_not_allowed"),
        *(JUDGE_FAILED, "judge_unparseable", VERIFIER_ERROR),
        *("provider_unavailable", "provider_quota_exhausted", "provider_oom_killed"),
        *("session_lost", "session_expired", "session_release_failed"),
        *("cancelled", "kill_shaped", "shutdown", "persistence_failed", "cohort_incomplete"),
    )
)
_NAMESPACED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*:[A-Za-z0-9][A-Za-z0-9._-]*")


def is_registered(kind: str) -> bool:
    """True for a kind that all servers share."""
    return kind in FAILURE_KINDS


def is_namespaced(kind: str) -> bool:
    """True for a server's own kind, `<server>:<kind>`."""
    return _NAMESPACED.fullmatch(kind) is not None


def validate_failure_kind(kind: str | None) -> str | None:
    """Return the kind, if it is shared or a server's own."""
    if kind is None or is_registered(kind) or is_namespaced(kind):
        return kind
    raise ValueError(f"{kind!r} is neither a registered kind of failure nor one of a server, '<server>:<kind>'")

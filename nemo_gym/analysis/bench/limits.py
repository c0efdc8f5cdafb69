"""What saturates first: each resource as a share of its limit."""

from nemo_gym.analysis.bench.measure import Measured
from nemo_gym.analysis.bench.watch import Machine

SATURATED = 0.85
"""A share of a limit above which more load makes everything slower."""


def shares_of_limits(measured: Measured, machine: Machine) -> dict[str, float]:
    """How much of each limit was used at the peak."""
    own, endpoint = measured.usage, measured.endpoint_usage
    return {
        "one event loop": own.busiest_process,
        "all cores": (own.cores + endpoint.cores) / machine.cores,
        "memory": (own.memory_mb + endpoint.memory_mb) / machine.memory_mb,
        "open files": own.open_files / machine.open_files,
        "the simulated endpoint": endpoint.busiest_process,
    }


def first_limit(shares: dict[str, float], measured: Measured) -> str:
    """The resource that is used up first, in words."""
    name = max(shares, key=lambda resource: shares[resource])
    if shares[name] >= SATURATED:
        return f"{name} ({shares[name]:.0%})"
    if measured.usage.busy_machine >= SATURATED:
        return f"other work on this machine ({measured.usage.busy_machine:.0%} of all cores are busy)"
    if measured.most_in_flight < 0.95 * min(measured.point.in_flight, measured.point.rollouts):
        return f"none; {measured.most_in_flight:,} were in flight at most (next: {name}, {shares[name]:.0%})"
    return f"none: the model's latency (next: {name}, {shares[name]:.0%})"

"""Limits on the time of code that the framework runs for others."""

WALL_TIME_FACTOR, MIN_WALL_TIMEOUT_S = 10, 60.0


def wall_limit_s(cpu_s: float) -> float:
    """The limit on wall-clock time that goes with one on CPU time: ten times as much, at least 60 s. Generous, since
    each process is slower on a machine with more processes than cores."""
    return max(WALL_TIME_FACTOR * cpu_s, MIN_WALL_TIMEOUT_S)

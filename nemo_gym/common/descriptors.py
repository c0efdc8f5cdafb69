"""File descriptors are budgeted: connections in and out of a process share its limit on open files.

Over the budget, outgoing requests wait and incoming ones are refused with a reason. Without it the operating system
would refuse either kind, and reset connections that it has accepted."""

import logging
import resource

logger = logging.getLogger(__name__)

RESERVED = 96
"""For output files, imports, DNS, listening sockets, pipes and worker processes."""
INBOUND_SHARE = 8
"""One eighth is kept for incoming connections; outgoing ones may take the rest."""
MIN_INBOUND = 2
"""Minimum of incoming connections: a collector calls an agent and its environment."""
MIN_CONNECTIONS = 6
"""With a limit below what is reserved. A process with few connections needs less than that."""
MAX_CONNECTIONS = 2**20
DESCRIPTORS_PER_LOCAL_ROLLOUT = 1
"""If this process holds the servers: a connection to the model. One to a judge waits if all are in use."""
DESCRIPTORS_PER_REMOTE_ROLLOUT = 3
"""When the servers run in workers, which usually have the same limit: there a rollout holds the connection from this
process, one to its model and one to a server in another process."""


class OpenConnections:
    """Open outgoing connections, in use or idle."""

    outbound = 0


open_connections = OpenConnections()


def connection_budget() -> int:
    """Return the number of connections that this process may have in all."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(MIN_CONNECTIONS, soft - RESERVED)


def outbound_limit() -> int:
    """Return the number of outgoing connections that this process may have at once."""
    budget = connection_budget()
    return budget - max(MIN_INBOUND, budget // INBOUND_SHARE)


def limit_to_descriptors(wanted: int, *, per_rollout: int) -> int:
    """Reduce a number of rollouts in flight to what the file descriptors allow, and log a reduction."""
    affordable = max(1, outbound_limit() // per_rollout)
    if affordable < wanted:
        logger.warning(
            "At most %d rollouts in flight instead of %d: this process may open %d files. Raise the limit with "
            "`ulimit -n`.",
            affordable,
            wanted,
            resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )
    return min(wanted, affordable)

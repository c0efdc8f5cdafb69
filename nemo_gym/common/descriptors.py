"""File descriptors are budgeted: connections in and out of a process share its limit on open files.

Over the budget, outgoing requests wait and incoming ones are refused with a reason. Without it the operating system
would refuse either kind, and reset connections that it has accepted."""

import resource

RESERVED = 96
"""For output files, imports, DNS, listening sockets, pipes and worker processes."""
INBOUND_SHARE = 8
"""One eighth is kept for incoming connections; outgoing ones may take the rest."""
MIN_INBOUND = 2
"""However few there are: a collector asks an agent and its environment."""
MIN_CONNECTIONS = 6
"""With a limit below what is reserved. A process with few connections needs less than that."""
MAX_CONNECTIONS = 2**20


class OpenConnections:
    """Open outgoing connections, in use or idle."""

    outbound = 0


open_connections = OpenConnections()


def connection_budget() -> int:
    """How many connections this process may have in all."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(MIN_CONNECTIONS, soft - RESERVED)


def outbound_limit() -> int:
    """How many outgoing connections this process may have at once."""
    budget = connection_budget()
    return budget - max(MIN_INBOUND, budget // INBOUND_SHARE)

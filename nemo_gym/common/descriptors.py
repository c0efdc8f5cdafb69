"""File descriptors are budgeted: connections in and out of a process share its limit on open files.

Over its share, a request that goes out waits for a place, and one that comes in is refused with a reason. Without a
budget the operating system would refuse whoever comes next, and reset connections that it has accepted."""

import resource

RESERVED = 96
"""For output files, imports, DNS, listening sockets, pipes and worker processes."""
INBOUND_SHARE = 8
"""One part in so many is kept for connections that come in; those that go out may take the rest."""
MAX_CONNECTIONS = 2**20


class OpenConnections:
    """How many connections that go out are open, used and idle ones."""

    outbound = 0


open_connections = OpenConnections()


def connection_budget() -> int:
    """How many connections this process may have in all."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(4, soft - RESERVED)


def outbound_limit() -> int:
    """How many connections that go out this process may have at once."""
    budget = connection_budget()
    return budget - budget // INBOUND_SHARE

"""A Ray cluster of several nodes on this machine, in a process of its own: `python -m tests.ray_nodes 3`.

It prints the address, then kills a node for each line that it reads, and all of them when standard input is closed."""

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.polling import until_sync

CPUS, MEMORY = 2, 80 * 2**20
TRIES = 5


@contextmanager
def only_one_cluster() -> Iterator[None]:
    """Wait for the other tests with a cluster: a node of Ray gives up if its agent takes 15 seconds to start."""
    with Path(tempfile.gettempdir(), f"nemo_gym_tests_ray_{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def started_nodes(count: int) -> tuple[Any, list[Any]]:
    """A cluster whose nodes all have their agents, one after the other, so that they need not share the cores."""
    from ray.cluster_utils import Cluster

    for _ in range(TRIES):
        cluster = Cluster()
        nodes: list[Any] = []
        try:
            while len(nodes) < count:
                nodes.append(cluster.add_node(num_cpus=CPUS, object_store_memory=MEMORY, include_dashboard=False))
                if not has_agent(nodes[-1]):
                    break
            else:
                return cluster, nodes
        except Exception as error:
            if "timed out during startup" not in str(error):  # after 30 seconds, which no setting changes
                raise
        cluster.shutdown()  # type: ignore[no-untyped-call]
    raise AssertionError(f"no cluster in {TRIES} tries")


def has_agent(node: Any) -> bool:
    """Wait for the agent of a node. False if the node has given up."""
    port = Path(node.get_session_dir_path(), f"metrics_agent_port_{node.node_id}")
    until_sync(lambda: port.exists() or node.dead_processes())
    return port.exists()


def main() -> None:
    with only_one_cluster():
        cluster, nodes = started_nodes(int(sys.argv[1]))
        try:
            print(cluster.address, flush=True)
            for _ in sys.stdin:
                cluster.remove_node(nodes.pop(), allow_graceful=False)
                print("removed", flush=True)
        finally:
            cluster.shutdown()


if __name__ == "__main__":
    main()

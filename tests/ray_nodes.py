"""A Ray cluster of several nodes on this machine, in a process of its own: `python -m tests.ray_nodes 3`.

It prints the address, then kills a node for each line that it reads, and all of them when standard input is closed."""

import sys

from ray.cluster_utils import Cluster

CPUS, MEMORY = 2, 80 * 2**20


def main() -> None:
    first = {"num_cpus": CPUS, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=first)
    others = [cluster.add_node(num_cpus=CPUS, object_store_memory=MEMORY) for _ in range(int(sys.argv[1]) - 1)]
    try:
        print(cluster.address, flush=True)
        for _ in sys.stdin:
            cluster.remove_node(others.pop(), allow_graceful=False)
            print("removed", flush=True)
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()

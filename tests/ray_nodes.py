"""A Ray cluster of two nodes on this machine, as a program of its own: tells its address, kills a node when asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # it listens on the loopback alone

from ray.cluster_utils import Cluster


def pids(parent: int) -> list[int]:
    """Find the processes that a process has started, and theirs."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False)
    children = [int(word) for word in listed.stdout.split()]
    return [pid for child in children for pid in [child, *pids(child)]]


def main() -> None:
    """Start the nodes; on every line of input kill the second one and all that runs on it."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    print(json.dumps({"address": cluster.address}), flush=True)
    for _ in sys.stdin:
        raylet = second.all_processes["raylet"][0].process.pid
        killed = [raylet, *pids(raylet)]
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        print(json.dumps({"killed": killed}), flush=True)
    cluster.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()

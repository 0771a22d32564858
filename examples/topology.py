"""Parts of this machine, workers to run on it, and a DGX-1 for comparison.

    python examples/topology.py

`backhaul topology` prints the same in a shell. A plan is data: `backhaul.dask.LocalCluster(plan=…)`
starts it, each worker on its own CPUs and memory.
"""

from __future__ import annotations

from pathlib import Path

from backhaul import topology

#: What `nvidia-smi topo -m` prints on a DGX-1
RECORDED = Path(__file__).parents[1] / "crates/topology/tests/fixtures/dgx-1.nvidia-smi.txt"


def show(machine: topology.Machine, policy: topology.Policy) -> None:
    plan = machine.plan(policy)
    print(f"{policy}: {len(plan.workers)} workers")
    for worker in plan.workers:
        memory = f"{worker.memory_bytes / 1e9:.0f} GB" if worker.memory_bytes else "no limit"
        print(f"  {worker.name}: {len(worker.cpus)} CPUs, {worker.threads} threads, {memory}")
        print(f"    {worker.why}")


def main() -> None:
    show(topology.discover(), "per-numa")
    show(topology.load(RECORDED), "per-gpu")


if __name__ == "__main__":
    main()

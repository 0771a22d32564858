"""Tasks that take a GPU and no CPU, each told which GPU is its own.

    python examples/resources.py

Needs no GPU: units of a resource are numbers that no two tasks hold at once, whatever they stand
for. docs/guides/gpus-as-resources.md has the rest.
"""

from __future__ import annotations

import time
from itertools import pairwise

from distributed import Client

from backhaul.dask import LocalCluster, resource_id, resources


# The thread waits for the GPU nearly all of the time, so it takes no core away from other tasks.
@resources(GPU=1, CPU=0)
def kernel(n: int) -> tuple[object, float, float]:
    """Tell which unit it was given, and when it began and ended."""
    begin = time.monotonic()
    time.sleep(0.01)
    return resource_id("GPU"), begin, time.monotonic()


def main() -> None:
    with (
        # One worker, one thread; and yet two kernels run at once, as there are two GPUs.
        LocalCluster(
            n_workers=1, threads_per_worker=1, resources={"GPU": 2}, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        results = client.gather(client.map(kernel, range(8)))

    for unit in (0, 1):
        spans = sorted((begin, end) for gpu, begin, end in results if gpu == unit)
        # No other task had it meanwhile.
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
        print(f"GPU {unit}: {len(spans)} kernels, one after another")


if __name__ == "__main__":
    main()

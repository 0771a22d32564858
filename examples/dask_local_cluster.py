"""A Dask cluster of two worker processes, which share memory in the place of sockets.

    python examples/dask_local_cluster.py

The one change to a program of Dask's is ``protocol="backhaul"``.
"""

from __future__ import annotations

import dask.array as da
from distributed import Client, LocalCluster

from backhaul.dask import lanes, transfers


def main() -> None:
    with (
        LocalCluster(
            protocol="backhaul", n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        x = da.ones((2000, 2000), chunks=(500, 500))
        print("sum:", (x + x.T).sum().compute())

        # How workers reach each other, and what has come over each link.
        print("lanes:", set(lanes(client).values()))
        frame = transfers(client)
        print(frame.groupby("lane", observed=True)[["messages", "bytes"]].sum())


if __name__ == "__main__":
    main()

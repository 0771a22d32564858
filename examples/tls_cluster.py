"""An encrypted Dask cluster, with certificates that are made for this run.

    python examples/tls_cluster.py

Needs `cryptography`, which makes the certificates. On several hosts they are files, named by the
configuration or on the command line: docs/guides/encryption.md.
"""

from __future__ import annotations

from distributed import Client, LocalCluster
from distributed.security import Security

import dask


def main() -> None:
    security = Security.temporary()
    # Within a host data goes through shared memory once TLS has proved the peer. Here it is kept
    # on the socket, so that all of it is encrypted, as between hosts.
    dask.config.set({"distributed.comm.backhaul.lanes": ["tls"]})
    with (
        LocalCluster(
            protocol="backhaul",
            security=security,
            n_workers=1,
            threads_per_worker=1,
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        assert client.submit(sum, [1, 2, 3]).result() == 6
        infos = client.run(lambda dask_worker: dask_worker.batched_stream.comm.extra_info)
        for address, info in infos.items():
            print(address, "speaks", info["cipher"])


if __name__ == "__main__":
    main()

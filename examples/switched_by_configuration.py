"""A program of Dask's that knows nothing of Backhaul, switched from outside.

    python examples/switched_by_configuration.py

runs itself once more with a variable set, as you would in a shell:

    DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME=backhaul python program.py

docs/guides/switching.md has the other ways: a file, one call, each kind of deployment.
"""

from __future__ import annotations

import os
import subprocess
import sys


def program() -> None:
    """Be any program: it names no protocol."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        assert client.submit(sum, [1, 2, 3]).result() == 6
        print(cluster.scheduler_address)


def main() -> None:
    environment = {**os.environ, "DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME": "backhaul"}
    command = [sys.executable, __file__, "program"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("backhaul://"), done.stdout
    print("unchanged, and at", done.stdout.strip())


if __name__ == "__main__":
    if sys.argv[1:]:
        program()
    else:
        main()

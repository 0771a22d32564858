"""``python -m tests.dask.worker_core --seeds 1000``, from the root of the repository."""

from __future__ import annotations

import os
import sys

from .differential import main

if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets list their members by hashes: a seed is to mean one stream always.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    sys.exit(main(sys.argv[1:]))

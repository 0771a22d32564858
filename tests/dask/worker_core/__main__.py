"""``python -m tests.dask.worker_core --seeds 1000``, from the root of the repository."""

from __future__ import annotations

import os
import sys

from . import differential


def main() -> int:
    """Run what `differential` does, where hashes of texts are always the same."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets list their members by hashes: a seed is to mean one stream always.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    return differential.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())

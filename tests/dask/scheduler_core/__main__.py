"""``python -m tests.dask.scheduler_core --seeds 100``, from the root of the repository."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Callable

from .pinned import pin


@functools.cache
def load() -> None:
    """Import what `main` runs, with upstream's sets in order."""
    pin()
    from . import differential, directed  # noqa: F401


def main() -> int:
    """Run what `differential` does, where hashes of texts are always the same."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The dependencies of a node are a frozenset, in the order of hashes: a seed is to mean one
        # stream always.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    load()
    from . import differential, directed

    if sys.argv[1:] == ["--directed"]:
        return asyncio.run(_directed(directed.run_all))
    return asyncio.run(differential.main(sys.argv[1:]))


async def _directed(run_all: Callable[[], list[str]]) -> int:
    # Callbacks of upstream's objects need a loop.
    found = run_all()
    for wrong in found:
        print(wrong)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

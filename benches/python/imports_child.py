"""The measured process of ``imports``: ``… BEFORE MODULE``; prints seconds of CPU time."""

from __future__ import annotations

import importlib
import sys
import time

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Import two modules, and measure the second one.

    Parameters
    ----------
    argv : list of str
        Their names.

    Returns
    -------
    int
        Exit status.
    """
    before, module = argv
    importlib.import_module(before)
    start = time.process_time()
    importlib.import_module(module)
    sys.stdout.write(f"{time.process_time() - start}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

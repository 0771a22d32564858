"""Compares the cores in Rust with the state machines of a release of Dask, on random events.

    python -m tests.dask.release_streams FOLDER [--seeds 200]

FOLDER holds ``dask`` and ``distributed`` of that release, as ``make dask-release`` installs them.
Each harness runs in a process that imports these, and a line says whether the core agrees with the
release. Patches whose sources were not read are put in place here, so that the release can be
compared before its digests are added. Ends with 1 where a core does not agree, else 0.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["STREAMS", "main"]

ROOT: Final = Path(__file__).resolve().parents[2]

#: Seconds for each harness, whatever else the machine does
_TIMEOUT_S: Final = 1800

#: Lines that a harness that fails is shown with
_LINES: Final = 20


@dataclass(frozen=True)
class Streams:
    """One harness, with its options."""

    name: str
    module: str
    options: tuple[str, ...] = ()

    def report(self, folder: Path, seeds: int) -> tuple[bool, str]:
        """Run the harness with a release; return whether the core agrees, and what to print."""
        command = [sys.executable, "-m", self.module, "--seeds", str(seeds), *self.options]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT)))}
        try:
            ended = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False, f"{self.name}: not ended within {_TIMEOUT_S} s"
        if ended.returncode == 0:
            return True, f"{self.name}: agrees on {seeds} streams"
        lines = ended.stdout.splitlines()
        is_error = any(line.startswith("Traceback") for line in lines)
        # A traceback ends with its reason; of a difference the first lines tell most.
        shown = lines[-_LINES:] if is_error else lines[:_LINES]
        verdict = "cannot be compared" if is_error else "DIFFERS"
        return False, "\n    ".join([f"{self.name}: {verdict}", *shown])


#: All that is compared
STREAMS: Final = (
    Streams("scheduler core", "tests.dask.scheduler_core"),
    Streams("scheduler core, with conversions", "tests.dask.scheduler_core", ("--convert",)),
    Streams("scheduler core, with resources", "tests.dask.scheduler_core", ("--ask",)),
    Streams("worker core", "tests.dask.worker_core", ("--unread",)),
)


def main(arguments: list[str] | None = None) -> int:
    """Run each harness, and say whether the cores agree."""
    parser = argparse.ArgumentParser(
        prog="release_streams", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path, help="holds dask and distributed of that release")
    parser.add_argument("--seeds", type=int, default=200, help="streams of each harness")
    chosen = parser.parse_args(arguments)
    folder = chosen.folder.resolve()
    agree = True
    for streams in STREAMS:
        agrees, said = streams.report(folder, chosen.seeds)
        print(said, flush=True)
        agree = agree and agrees
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())

"""``store``: what an object costs that processes share by name, beside a copy in one process."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import click
import numpy as np

import backhaul

__all__ = ["main"]

_NAME = "backhaul-bench"
_GETS = 1_000_000
#: Another process reads the object for the first time, touches each page, and prints the seconds
_PEER = f"""
import time, backhaul
start = time.perf_counter()
backhaul.get({_NAME!r})[::512].sum()
print(time.perf_counter() - start)
"""


@click.command("store")
@click.option("--mib", default=256, show_default=True, help="Size of the array.")
@click.option("--repetitions", default=5, show_default=True)
def main(mib: int, repetitions: int) -> None:
    """Measure backhaul.put and backhaul.get."""
    array = np.ones(mib << 17)
    copies, puts, peers = [], [], []
    try:
        for _ in range(repetitions):
            copies.append(_seconds(array.copy))
            puts.append(_seconds(lambda: backhaul.put(_NAME, array, replace=True)))
            found = subprocess.run(
                [sys.executable, "-c", _PEER], capture_output=True, text=True, check=True
            )
            peers.append(float(found.stdout))
        backhaul.get(_NAME)
        gets = _seconds(lambda: [backhaul.get(_NAME) for _ in range(_GETS)].clear())
    finally:
        backhaul.remove(_NAME)
    for label, seconds in (
        ("copy in this process", copies),
        ("put", puts),
        ("first get of another process", peers),
    ):
        median_s = statistics.median(seconds)
        click.echo(f"{label:30}{array.nbytes / median_s / 1e9:8.2f} GB/s")
    click.echo(f"{'further gets':30}{_GETS / gets / 1e6:8.2f} million a second")


def _seconds(call: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s

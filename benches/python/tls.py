"""``tls``: what encryption costs, beside Dask's own comms.

A process for each kind of comm answers requests with an array; this one asks each in turn, so that
what else the machine does is shared by all of them. On the loopback interface: our two are kept
from shared memory.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from distributed.comm import connect
from rich.table import Table

from backhaul._machine import Machine, installed_versions
from backhaul._output import open_console, print_machine
from backhaul_bench.option_types import SizeType
from benches.python.certificates import make_files, security_of

__all__ = ["main"]

#: By scheme, the lane that there is
_KINDS = {"tcp": "tcp", "backhaul": "tcp", "tls": "tls", "backhaul+tls": "tls"}

_TIMEOUT_S = 60.0


@click.command("tls")
@click.option("--size", type=SizeType(), default="1MiB", show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True)
@click.option("--requests", type=click.IntRange(1), default=50, show_default=True)
def main(size: int, rounds: int, requests: int) -> None:
    """Time requests that are answered with an array, encrypted and not. Needs `cryptography`."""
    console = open_console(wide=True)
    print_machine(console, Machine.here(), installed_versions("backhaul", "distributed"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(folder)
        times = asyncio.run(_measure(folder, size, rounds, requests))
    table = Table(
        title=f"\n{size} bytes for a request, medians of {rounds} rounds of {requests}",
        title_justify="left",
    )
    table.add_column("comm")
    for column in ("µs", "GB/s", "range, GB/s", "times Dask's tls"):
        table.add_column(column, justify="right")
    of_dask_s = statistics.median(times["tls"])
    for scheme, taken_s in times.items():
        median_s = statistics.median(taken_s)
        table.add_row(
            scheme,
            f"{median_s * 1e6:.0f}",
            f"{size / median_s / 1e9:.2f}",
            f"{size / max(taken_s) / 1e9:.2f} to {size / min(taken_s) / 1e9:.2f}",
            f"{of_dask_s / median_s:.2f}",
        )
    console.print(table)


async def _measure(folder: Path, size: int, rounds: int, requests: int) -> dict[str, list[float]]:
    """Seconds for a request, by scheme and round."""
    processes = []
    # Held: our comms look the certificates up there.
    security = security_of(folder)
    comms: dict[str, Any] = {}
    try:
        for scheme, lane in _KINDS.items():
            process = subprocess.Popen(
                [sys.executable, "-m", "benches.python.tls_child", scheme, str(folder), str(size)],
                env={**os.environ, "DASK_DISTRIBUTED__COMM__BACKHAUL__LANES": f"['{lane}']"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            arguments = security.get_connection_args("client") if "tls" in scheme else {}
            comms[scheme] = await connect(address, timeout=_TIMEOUT_S, **arguments)
        times: dict[str, list[float]] = {scheme: [] for scheme in comms}
        for number in range(rounds + 1):
            for scheme, comm in comms.items():
                began = time.perf_counter()
                for _ in range(requests):
                    await comm.write({"op": "get"})
                    answer = await comm.read()
                    assert answer["data"].nbytes == size
                # The first round is there to warm up.
                if number:
                    times[scheme].append((time.perf_counter() - began) / requests)
        for comm in comms.values():
            await comm.close()
    finally:
        for process in processes:
            process.communicate("over\n", timeout=_TIMEOUT_S)
    return times

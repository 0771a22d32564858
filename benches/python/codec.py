"""``codec``: Dask's messages to frames and back, by our codec and by Dask's own, in turn.

Each round writes and reads every message with both, so that what else happens on the machine meets
both. The garbage collector is on, as in a scheduler.
"""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import click
from distributed.protocol import core
from rich.table import Table

from backhaul._machine import Machine, installed_versions
from backhaul._output import open_console, print_machine
from backhaul.dask.serialize import codec
from backhaul_bench.summary import Spread, spread

__all__ = ["Row", "main", "run"]


@dataclass(frozen=True)
class Row:
    """One kind of message: microseconds per message, medians over rounds and the extremes."""

    message: str
    #: Messages that were sent together
    batch: int
    dask_write_us: Spread
    dask_read_us: Spread
    our_write_us: Spread
    our_read_us: Spread
    #: Median of writing and reading with Dask's over the median with ours
    speedup: float


def run(*, rounds: int = 31, round_messages: int = 200) -> list[Row]:
    """Measure both codecs.

    Parameters
    ----------
    rounds : int
        How often each message is measured with each codec.
    round_messages : int
        Messages written, and read, in one of these measurements; at least one batch.

    Returns
    -------
    list of Row
        One for each kind of message and size of batch.
    """
    rows = []
    for name, make in _messages().items():
        for batch in (1, 100):
            message = [make(i) for i in range(batch)]
            repeats = max(1, round_messages // batch)
            dask, ours = [], []
            for _ in range(rounds):
                dask.append(_once(core.dumps, core.loads, message, repeats))
                ours.append(_once(codec.dumps, codec.loads, message, repeats))
            both = [
                spread([write + read for write, read in found]).median for found in (dask, ours)
            ]
            rows.append(
                Row(
                    message=name,
                    batch=batch,
                    dask_write_us=spread([write for write, _ in dask]),
                    dask_read_us=spread([read for _, read in dask]),
                    our_write_us=spread([write for write, _ in ours]),
                    our_read_us=spread([read for _, read in ours]),
                    speedup=both[0] / both[1],
                )
            )
    return rows


def _once(
    dumps: Callable[[Any], Any], loads: Callable[[Any], Any], message: list[Any], repeats: int
) -> tuple[float, float]:
    """Write and read a message, giving microseconds per message in it."""
    frames = dumps(message)
    # A comm reads into memory of its own, which is writable.
    received = [memoryview(bytearray(frame)) for frame in frames]
    start = perf_counter()
    for _ in range(repeats):
        dumps(message)
    written = perf_counter()
    for _ in range(repeats):
        loads(received)
    read = perf_counter()
    scale = 1e6 / (repeats * len(message))
    return (written - start) * scale, (read - written) * scale


def _messages() -> dict[str, Callable[[int], dict[str, Any]]]:
    from dask._task_spec import Task, TaskRef
    from distributed.protocol.serialize import ToPickle

    # A function that no import finds, as those of a notebook.
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def from_notebook(x, y): return x + y + offset\noffset = 1", namespace)

    def compute_task(function: Callable[..., object]) -> Callable[[int], dict[str, Any]]:
        def make(number: int) -> dict[str, Any]:
            key = f"inc-{number:032x}"
            dependency = f"load-{number:032x}"
            return {
                "op": "compute-task",
                "key": key,
                "run_id": number,
                "priority": (0, 1, number),
                "stimulus_id": f"compute-task-{1.7e9 + number}",
                "who_has": {dependency: ("tcp://127.0.0.1:40001",)},
                "nbytes": {dependency: 28},
                "run_spec": ToPickle(Task(key, function, TaskRef(dependency), 5)),
                "resource_restrictions": {},
                "actor": False,
                "annotations": {},
                "span_id": "4c2f9a40-0000-4000-8000-000000000000",
            }

        return make

    def task_finished(number: int) -> dict[str, Any]:
        return {
            "op": "task-finished",
            "key": f"inc-{number:032x}",
            "run_id": number,
            "nbytes": 28,
            "type": pickle.dumps(int),
            "typename": "int",
            "metadata": {},
            "thread": 140_000_000_000_000,
            "startstops": ({"action": "compute", "start": 1.7e9, "stop": 1.7e9 + 1},),
            "stimulus_id": f"task-finished-{1.7e9 + number}",
            "status": "OK",
        }

    return {
        "compute-task, imported function": compute_task(operator.add),
        "compute-task, function of __main__": compute_task(namespace["from_notebook"]),
        "task-finished": task_finished,
    }


@click.command("codec")
@click.option("--rounds", type=click.IntRange(1), default=31, show_default=True)
def main(rounds: int) -> None:
    """Compare the codec of messages with Dask's own."""
    console = open_console(wide=True)
    print_machine(console, Machine.here(), installed_versions("backhaul", "dask", "distributed"))
    table = Table(title="\nµs a message, medians", title_justify="left")
    table.add_column("message")
    for column in ("batch", "Dask writes", "reads", "ours writes", "reads", "times as fast"):
        table.add_column(column, justify="right")
    for row in run(rounds=rounds):
        spreads = (row.dask_write_us, row.dask_read_us, row.our_write_us, row.our_read_us)
        cells = [f"{each.median:.2f}" for each in spreads]
        table.add_row(row.message, f"{row.batch}", *cells, f"{row.speedup:.1f}")
    console.print(table)

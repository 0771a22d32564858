"""Measures the cost of a task in upstream's scheduler, as ``scheduler_growth`` of crates/dask.

``python -m tests.dask.scheduler_core.growth map 10000 2`` from the root of the repository prints a
row of that table: a graph comes, and every task is finished as soon as it is sent. Times are of the
processor. Sets are Python's own here.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import time
from collections import deque
from typing import Any

from .events import Event, Graph, GraphTask
from .upstream import Upstream

#: Width of each block of all-to-all
WIDTH = 50


def graph_of(shape: str, tasks: int) -> Graph:
    """Make the same graphs as ``scheduler_growth``."""
    inputs: dict[str, tuple[str, ...]] = {}
    if shape == "map":
        inputs = {f"inc-{number:032x}": () for number in range(tasks)}
        wanted = tuple(inputs)
    elif shape == "tree":
        level = [f"('leaf-{1:024}', {number})" for number in range(tasks // 2)]
        inputs = dict.fromkeys(level, ())
        depth = 0
        while len(level) > 1:
            depth += 1
            pairs = [tuple(level[place : place + 2]) for place in range(0, len(level), 2)]
            level = [
                f"('sum-{chr(97 + depth % 26)}-{1:022}', {number})" for number in range(len(pairs))
            ]
            inputs.update(zip(level, pairs, strict=True))
        wanted = tuple(level)
    else:
        wanted = ()
        for block in range(tasks // (2 * WIDTH)):
            split = tuple(f"('split{block}', {number:020})" for number in range(WIDTH))
            gather = tuple(f"('gather{block}', {number:020})" for number in range(WIDTH))
            inputs.update(dict.fromkeys(split, ()))
            inputs.update(dict.fromkeys(gather, split))
            wanted += gather
    nodes = {key: GraphTask(names, order) for order, (key, names) in enumerate(inputs.items())}
    return Graph(tasks=nodes, wanted=wanted, client="client")


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


async def main(shape: str, tasks: int, workers: int) -> None:
    """Print one row."""
    upstream = Upstream({})
    upstream.apply(Event("client_added", "", {"client": "client"}), 1.0)
    for number in range(workers):
        host = f"10.0.{number // 250}.{number % 250}"
        joins: dict[str, Any] = {
            "address": f"tcp://{host}:9000",
            "name": f"worker {number}",
            "host": host,
            "nthreads": 1,
            "memory_limit": 2**33,
            "status": "running",
            "resources": {},
            "bandwidth_bytes_per_s": 1e8,
        }
        upstream.apply(Event("worker_added", "", joins), 1.0)
    graph = graph_of(shape, tasks)
    tasks = len(graph.tasks)
    state = upstream.state
    inbox: deque[tuple[str, dict[str, Any]]] = deque()
    for _, address, stream in upstream.streams:
        stream.send = _into(inbox, address)  # type: ignore[method-assign]
    gc.collect()
    before_bytes = resident_bytes()
    began = time.process_time()
    vars(sys.modules["distributed.scheduler"])["set"] = set
    upstream.apply(Event("graph", "stimulus", {"graph": graph}), 2.0)
    graph_us = (time.process_time() - began) / tasks * 1e6
    assert upstream.refusal is None, upstream.refusal
    done = 0
    fifths = []
    began = time.process_time()
    while inbox:
        address, message = inbox.popleft()
        if message["op"] != "compute-task":
            continue
        start = 1e9 + done * 1e-3
        state.handle_task_finished(
            key=message["key"],
            worker=address,
            run_id=message["run_id"],
            nbytes=28,
            type=b"int",
            typename="int",
            metadata={},
            thread=0,
            startstops=[{"action": "compute", "start": start, "stop": start + 1e-3}],
            stimulus_id="stimulus",
            status="OK",
        )
        done += 1
        if done % max(1, tasks // 5) == 0:
            fifths.append((time.process_time() - began) * 1e6)
    finished_us = (time.process_time() - began) / tasks * 1e6
    assert done == tasks, (done, tasks)
    gc.collect()
    grown_bytes = (resident_bytes() - before_bytes) // tasks
    each = [(b - a) * 5 / tasks for a, b in zip([0.0, *fifths], fifths, strict=False)]
    print(
        f"| {shape} | {tasks} | {workers} | {graph_us:.0f} | {finished_us:.0f} |"
        f" {' '.join(f'{us:.0f}' for us in each)} | {grown_bytes} |"
    )
    upstream.close()


def _into(inbox: deque[Any], address: str) -> Any:
    return lambda *messages: inbox.extend((address, message) for message in messages)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))

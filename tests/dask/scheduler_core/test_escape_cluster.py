"""A live scheduler of Dask's goes on from what was a core, and a core is made of one at rest."""

from __future__ import annotations

import asyncio
import operator
import pickle
import time
from typing import Any

from dask._task_spec import Task, TaskRef
from distributed import Client, Future, Scheduler, Worker
from distributed.protocol.serialize import ToPickle
from distributed.utils_test import gen_cluster

from backhaul._native import SchedulerCore
from backhaul.dask.scheduler.core import adopt, register_stealable, write_into

NODES = {
    "one-1": Task("one-1", operator.add, 0, 1),
    "two-1": Task("two-1", operator.add, 1, 1),
    "sum-1": Task("sum-1", operator.add, TaskRef("one-1"), TaskRef("two-1")),
    "ratio-1": Task("ratio-1", operator.truediv, TaskRef("sum-1"), 0),
}


class Pickled:
    """Payloads that are pickles."""

    def key(self, text: str) -> str:
        return text

    def run_spec(self, text: str, payload: bytes) -> Any:
        return pickle.loads(payload)

    def annotations(self, text: str, payload: bytes) -> Any:
        return pickle.loads(payload)

    def exception(self, text: str, payload: bytes) -> Any:
        return payload

    def traceback(self, text: str, payload: bytes) -> Any:
        return payload


def send(scheduler: Scheduler, core: SchedulerCore) -> list[str]:
    """Send what a core has to send to workers; return the tasks."""
    sent = []
    for kind, address, message in core.take_messages():
        assert (kind, message["op"]) == ("worker", "compute-task")
        assert address is not None
        spec = pickle.loads(message["run_spec"])
        more: dict[str, Any] = {"stimulus_id": "core", "span_id": None, "annotations": {}}
        comm: Any = scheduler.stream_comms[address]
        comm.send({**message, **more, "run_spec": ToPickle(spec)})
        sent.append(message["key"])
    return sent


def take_graph(core: SchedulerCore, client: Client, now_s: float) -> None:
    """Give a core the graph of `NODES`, of which all is wanted."""
    keys = list(NODES)
    tasks = [
        (
            place,
            key,
            key.partition("-")[0],
            pickle.dumps(NODES[key]),
            [keys.index(one) for one in sorted(NODES[key].dependencies)],
            float(place),
            None,
            None,
            False,
        )
        for place, key in enumerate(keys)
    ]
    core.handle_graph(
        "graph", now_s, keys=keys, tasks=tasks, wanted=list(range(len(keys))), client=client.id
    )


@gen_cluster(client=True)
async def test_a_cluster_goes_on_from_a_core_and_back(
    c: Client, s: Scheduler, a: Worker, b: Worker
) -> None:
    for turn in range(2):
        now_s = time.monotonic()
        offset_s = time.time() - now_s
        # There is no task of which it would be asked.
        no_payloads: Any = None
        core = adopt(s, {}, no_payloads, wall_offset_s=offset_s)
        assert list(core.dump()["workers"]) == list(s.workers)
        take_graph(core, c, now_s)
        sent = send(s, core)
        assert sorted(sent) == ["one-1", "two-1"], turn
        write_into(core, s, Pickled(), wall_offset_s=offset_s)
        s.validate_state()
        register_stealable(s)
        # From here on all is upstream's: what the workers answer, and who gets what depends on it.
        futures: dict[str, Any] = {key: Future(key, c) for key in NODES}
        assert await futures["sum-1"] == 3
        assert isinstance(await futures["ratio-1"].exception(), ZeroDivisionError)
        assert s.tasks["ratio-1"].exception_blame is s.tasks["ratio-1"]
        assert s.task_prefixes["sum"].duration_average >= 0
        assert abs(s.erred_tasks[0].timestamp - time.time()) < 300
        assert len(s.erred_tasks) == turn + 1
        s.validate_state()
        run_ids = {ts.run_id for ts in s.tasks.values()}
        assert len(run_ids) == len(NODES)
        for future in futures.values():
            future.release()
        while s.tasks:
            await asyncio.sleep(0.01)
    assert s.generation == 2

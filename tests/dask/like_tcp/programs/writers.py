"""Programs that change values in place, and what others see of the values before and after."""

from __future__ import annotations

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Event, get_worker, wait

import dask
from tests.dask.like_tcp.kit import Observation, Run, describe, outcome, program

#: Small ones travel with messages, large ones are lent
SIZES = (1, 10, 500, 20_000, 400_000)

#: Arrays that tasks keep in this module, in the processes of workers
KEPT: dict[str, Any] = {}


def keep(value: Any) -> None:
    """Keeps a value in the process of this worker: functions of programs travel with copies."""
    KEPT["kept"] = value


def kept() -> Any:
    return KEPT["kept"]


def zeros(size: int) -> Any:
    return np.zeros(size)


def add_in_place(value: Any, amount: float = 1.0) -> float:
    value += amount
    return float(value.sum())


def total(value: Any) -> float:
    return float(value.sum())


def look_twice(value: Any, name: str) -> list[float]:
    """Looks at its input before and after another task has changed the original."""
    before = float(value.sum())
    Event(f"{name}-looked").set()
    Event(f"{name}-changed").wait()
    return [before, float(value.sum())]


def changed_after_fetch(
    run: Run, name: str, make: Any, change: Any, look: Any = total
) -> Observation:
    """Observes a client and a peer that fetched a value before its worker changed the value."""
    value = run.submit_on(0, make)
    wait(value)
    mine = value.result()
    before = look(mine)

    def peer(theirs: Any) -> list[Any]:
        first = look(theirs)
        Event(f"{name}-looked").set()
        Event(f"{name}-changed").wait()
        return [first, look(theirs)]

    looking = run.submit_on(1, peer, value)
    Event(f"{name}-looked").wait()
    changed = run.submit_on(0, change, value).result()
    Event(f"{name}-changed").set()
    # Either worker may answer the client now.
    found = [before, changed, look(mine), looking.result()]
    found += [run.submit_on(0, look, value).result(), run.submit_on(1, look, value).result()]
    for each in ("looked", "changed"):
        Event(f"{name}-{each}").clear()
    return found


@program()
def small_results_after_a_change(run: Run) -> Observation:
    """A result that its worker has changed since is seen with the change."""

    def append(value: Any) -> None:
        value.append(1)

    def extend(value: Any) -> None:
        value.extend(b"x")

    def put(value: Any) -> None:
        value["new"] = 1

    def insert(value: Any) -> None:
        value.add(9)

    def append_within(value: Any) -> None:
        value[0].append(1)

    def write(value: Any) -> None:
        value += 1

    cases: list[Any] = [
        (list, append), (bytearray, extend), (dict, put), (set, insert),
        (lambda: ([],), append_within), (lambda: {"x": [[]]}, lambda v: v["x"][0].append(1)),
        (lambda: np.zeros(4), write), (lambda: [np.zeros(2)], lambda v: write(v[0])),
        (lambda: np.zeros(()), write), (lambda: frozenset({1}), len),
    ]  # fmt: skip
    found = []
    for make, change in cases:
        run.submit_on(0, int).result()
        value = run.submit_on(0, make)
        wait(value)
        run.submit_on(0, change, value).result()
        found.append(outcome(value.result))
        again = run.submit_on(0, make)
        first = again.result()
        run.submit_on(0, change, again).result()
        found.append([first, again.result(), run.submit_on(1, describe, again).result()])
    return found


@program()
def views_of_numpy(run: Run) -> Observation:
    """In-place sums, slices and views of arrays of many sizes."""
    return [
        changed_after_fetch(run, f"views-{size}", lambda size=size: np.zeros(size), add_in_place)
        for size in SIZES
    ]


@program()
def slices(run: Run) -> Observation:
    """A task writes through slices, transposes and reshaped views of its input."""

    def part(value: Any) -> float:
        value[::2] = 5
        value.reshape(-1)[-1:] += 2
        value.T[...] *= 2
        np.add(value, 1, out=value)
        return float(value.sum())

    def whole() -> Any:
        return np.zeros((300, 300))

    def of_a_base() -> Any:
        base = np.zeros((600, 300))
        keep(base)
        return base[::2]

    def change_base(_: Any) -> float:
        kept()[...] = 7
        return float(kept().sum())

    return [
        changed_after_fetch(run, "part", whole, part),
        changed_after_fetch(run, "fortran", lambda: np.asfortranarray(whole()), part),
        changed_after_fetch(run, "base", of_a_base, change_base),
        changed_after_fetch(run, "fill", whole, lambda v: v.fill(3)),
        changed_after_fetch(
            run, "sort", lambda: np.arange(50_000.0)[::-1].copy(),
            lambda v: v.sort(), lambda v: float(v[0]),
        ),
        changed_after_fetch(
            run, "buffer", whole, lambda v: memoryview(v).cast("B").__setitem__(7, 64)
        ),
    ]  # fmt: skip


@program()
def frames_over_arrays(run: Run) -> Observation:
    """A dataframe or an object whose arrays a task changes."""

    def frame() -> Any:
        array = np.zeros((100_000, 2))
        keep(array)
        return pd.DataFrame(array, columns=["a", "b"], copy=False)

    def write_array(_: Any) -> float:
        kept()[...] = 3
        return float(kept().sum())

    def write_frame(value: Any) -> float:
        value["a"] = value["a"] + 1
        value.iloc[:5, 1] = 9
        return float(value.to_numpy().sum())

    def look(value: Any) -> float:
        return float(value.to_numpy().sum())

    def look_inside(value: Any) -> float:
        return float(value["x"][0].sum())

    return [
        changed_after_fetch(run, "frame-array", frame, write_array, look),
        changed_after_fetch(run, "frame", frame, write_frame, look),
        changed_after_fetch(
            run, "nested", lambda: {"x": [np.zeros(100_000)]},
            lambda v: v["x"][0].__iadd__(1).sum(), look_inside,
        ),
        changed_after_fetch(
            run, "bytes", lambda: bytearray(300_000), lambda v: v.__setitem__(0, 5), sum,
        ),
    ]  # fmt: skip


@program()
def kept_in_globals(run: Run) -> Observation:
    """A task keeps what it returned and writes into the array later."""

    def make() -> Any:
        keep(np.zeros(200_000))
        return kept()

    def later(_: Any = None) -> float:
        value = kept()
        value += 1
        return float(value.sum())

    found = changed_after_fetch(run, "globals", make, later)
    value = run.submit_on(0, make)
    mine = value.result()
    run.client.run(later, workers=[run.workers[0]])
    found += [float(mine.sum()), total(value.result())]
    run.client.run(keep, None)
    return found


@program()
def data_of_workers(run: Run) -> Observation:
    """`Client.run` and tasks change what is in `worker.data`."""

    def change(dask_worker: Any = None) -> float:
        worker: Any = dask_worker or get_worker()
        value = worker.data["in-data"]
        value[...] += 1
        return float(value.sum())

    found = []
    for size in (10, 200_000):
        value = run.client.submit(zeros, size, key="in-data", workers=run.workers[:1])
        mine = value.result()
        found.append(list(run.client.run(change, workers=run.workers[:1]).values()))
        found.append([float(mine.sum()), total(value.result())])
        found.append([run.submit_on(0, change).result(), float(mine.sum())])
        found.append([run.submit_on(n, total, value).result() for n in (0, 1)])
        value.release()
        del value
    return found


@program()
def received_and_changed(run: Run) -> Observation:
    """Changes a received value, which changes no other copy."""
    found = []
    for size in SIZES:
        value = run.submit_on(0, zeros, size)
        mine, again = value.result(), value.result()
        found.append(outcome(add_in_place, mine))
        found.append([total(mine), total(again), total(value.result())])
        found.append(run.submit_on(1, add_in_place, value).result())
        found.append([run.submit_on(n, total, value).result() for n in (0, 1)])
        found.append([total(mine), total(again)])
        found.append(run.client.gather(value, direct=True).flags.writeable)
    return found


@program()
def scattered_and_changed(run: Run) -> Observation:
    """A client changes what it has scattered, with and without broadcast and direct."""
    found = []
    for size in (10, 200_000):
        for options in (
            {},
            {"broadcast": True},
            {"direct": True},
            {"direct": True, "broadcast": True},
        ):
            array = np.zeros(size)
            (future,) = run.client.scatter([array], hash=False, **options)
            array += 5
            found.append([run.submit_on(n, total, future).result() for n in (0, 1)])
            mine = future.result()
            found.append(run.submit_on(0, add_in_place, future).result())
            found.append([total(mine), total(array)])
            found.append(run.submit_on(1, total, future).result())
    return found


@program()
def replicated_and_changed(run: Run) -> Observation:
    """A change of one replica stays with its worker."""
    found = []
    for size in (10, 200_000):
        value = run.submit_on(0, zeros, size)
        wait(value)
        run.client.replicate(value)
        found.append(run.submit_on(0, add_in_place, value).result())
        found.append([run.submit_on(n, total, value).result() for n in (0, 1)])
        found.append(run.submit_on(1, add_in_place, value, 10.0).result())
        found.append([run.submit_on(n, total, value).result() for n in (0, 1)])
    return found


@program()
def persisted_and_changed(run: Run) -> Observation:
    """Tasks that change blocks of persisted collections."""
    x = (da.zeros((400, 400), chunks=(200, 400)) + 0).persist(workers=[run.workers[0]])
    wait(x)
    mine = x.compute()

    def write(block: Any) -> Any:
        block += 1
        return block

    changed = x.map_blocks(write, dtype=float).persist(workers=[run.workers[0]])
    wait(changed)
    found: list[Any] = [total(mine), total(changed.compute()), total(x.compute())]
    moved = changed.rechunk((400, 200)).compute()
    found.append([total(moved), total(mine)])
    data = dd.from_pandas(pd.DataFrame({"a": np.zeros(1000)}), npartitions=2).persist()
    wait(data)
    first = data.compute()

    def assign(part: Any) -> Any:
        part["a"] = 1.0
        return part

    found += [data.map_partitions(assign).a.sum().compute(), float(first.a.sum())]
    return [*found, data.a.sum().compute()]


@program()
def arrays_of_actors(run: Run) -> Observation:
    """An actor gives arrays of its state and goes on changing them."""

    class Holder:
        array: Any = None

        def __init__(self, size: int) -> None:
            self.array = np.zeros(size)

        def give(self) -> Any:
            return self.array

        def change(self) -> float:
            self.array += 1
            return float(self.array.sum())

    found: list[Any] = []
    for size in (10, 200_000):
        holder = run.client.submit(Holder, size, actor=True, workers=run.workers[:1]).result()
        first = holder.give().result()
        found.append([total(first), holder.change().result(), total(first)])
        attribute = holder.array
        found.append([total(attribute), holder.change().result(), total(attribute)])
        found.append(outcome(add_in_place, first))
        found.append(total(holder.give().result()))
    return found


@program()
def chains_in_place(run: Run) -> Observation:
    """A chain of tasks on one worker changes one array again and again."""
    found = []
    for size in (10, 200_000):

        def write(value: Any, amount: float) -> Any:
            value += amount
            return value

        value = run.submit_on(0, zeros, size)
        chain = [value]
        for number in range(6):
            chain.append(run.submit_on(0, write, chain[-1], float(number)))
        found.append([total(each) for each in run.client.gather(chain)])
        moved = [run.submit_on(1, write, each, 1.0) for each in chain]
        found.append([total(each) for each in run.client.gather(moved)])
    return found


@program()
def constants_in_graphs(run: Run) -> Observation:
    """A constant of a graph or a submitted argument that tasks change."""
    found = []
    for size in (10, 30_000):
        array = np.zeros(size)
        first = run.submit_on(0, add_in_place, array)
        second = run.submit_on(0, add_in_place, array)
        found.append([first.result(), second.result(), total(array)])
        lazy = dask.delayed(array)
        found.append(dask.compute(dask.delayed(total)(lazy)))
        one = dask.delayed(add_in_place, pure=False)(array).compute()
        found.append([one, total(array)])
        mapped = run.client.map(add_in_place, [array, array], pure=False)
        found.append([run.client.gather(mapped), total(array)])
    return found

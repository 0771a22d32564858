"""States, callbacks, cancellation and sharing of futures."""

from __future__ import annotations

import threading
from typing import Any

from distributed import (
    Client,
    Event,
    as_completed,
    fire_and_forget,
    futures_of,
    wait,
)

from tests.dask.like_tcp.kit import Observation, Run, outcome, program


def inc(x: int) -> int:
    return x + 1


def divide(x: int, y: int) -> float:
    return x / y


def wait_for(name: str, value: Any = None) -> Any:
    Event(name).wait()
    return value


class Flaky:
    """Fails as often as a counter file of the worker's process says."""

    runs: dict[str, int] = {}  # noqa: RUF012

    @classmethod
    def run(cls, name: str, failures: int) -> int:
        cls.runs[name] = cls.runs.get(name, 0) + 1
        if cls.runs[name] <= failures:
            raise RuntimeError(f"run {cls.runs[name]}")
        return cls.runs[name]


@program()
def states(run: Run) -> Observation:
    """Status and repr of futures in each state."""
    held = run.client.submit(wait_for, "states", 1, key="held")
    failed = run.client.submit(divide, 1, 0, key="failed")
    wait(failed)
    before = [held.status, held.done(), failed.status, failed.done(), repr(failed)]
    Event("states").set()
    after = [held.result(), held.status, held.done(), held.cancelled(), held.type, repr(held)]
    Event("states").clear()
    return [before, after, outcome(failed.result), outcome(held.exception), held.traceback()]


@program()
def one_key_many_futures(run: Run) -> Observation:
    """Futures of one key share their state; the last one releases the task."""
    first = run.client.submit(inc, 1, key="shared")
    second = run.client.submit(inc, 1, key="shared")
    third = run.client.submit(divide, 1, 0, key="shared")
    values = [each.result() for each in (first, second, third)]
    first.release()
    seen = [first.status, second.status, first == second, second.result()]
    return [values, seen, hash(second) == hash(third), first.key]


@program()
def retries_of_a_submit(run: Run) -> Observation:
    """`retries=` runs a failing task again, as often as it says."""
    enough = run.submit_on(0, Flaky.run, "enough", 2, retries=3)
    few = run.submit_on(0, Flaky.run, "few", 3, retries=1)
    return [outcome(enough.result), outcome(few.result)]


@program()
def retry_of_a_future(run: Run) -> Observation:
    """`Future.retry` and `Client.retry` run failed tasks again."""
    found = []
    one = run.submit_on(0, Flaky.run, "one", 1)
    dependent = run.client.submit(inc, one, key="dependent")
    for future in (one, dependent):
        found.append(outcome(future.result))
    dependent.retry()
    wait(dependent)
    found += [outcome(one.result), outcome(dependent.result)]
    other = run.submit_on(1, Flaky.run, "other", 2)
    for _ in range(3):
        wait(other)
        found.append(outcome(other.result))
        run.client.retry([other])
    found.append(outcome(other.result))
    return found


@program()
def cancelled_while_waiting(run: Run) -> Observation:
    """Tasks that run, wait and are finished are cancelled with what depends on them."""
    name = "cancelled"
    running = run.submit_on(0, wait_for, name, 1)
    behind = run.submit_on(0, inc, 5)
    dependent = run.client.submit(inc, running, key="cancelled-dependent")
    done = run.client.submit(inc, 1, key="cancelled-done")
    done.result()
    run.client.cancel([behind, dependent, done], reason="no more", msg="changed my mind")
    found = [each.status for each in (behind, dependent, done)]
    Event(name).set()
    found += [running.result(), *(outcome(each.result) for each in (behind, dependent, done))]
    Event(name).clear()
    return found


@program()
def cancelled_with_force(run: Run) -> Observation:
    """Of a task that two clients want, only `force` cancels for both."""
    with Client(run.cluster) as second:
        ours = [run.client.submit(wait_for, "forced", n, key=("forced", n)) for n in range(2)]
        theirs = [second.submit(wait_for, "forced", n, key=("forced", n)) for n in range(2)]
        run.client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
        second.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
        run.client.cancel(ours[:1])
        run.client.cancel(ours[1:], force=True)
        wait_cancelled = outcome(theirs[1].result)
        Event("forced").set()
        found = [theirs[0].result(), wait_cancelled, [each.status for each in ours]]
        del theirs
    return found


@program()
def callbacks(run: Run) -> Observation:
    """Callbacks come once for each future, finished, failed or cancelled, and later ones too."""
    called: list[tuple[str, str]] = []
    all_called = threading.Semaphore(0)

    def call(future: Any) -> None:
        called.append((future.key, future.status))
        all_called.release()

    finished = run.client.submit(inc, 1, key="finished")
    failed = run.client.submit(divide, 1, 0, key="failed")
    cancelled = run.client.submit(wait_for, "callbacks", key="cancelled")
    for future in (finished, failed, cancelled):
        future.add_done_callback(call)
    wait([finished, failed])
    cancelled.cancel()
    for _ in range(3):
        all_called.acquire(timeout=60)
    finished.add_done_callback(call)
    all_called.acquire(timeout=60)
    Event("callbacks").set()
    return sorted(called)


@program()
def completion(run: Run) -> Observation:
    """`as_completed` yields each future once, with results, batches, failures and additions."""
    futures = run.client.map(inc, range(20), pure=False)
    found = [sorted(each.result() for each in as_completed(futures))]
    found.append(sorted(value for _, value in as_completed(futures, with_results=True)))
    found.append(
        sorted(x for batch in as_completed(futures).batches() for x in run.client.gather(batch))
    )
    failing = run.client.map(divide, range(4), [1, 0, 1, 0], pure=False)
    loose = as_completed(failing, with_results=True, raise_errors=False)
    values = [value if isinstance(value, float) else value[0].__name__ for _, value in loose]
    found.append(sorted(map(str, values)))
    found.append(outcome(lambda: list(as_completed(failing[1:2], with_results=True))))
    growing = as_completed(futures[:2])
    for future in growing:
        if future.key == futures[0].key:
            growing.add(futures[5])
    found.append([growing.is_empty(), growing.count(), growing.has_ready()])
    return found


@program()
def completion_of_cancelled(run: Run) -> Observation:
    """`as_completed` and `wait` meet futures that are cancelled."""
    futures = [run.client.submit(wait_for, "completion", n, key=f"c-{n}") for n in range(3)]
    completed = as_completed(futures)
    futures[1].cancel()
    Event("completion").set()
    found = sorted((each.key, each.status) for each in completed)
    return [found, outcome(wait, futures), outcome(run.client.gather, futures)]


@program()
def waiting(run: Run) -> Observation:
    """`wait` with its conditions and time limits."""
    slow = run.submit_on(0, wait_for, "waiting", 1)
    quick = run.submit_on(1, inc, 1)
    first = wait([slow, quick], return_when="FIRST_COMPLETED")
    found = [[len(first.done), len(first.not_done)], outcome(wait, [slow], timeout=0.05)]
    found.append(outcome(slow.result, timeout=0.05))
    found.append(outcome(wait, [slow], return_when="SOMETIME"))
    Event("waiting").set()
    both = wait([slow, quick])
    Event("waiting").clear()
    return [found, [len(both.done), len(both.not_done)], outcome(wait, [1])]


@program()
def gathering(run: Run) -> Observation:
    """`gather` of nested containers, with `errors=` and `direct=`."""
    client = run.client
    good = client.map(inc, range(3), pure=False)
    bad = client.submit(divide, 1, 0, key="bad")
    nested = {"a": good[0], "b": [good[1], (good[2], {good[0]})], "c": 5, 3: iter([good[1]])}
    wait([*good, bad])
    return [
        client.gather({**nested, 3: 1}),
        outcome(client.gather, [*good, bad]),
        outcome(client.gather, [*good, bad], errors="skip"),
        outcome(client.gather, [good[0], good[0]], direct=True),
        outcome(client.gather, {"x": bad}, errors="skip"),
        outcome(client.gather, [*good, bad], errors="other"),
        outcome(client.gather, []),
        outcome(client.gather, 5),
        outcome(lambda: list(client.gather(iter(good)))),
        [len(futures_of(nested)), outcome(futures_of, bad)],
    ]


@program()
def futures_in_tasks(run: Run) -> Observation:
    """A future within an object, a keyword, a nested list; one that comes from a task."""
    client = run.client
    one = client.submit(inc, 0, key="one")
    nested = client.submit(lambda **kw: kw, a=[one, {"x": (one, 2)}], b=one, key="nested")
    found = [nested.result(), client.submit(sum, [one, one, one], key="sum").result()]
    failed = client.submit(divide, 1, 0, key="fails")
    found.append(outcome(client.submit(inc, failed, key="after").result))
    found.append(outcome(client.submit(lambda x: x, [{"deep": failed}], key="deep").result))
    return found


@program()
def client_closes_with_futures(run: Run) -> Observation:
    """Closing a client cancels its futures and releases its tasks."""
    second = Client(run.cluster)
    kept = second.submit(inc, 1, key="kept")
    waiting_one = second.submit(wait_for, "closes", key="waits")
    kept.result()
    ours = run.client.submit(inc, 1, key="kept")
    second.close()
    found = [kept.status, waiting_one.status, ours.result(), second.status]
    found += [outcome(kept.result), outcome(waiting_one.result)]
    found.append(outcome(second.submit, inc, 1))
    found.append(outcome(second.gather, [kept]))
    Event("closes").set()
    return found


@program()
def forgotten_on_purpose(run: Run) -> Observation:
    """`fire_and_forget` runs tasks that no client holds, and failing ones leave nothing."""
    done = [Event(f"fired-{n}") for n in range(20)]

    def set_event(number: int) -> None:
        Event(f"fired-{number}").set()

    for number in range(20):
        fire_and_forget(run.client.submit(set_event, number, pure=False))
    fire_and_forget(run.client.submit(divide, 1, 0, key="fired-and-failed"))
    found = [each.wait(timeout=60) for each in done]
    for each in done:
        each.clear()
    return found

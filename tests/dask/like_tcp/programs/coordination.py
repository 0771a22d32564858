"""Variables, queues, locks, events, semaphores, published data and logged events."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from distributed import (
    Client,
    Event,
    Lock,
    MultiLock,
    Queue,
    Semaphore,
    Variable,
    get_client,
    get_worker,
)

from tests.dask.like_tcp.kit import Observation, Run, outcome, program


def until_on_scheduler(run: Run, condition: Callable[[Any], Any]) -> None:
    """Waits until a condition holds on the scheduler."""
    while not run.client.run_on_scheduler(lambda dask_scheduler: bool(condition(dask_scheduler))):
        pass


def subscribers(scheduler: Any) -> int:
    """Returns how many clients have subscribed to the topic of the program."""
    return len(scheduler._broker._topics["topic"].subscribers)


def inc(x: int) -> int:
    return x + 1


@program()
def variables(run: Run) -> Observation:
    """Values and futures in variables, set and read by clients and tasks."""
    one, other = Variable("one"), Variable("other")
    one.set(5)
    future = run.client.submit(inc, 1, key="in-variable")
    other.set(future)
    del future
    found = [one.get(), other.get().result(), other.get().key]

    def inside() -> Any:
        Variable("one").set([1, "two"])
        return Variable("other").get().result()

    found += [run.submit_on(0, inside).result(), one.get()]
    found.append(outcome(Variable("never").get, timeout=0.05))
    one.delete()
    other.delete()
    # Another connection than that of the next request.
    until_on_scheduler(run, lambda scheduler: not scheduler.extensions["variables"].variables)
    found.append(outcome(one.get, timeout=0.05))
    return found


@program()
def failed_in_variables(run: Run) -> Observation:
    """A variable keeps a future that failed, or was cancelled."""
    failed = run.client.submit(operator.truediv, 1, 0, key="failed")
    failed.exception()
    held = Variable("failed")
    held.set(failed)
    found = [outcome(held.get().result)]
    held.delete()
    return found


@program()
def queues(run: Run) -> Observation:
    """Order, limits, batches and futures of queues; producers that are tasks."""
    queue = Queue("q", maxsize=4)
    for value in (1, [2], run.client.submit(inc, 2, key="in-queue"), np.arange(3).tolist()):
        queue.put(value)
    found = [queue.qsize(), outcome(queue.put, 5, timeout=0.05)]
    found += [queue.get(), queue.get(), queue.get().result(), queue.get(batch=1)]
    found.append(outcome(queue.get, timeout=0.05))
    numbers = Queue("numbers")

    def produce(first: int) -> int:
        own = Queue("numbers")
        for number in range(first, first + 5):
            own.put(number)
        return first

    run.client.gather([run.submit_on(number, produce, 10 * number) for number in (0, 1)])
    values = numbers.get(batch=True)
    found += [sorted(values), [x for x in values if x < 10], numbers.qsize()]
    queue.close()
    numbers.close()
    return found


@program()
def locks(run: Run) -> Observation:
    """Locks of clients and tasks exclude each other, and time out."""
    lock = Lock("lock")
    found = [lock.acquire(), lock.locked(), outcome(Lock("lock").acquire, timeout=0.05)]

    def guarded(name: str) -> int:
        worker: Any = get_worker()
        with Lock("lock"):
            counter = Variable("counter")
            value = int(counter.get())
            counter.set(value + 1)
        return worker is not None and value >= 0

    Variable("counter").set(0)
    futures = [run.submit_on(number % 2, guarded, "x") for number in range(10)]
    lock.release()
    found += [all(run.client.gather(futures)), Variable("counter").get(), lock.locked()]
    found.append(outcome(lock.release))
    Variable("counter").delete()
    with MultiLock(["a", "b"]):
        found.append(outcome(MultiLock(["b", "c"]).acquire, timeout=0.05))
    with MultiLock(["b", "c"]) as both:
        found.append(both.locked())
    return found


@program()
def events(run: Run) -> Observation:
    """Events that tasks wait for and clients set, and the other way round."""
    found: list[Any] = [Event("e").is_set(), Event("e").wait(timeout=0.05)]

    def both(mine: str, other: str) -> bool:
        Event(mine).set()
        return bool(Event(other).wait())

    futures = [run.submit_on(0, both, "x", "y"), run.submit_on(1, both, "y", "x")]
    found.append(run.client.gather(futures))
    waiting = run.submit_on(0, lambda: Event("e").wait())
    Event("e").set()
    found += [waiting.result(), Event("e").is_set()]
    for name in ("e", "x", "y"):
        Event(name).clear()
    return [*found, Event("e").is_set()]


@program()
def semaphores(run: Run) -> Observation:
    """Leases of semaphores, held by clients and by tasks."""
    semaphore = Semaphore(max_leases=2, name="s")
    found = [semaphore.acquire(), semaphore.acquire(), semaphore.acquire(timeout=0.05)]
    found += [semaphore.get_value(), semaphore.release(), semaphore.get_value()]

    def inside(sem: Any) -> int:
        with sem:
            return int(sem.get_value())

    found.append(run.submit_on(0, inside, semaphore).result())
    semaphore.release()
    found.append(outcome(semaphore.release))
    found.append(outcome(Semaphore, max_leases=0, name="none"))
    semaphore.close()
    return found


@program()
def publishing(run: Run) -> Observation:
    """Published futures and values outlive names, are read by other clients and tasks."""
    client = run.client
    future = client.submit(inc, 5, key="published")
    client.publish_dataset(future, name="one")
    client.publish_dataset(two=[1, future], three="text")
    found = [client.list_datasets(), outcome(client.publish_dataset, 1, name="one")]
    client.publish_dataset(7, name="three", override=True)
    del future
    with Client(run.cluster) as second:
        found.append([second.get_dataset("one").result(), second.get_dataset("three")])
        found.append(second.gather(second.get_dataset("two")))
        found.append(outcome(second.get_dataset, "none"))
        found.append(second.get_dataset("none", default=3))
        second.unpublish_dataset("two")

    def inside() -> Any:
        own = get_client()
        return own.get_dataset("one").result(), own.list_datasets()

    found.append(run.submit_on(0, inside).result())
    found.append([sorted(client.datasets), "one" in client.datasets])
    for name in ("one", "three"):
        client.unpublish_dataset(name)
    return [*found, client.list_datasets()]


@program()
def logged_events(run: Run) -> Observation:
    """Events that clients, workers and tasks log, read by topic and by subscribers."""
    client = run.client
    got: list[Any] = []
    arrived = threading.Semaphore(0)

    def take(event: Any) -> None:
        got.append(event[1])
        arrived.release()

    client.subscribe_topic("topic", take)
    until_on_scheduler(run, subscribers)

    def inside(number: int) -> None:
        get_worker().log_event(["topic", "more"], {"n": number})

    client.log_event("topic", "from the client")
    arrived.acquire(timeout=60)
    for number in range(3):
        run.submit_on(number % 2, inside, number).result()
        arrived.acquire(timeout=60)
    client.unsubscribe_topic("topic")
    until_on_scheduler(run, lambda scheduler: not subscribers(scheduler))
    client.log_event("topic", {"after": [1]})
    found = [[message for _, message in client.get_events(name)] for name in ("topic", "more")]
    found.append(outcome(client.log_event, "topic", threading.Lock()))
    found.append(client.get_events("no such topic"))
    found.append(outcome(client.unsubscribe_topic, "topic"))

    def forget(dask_scheduler: Any) -> None:
        for name in ("topic", "more"):
            dask_scheduler._broker._topics.pop(name, None)

    client.run_on_scheduler(forget)
    return [got, found]

"""Workers that are killed, restarted, added, retired and closed while jobs run."""

from __future__ import annotations

import os
import signal
from typing import Any

from distributed import Client, Event, get_client, get_worker, wait

from tests.dask.like_tcp.kit import Observation, Run, outcome, program


def inc(x: int) -> int:
    return x + 1


def name_of() -> str:
    return str(get_worker().name)


def kill_first(name: str, number: int) -> str:
    """Kills the process of its worker, the first times that it runs."""
    tries = int(get_client().get_metadata([name], default=0))
    get_client().set_metadata([name], tries + 1)
    if tries < number:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"run {tries + 1}"


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@program(own_cluster=True, logs=False)
def killed_while_running(run: Run) -> Observation:
    """A task whose worker is killed runs again elsewhere; results that died are made again."""
    held = [
        run.client.submit(
            inc, n, key=f"held-{n}", workers=[run.workers[n]], allow_other_workers=True
        )
        for n in (0, 1)
    ]
    wait(held)
    future = run.client.submit(kill_first, "killed", 1, key="kills")
    found = [future.result(), run.client.gather(held)]
    run.client.wait_for_workers(2)
    found.append(sorted(run.client.run(lambda dask_worker: str(dask_worker.name)).values()))
    found.append(run.client.submit(sum, held, key="sum").result())
    return found


@program(own_cluster=True, logs=False)
def scattered_data_dies(run: Run) -> Observation:
    """Scattered data that dies with its worker cancels its futures; replicas live on."""
    alone = run.client.scatter([1], workers=[run.workers[0]], hash=False)[0]
    both = run.client.scatter([2], broadcast=True, hash=False)[0]
    pid = run.client.run(os.getpid, workers=[run.workers[0]])[run.workers[0]]
    os.kill(pid, signal.SIGKILL)
    found = [outcome(wait, alone, timeout=60)]
    while alone.status == "finished":
        pass
    found += [alone.status, outcome(alone.result), both.result()]
    run.client.wait_for_workers(2)
    return found


@program(own_cluster=True)
def retired(run: Run) -> Observation:
    """Retiring a worker moves its results to the other one."""
    client, workers = run.client, run.workers
    held = [client.submit(inc, n, key=f"k-{n}", workers=[workers[0]]) for n in range(10)]
    wait(held)
    gone = client.retire_workers([workers[0]], close_workers=False, remove=True)
    found = [[each["name"] for each in gone.values()], client.gather(held)]
    found.append(sorted(set(map(len, client.who_has(held).values()))))
    found.append(run.workers == workers[1:])
    found.append(client.submit(inc, held[0], key="after").result())
    return found


@program(own_cluster=True)
def added(run: Run) -> Observation:
    """A worker that comes in the middle takes tasks that wait for its name."""
    client = run.client
    future = client.submit(name_of, workers=["third"], key="waits")
    rest = client.map(inc, range(20), key="rest")
    wait(rest)
    found = [future.status]
    spec = run.cluster.new_worker_spec()
    ((_, options),) = spec.items()
    run.cluster.worker_spec["third"] = options
    run.cluster.sync(run.cluster._correct_state)
    found.append(outcome(future.result))
    found.append(len(run.workers))
    return [*found, sum(client.gather(rest))]


# Over tcp a task that waits as its worker is restarted is run once more now and then.
@program(logs=False, left=False)
def restarted(run: Run) -> Observation:
    """`restart` cancels futures, forgets data, and gives workers of new processes."""
    client = run.client
    before = set(client.run(os.getpid).values())
    done = client.submit(inc, 1, key="done")
    done.result()
    waiting = client.submit(lambda: Event("restart").wait(), key="waiting")
    client.restart()
    found = [done.status, waiting.status, outcome(done.result), outcome(waiting.result)]
    found.append(before & set(client.run(os.getpid).values()))
    found.append(client.submit(inc, 1, key="done").result())
    found.append(client.gather(client.map(inc, range(5), key="again")))
    one = run.workers[0]
    restarted = client.restart_workers([one])
    found.append(list(restarted.values()))
    client.wait_for_workers(2)
    return found


@program(own_cluster=True)
def replicas_move(run: Run) -> Observation:
    """`replicate`, `rebalance` and the dropping of copies that are too many."""
    client, workers = run.client, run.workers
    futures = client.scatter(list(range(10)), workers=[workers[0]], hash=False)
    client.replicate(futures[:4], n=2)
    found: list[Any] = [sorted(len(each) for each in client.who_has(futures).values())]
    client.replicate(futures[:4], n=1)
    while sum(len(each) for each in client.who_has(futures).values()) > 10:
        pass
    client.rebalance(futures)
    found.append(client.gather(futures))
    client.replicate(futures[0], workers=[workers[1]])
    found.append(workers[1] in client.who_has([futures[0]])[futures[0].key])
    return found


@program(own_cluster=True)
def second_cluster(run: Run) -> Observation:
    """Clients of one process on one scheduler: contexts, defaults, closing, reconnecting."""
    with Client(run.cluster, set_as_default=False) as second:
        found = [Client.current() is run.client, second.submit(inc, 1).result()]
        with second.as_current():
            found.append(Client.current() is second)
    with Client(run.cluster.scheduler_address) as third:
        found += [Client.current() is third, third.submit(inc, 2).result()]
    found.append(outcome(third.submit, inc, 1))
    found.append(outcome(Client, "127.0.0.1:1", timeout="50ms").text["raised"])
    return found


@program(own_cluster=True, logs=False, config={"distributed.scheduler.allowed-failures": 1})
def killed_again_and_again(run: Run) -> Observation:
    """A task that kills its workers fails with `KilledWorker`, and so does what depends on it."""
    future = run.client.submit(kill, key="killer")
    after = run.client.submit(inc, future, key="after")
    found = [outcome(future.result).text["raised"], outcome(after.result).text["raised"]]
    found.append(outcome(future.exception).text["text"].partition(" on ")[0])
    run.client.wait_for_workers(2)
    found.append(run.client.submit(inc, 1, key="fine").result())
    return found

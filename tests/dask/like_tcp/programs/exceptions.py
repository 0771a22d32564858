"""Exceptions of tasks: types, texts, causes, frames, what cannot be pickled, ends of processes."""

from __future__ import annotations

import threading
import traceback
import warnings
from typing import Any

from distributed import Reschedule, get_worker, wait

import dask
from tests.dask.like_tcp.kit import Observation, Run, outcome, program


class PlainError(Exception):
    """Pickled by its arguments."""


class OddError(Exception):
    """Takes other arguments than it has."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class LockedError(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("locked", threading.Lock())


def _refuse(text: str) -> None:
    raise TypeError(text)


def throw(error: BaseException) -> None:
    raise error


def deep(depth: int) -> int:
    if depth == 0:
        raise PlainError("at the bottom", depth)
    return deep(depth - 1)


def with_cause() -> None:
    try:
        deep(1)
    except PlainError as error:
        raise ValueError("above") from error


def with_context() -> None:
    try:
        deep(0)
    except PlainError:
        sizes: dict[str, int] = {}
        sizes["missing"] += 1


def suppressed() -> None:
    try:
        deep(0)
    except PlainError:
        raise KeyError("alone") from None


def with_notes() -> None:
    error = ValueError("noted")
    error.add_note("first note")
    raise error


def in_group() -> None:
    raise ExceptionGroup("several", [ValueError(1), PlainError("two")])


def consume(*_: Any) -> str:
    return "consumed"


@program()
def types_and_texts(run: Run) -> Observation:
    """Exceptions of many types come with type, arguments and text, and their log lines."""
    errors = [
        ValueError("text"), KeyError("key"), OSError(2, "No such file", "name"), PlainError(1, "a"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), AssertionError(),
        MemoryError("none"), RecursionError("deep"), TimeoutError("late"), IndexError("é ж 鍵"),
        ZeroDivisionError("x" * 20_000), Exception([1, {"a": 2}]),
    ]  # fmt: skip
    futures = [run.submit_on(0, throw, error) for error in errors]
    return [outcome(each.result) for each in futures]


@program()
def causes_and_frames(run: Run) -> Observation:
    """Causes, contexts, notes and groups, the frames of the task, and of what depends on it."""
    found: list[Any] = []
    for function in (with_cause, with_context, suppressed, with_notes, in_group):
        future = run.client.submit(function, key=function.__name__)
        found.append(outcome(future.result))
    future = run.client.submit(deep, 3, key="deep")
    wait(future)
    frames = traceback.extract_tb(future.traceback())
    found.append([(each.name, each.line) for each in frames])
    after = run.client.submit(consume, future, key="after")
    wait(after)
    found.append([(each.name, each.line) for each in traceback.extract_tb(after.traceback())])
    found.append(outcome(after.exception))
    return found


@program()
def what_cannot_be_pickled(run: Run) -> Observation:
    """Exceptions and results that cannot be pickled, or loaded."""
    odd = OddError(1, "x")

    def throw_locked() -> None:
        raise LockedError

    def throw_odd() -> None:
        raise OddError(7, "seven")

    def local_error() -> None:
        class LocalError(ValueError):
            pass

        raise LocalError("of the function")

    functions = [throw_locked, throw_odd, local_error]
    found = [outcome(run.submit_on(0, function).result) for function in functions]
    locked = run.submit_on(0, threading.Lock)
    wait(locked)
    found += [locked.status, outcome(run.submit_on(0, consume, locked).result), str(odd)]
    return found


@program()
def results_that_cannot_be_pickled(run: Run) -> Observation:
    """A client that gathers what cannot be pickled gets the error of the worker."""
    locked = run.submit_on(0, threading.Lock)
    wait(locked)
    good = run.submit_on(0, consume)
    return [outcome(locked.result), outcome(run.client.gather, [good, locked]), good.result()]


@program(logs=False)
def unloadable_arguments(run: Run) -> Observation:
    """Arguments that a worker cannot load fail their task with what depends on it."""

    class Unloadable:
        def __reduce__(self) -> Any:
            return _refuse, ("not here",)

    found = [outcome(run.client.submit(consume, Unloadable(), key="unloadable").result)]
    scattered = outcome(lambda: run.client.scatter(Unloadable()).result())
    return [found, scattered]


@program()
def warnings_of_tasks(run: Run) -> Observation:
    """`warnings.warn` in a task, and a warning that is an error."""

    def warn() -> str:
        warnings.warn("from a task", UserWarning, stacklevel=1)
        return "warned"

    def strict() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.warn("strict", DeprecationWarning, stacklevel=1)

    return [outcome(run.submit_on(0, warn).result), outcome(run.submit_on(0, strict).result)]


@program()
def rescheduling(run: Run) -> Observation:
    """`Reschedule` runs the task again."""

    def twice(name: str) -> int:
        worker: Any = get_worker()
        seen: int = worker.__dict__.get(name, 0) + 1
        worker.__dict__[name] = seen
        if seen < 3:
            raise Reschedule
        del worker.__dict__[name]
        return seen

    return run.submit_on(0, twice, "rescheduling").result()


@program()
def errors_of_graphs(run: Run) -> Observation:
    """The first error of a computed graph is raised, and its neighbours are not lost."""
    bad = dask.delayed(deep)(2)
    good = dask.delayed(consume)(1)
    after = dask.delayed(consume)(bad)
    futures = run.client.compute([bad, good, after])
    return [
        [outcome(each.result) for each in futures],
        outcome(dask.compute, good, bad),
        outcome(run.client.recreate_error_locally, futures[0]),
        outcome(run.client.recreate_error_locally, futures[2]),
    ]


@program()
def errors_of_run(run: Run) -> Observation:
    """`Client.run` and `run_on_scheduler` with functions that raise."""
    client = run.client
    one = run.workers[:1]
    return [
        outcome(client.run, deep, 1, workers=one),
        outcome(lambda: list(client.run(deep, 1, workers=one, on_error="return").values())),
        outcome(lambda: list(client.run(deep, 1, workers=one, on_error="ignore").values())),
        outcome(client.run, deep, 1, workers=one, on_error="other"),
        outcome(client.run_on_scheduler, deep, 2),
        outcome(client.run, throw, LockedError, workers=one),
        outcome(client.run, consume, workers=["nobody"]),
        outcome(lambda: sorted(client.run(consume, 1, wait=True).values())),
        outcome(client.run, consume, wait=False),
    ]

"""Measured jobs on a cluster, from the client's side, those of trivial tasks among them.

A job is prepared, run and checked; only the run is measured. The functions that tasks call are
at module level, so that they are pickled by name, unless ``lambda`` is asked for.
"""

from __future__ import annotations

import importlib
import itertools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from dask.delayed import Delayed, delayed
from distributed import Client

__all__ = ["FUNCTIONS", "Job", "make_job"]

#: How the functions of the tasks are pickled
FUNCTIONS = ("module", "lambda")


def increment(value: int) -> int:
    """Add one: what most tasks do."""
    return value + 1


def add_all(values: list[int]) -> int:
    """Add up a list: what a task with many inputs does."""
    return sum(values)


class Job(ABC):
    """Something to do on a cluster."""

    def __init__(self) -> None:
        self.result: Any = None

    @property
    def tasks(self) -> int:
        """Return the number of tasks that the cluster runs; 0 if it is not needed."""
        return 0

    @property
    def input_bytes(self) -> int:
        """Size of the data that the job reads, in bytes."""
        return 0

    @property
    def kept_tasks(self) -> int:
        """Number of tasks that the scheduler still has when the job is over."""
        return 0

    @property
    def kept_results(self) -> int:
        """Number of results that all workers together still have when the job is over."""
        return 0

    @property
    def timeout_s(self) -> float:
        """How long it may take: many times what Dask takes, in seconds."""
        return 60.0

    @abstractmethod
    def prepare(self, client: Client) -> None:
        """Make what the run needs, and say what it must give."""

    @abstractmethod
    def run(self, client: Client) -> None:
        """Do the job and keep its result."""

    def facts(self, client: Client) -> dict[str, Any]:
        """Tell what else is to be known of the run, in what JSON can hold; not measured."""
        return {}

    @abstractmethod
    def check(self, client: Client) -> None:
        """Compare the result with what it must be.

        Raises
        ------
        ValueError
            If they differ.
        """


class _TinyTasks(Job):
    """A job of trivial tasks.

    Parameters
    ----------
    tasks : int
        Number of tasks wanted; see :attr:`tasks` for what comes of it.
    function : str
        One of :data:`FUNCTIONS`.
    seed : int
        Differs between repetitions: no key comes twice.
    """

    def __init__(self, *, tasks: int, function: str, seed: int) -> None:
        super().__init__()
        self.wanted = tasks
        #: First number to compute with
        self.first = seed * 1_000_000
        self.increment: Callable[[int], int] = increment
        self.add_all: Callable[[list[int]], int] = add_all
        self.add: Callable[[int, int], int] = operator.add
        if function == "lambda":
            # cloudpickle finds no name for them, as in a notebook, and pickles the code.
            self.increment = lambda value: value + 1
            self.add_all = lambda values: sum(values)
            self.add = lambda left, right: left + right
        self.expected: Any = None

    @property
    def tasks(self) -> int:
        return self.wanted

    @property
    def timeout_s(self) -> float:
        return super().timeout_s + 0.05 * self.tasks

    def check(self, client: Client) -> None:
        if self.result != self.expected:
            raise ValueError(
                f"wrong result: {str(self.result)[:80]} instead of {str(self.expected)[:80]}"
            )


class _Map(_TinyTasks):
    """Independent tasks, submitted at once, all results gathered."""

    def prepare(self, client: Client) -> None:
        self.inputs = range(self.first, self.first + self.wanted)
        self.expected = [value + 1 for value in self.inputs]

    def run(self, client: Client) -> None:
        self.result = client.gather(client.map(self.increment, self.inputs))


class _Submit(_TinyTasks):
    """One task at a time: submit it, wait for its result, submit the next."""

    #: Whether Dask derives the keys from function and arguments, its default
    pure = True

    def prepare(self, client: Client) -> None:
        self.inputs = range(self.first, self.first + self.wanted)
        self.expected = [value + 1 for value in self.inputs]

    def run(self, client: Client) -> None:
        self.result = [
            client.submit(self.increment, value, pure=self.pure).result() for value in self.inputs
        ]


class _SubmitImpure(_Submit):
    """The same with random keys."""

    pure = False


class _SubmitChain(_TinyTasks):
    """Submit each task on the future of the one before it, and wait for the last one's result."""

    def prepare(self, client: Client) -> None:
        self.expected = self.first + self.wanted

    def run(self, client: Client) -> None:
        task: Any = self.first
        for _ in range(self.wanted):
            task = client.submit(self.increment, task)
        self.result = task.result()


class _Graph(_TinyTasks):
    """Delayed objects that are computed as they stand, without fusing tasks."""

    outputs: list[Delayed]

    def run(self, client: Client) -> None:
        self.result = client.gather(client.compute(self.outputs, optimize_graph=False))


class _Chain(_Graph):
    """Each task needs the one before it."""

    def prepare(self, client: Client) -> None:
        task = delayed(self.increment)(self.first)
        for _ in range(self.wanted - 1):
            task = delayed(self.increment)(task)
        self.outputs, self.expected = [task], [self.first + self.wanted]


class _Tree(_Graph):
    """Leaves, and sums of pairs of them up to one."""

    @property
    def leaves(self) -> int:
        return (self.wanted + 1) // 2

    @property
    def tasks(self) -> int:
        return 2 * self.leaves - 1

    def prepare(self, client: Client) -> None:
        inputs = range(self.first, self.first + self.leaves)
        level = [delayed(self.increment)(value) for value in inputs]
        while len(level) > 1:
            pairs = itertools.zip_longest(level[::2], level[1::2])
            level = [delayed(self.add)(a, b) if b is not None else a for a, b in pairs]
        self.outputs, self.expected = level, [sum(inputs) + self.leaves]


class _AllToAll(_Graph):
    """Half of the tasks need all of the other half."""

    @property
    def width(self) -> int:
        return max(1, self.wanted // 2)

    @property
    def tasks(self) -> int:
        return 2 * self.width

    def prepare(self, client: Client) -> None:
        inputs = range(self.first, self.first + self.width)
        left = [delayed(self.increment)(value) for value in inputs]
        self.outputs = [delayed(self.add_all)(left) for _ in range(self.width)]
        self.expected = [sum(inputs) + self.width] * self.width


_TINY_TASKS: dict[str, type[_TinyTasks]] = {
    "map": _Map,
    "chain": _Chain,
    "tree": _Tree,
    "all-to-all": _AllToAll,
    "submit": _Submit,
    "submit-impure": _SubmitImpure,
    "submit-chain": _SubmitChain,
}

#: Module and class of jobs that load what others do without
_ELSEWHERE = {"transpose-sum": "backhaul_bench.transpose_sum_job:TransposeSum"}


def make_job(name: str, **parameters: Any) -> Job:
    """Make a job by its name.

    Parameters
    ----------
    name : str
        One of the cases of ``backhaul bench tasks``, ``transpose-sum``, or module and class, like
        ``package.module:Class``.
    **parameters : Any
        Parameters of the job.

    Returns
    -------
    Job
        Not yet prepared.
    """
    module, colon, of_class = _ELSEWHERE.get(name, name).partition(":")
    kind = getattr(importlib.import_module(module), of_class) if colon else _TINY_TASKS[name]
    return kind(**parameters)

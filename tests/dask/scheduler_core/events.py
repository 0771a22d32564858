"""Events as plain values, so that a stream of them can be kept, shortened and handled again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Event", "Graph", "GraphTask"]


@dataclass(frozen=True)
class GraphTask:
    """A task of a graph: what it depends on, and what its annotations ask for, by name."""

    dependencies: tuple[str, ...]
    order: int
    annotations: dict[str, Any] = field(default_factory=dict)
    data_producer: bool = False


@dataclass(frozen=True)
class Graph:
    """A graph as a client sends it."""

    tasks: dict[str, GraphTask]
    wanted: tuple[str, ...]
    client: str
    #: Annotations that each of the tasks has.
    annotated: tuple[str, ...] = ()
    user_priority: int | dict[str, int] = 0
    submitting_task: str | None = None
    fifo_timeout_s: float = 0.0
    actors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Event:
    """One call of both schedulers."""

    name: str
    stimulus: str
    arguments: dict[str, Any]
    #: How much later it is than the last one, in seconds.
    after_s: float = 0.01

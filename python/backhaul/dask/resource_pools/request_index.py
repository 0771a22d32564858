"""Requests of a scheduler's tasks: read as graphs arrive, and looked up when needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from backhaul._native import ResourcePlaces
from backhaul.dask.compat.names import TaskState
from backhaul.dask.resource_pools.requests import (
    ANNOTATION,
    CPU,
    Needs,
    anyone_asks,
    apart_from_threads,
    declared_name,
    needs_of,
)
from backhaul.dask.serialize.pickled_task import PickledTask

__all__ = ["RequestClass", "RequestIndex", "ResourceSpec", "forget_refused"]


@dataclass(frozen=True, slots=True)
class RequestClass:
    """One distinct request, and its number in the places."""

    needs: Needs
    signature: int

    @property
    def is_beside(self) -> bool:
        """Return whether it takes less than a thread."""
        return self.needs.cpu < 1


class ResourceSpec(NamedTuple):
    """Request of a new task, as it is put where its scheduler and its worker look."""

    #: Amounts by name; what Dask calls its resource restrictions
    restrictions: dict[str, float]
    #: Annotations that carry the request to its worker, if anything
    carried: dict[str, Any] | None
    #: Whether it asks for anything but one thread
    asks: bool


class RequestIndex:
    """The distinct requests of a scheduler's tasks; the places number them."""

    def __init__(self, places: ResourcePlaces) -> None:
        self._places = places
        self._asked: dict[Any, RequestClass] = {}
        self._said: dict[Any, Needs] = {}

    def note(self, ts: TaskState, found: Needs | None, *, declares_cpu: bool) -> bool:
        """Put what a new task asks for where the scheduler and its worker look.

        `found` is the request of its functions, and `declares_cpu` says whether a worker has
        ``CPU`` as a resource of Dask's, which it then is. Tells whether the task asks for anything
        but one thread.
        """
        annotations = ts.annotations or {}
        wanted = self.wanted(
            annotations, ts.resource_restrictions or {}, found, declares_cpu=declares_cpu
        )
        if wanted is None:
            return False
        ts.resource_restrictions = wanted.restrictions or None
        if wanted.carried is not None:
            ts.annotations = {**annotations, ANNOTATION: wanted.carried}
        return wanted.asks

    def wanted(
        self,
        annotations: Mapping[str, Any],
        amounts: Mapping[str, float],
        found: Needs | None,
        *,
        declares_cpu: bool,
    ) -> ResourceSpec | None:
        """Say what a task asks for; None if it is for Dask alone to heed.

        `amounts` are resources that its annotations name; `found` and `declares_cpu` are those of
        `note`.

        Raises
        ------
        ConfigError
            If something cannot be asked for.
        """
        annotated = dict(amounts)
        theirs = annotated.pop(CPU, None) if declares_cpu else None
        if theirs is not None:
            # A request that no worker can meet is an error of the client, immediately.
            Needs({declared_name(CPU): theirs})
        if not annotated and theirs is not None and found is None:
            return None
        affinity = annotations.get("affinity", ())
        affinity = (affinity,) if isinstance(affinity, str) else tuple(affinity)
        said = (found, tuple(annotated.items()), affinity)
        needs = self._said.get(said)
        if needs is None:
            needs = (found or _NOTHING).with_annotated(annotated, affinity)
            self._said[said] = needs
        restrictions = dict(needs.resources)
        if theirs is not None:
            restrictions[CPU] = theirs
        carried = None
        if needs.cpu != 1 or needs.affinity:
            carried = {"CPU": needs.cpu, "affinity": list(needs.affinity)}
        return ResourceSpec(restrictions, carried, bool(restrictions) or needs.cpu != 1)

    def by(self, ts: TaskState) -> RequestClass | None:
        """Say what a task asks for; None for one thread and nothing else."""
        restrictions, annotations = ts.resource_restrictions, ts.annotations
        carried = annotations.get(ANNOTATION) if annotations else None
        if not restrictions and carried is None:
            return None
        return self.of((restrictions or {}).items(), carried["CPU"] if carried else 1.0)

    def of(self, restrictions: Iterable[tuple[str, float]], cpu: float) -> RequestClass:
        """Give the request of amounts and threads."""
        found = (tuple(restrictions), cpu)
        asked = self._asked.get(found)
        if asked is None:
            needs = Needs({**apart_from_threads(dict(found[0])), CPU: cpu})
            asked = RequestClass(needs, self._places.request(found[0], cpu))
            self._asked[found] = asked
        return asked

    def asks_for_threads(self, ts: TaskState) -> bool:
        """Tell whether an annotation of a task asks for ``CPU``, and was read as threads."""
        annotations = ts.annotations
        return (
            annotations is not None
            and ANNOTATION in annotations
            and CPU in (annotations.get("resources") or ())
            and CPU not in (ts.resource_restrictions or ())
        )

    def read_again(self, ts: TaskState) -> None:
        """Read a task again that asks for threads so, now that a worker has that as a resource."""
        annotations = ts.annotations or {}
        looks = anyone_asks() and type(ts.run_spec) is not PickledTask
        ts.annotations = {name: value for name, value in annotations.items() if name != ANNOTATION}
        ts.resource_restrictions = dict(annotations["resources"])
        self.note(ts, needs_of(ts.run_spec) if looks else None, declares_cpu=True)


def forget_refused(scheduler: Any, tasks: Iterable[TaskState]) -> None:
    """Forget tasks whose graph is refused: no client wants them, and none ever would."""
    ends = {
        ts.key: "forgotten"
        for ts in tasks
        if ts.state == "released" and not ts.dependents and not ts.who_wants
    }
    scheduler.transitions(ends, stimulus_id="graph-refused")


_NOTHING = Needs({})

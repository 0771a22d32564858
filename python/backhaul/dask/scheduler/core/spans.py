"""Spans and computations while the core has the groups, with views in their place."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from backhaul.dask.compat.names import Computation
from backhaul.dask.scheduler.core.export_state import fill_counts, fill_times

if TYPE_CHECKING:
    from backhaul.dask.scheduler.core.guarded_classes import Guards
    from backhaul.dask.scheduler.core.live_core import LiveCore

__all__ = ["Spans"]


class Spans:
    """Registers views of groups with the extension for spans, and with computations."""

    def __init__(self, live: LiveCore, guards: Guards) -> None:
        self._live = live
        self._guards = guards
        #: The view of each group in the core, and its computation, by name of the group
        self._groups: dict[str, tuple[Any, Any]] = {}
        known = guards.views.groups
        for computation in guards.computations():
            for group in computation.groups:
                mine = None if group is None else known.get(group.name)
                if mine is not None and mine is group:
                    self._groups[mine.name] = mine, computation

    def observe(
        self,
        groups: Mapping[str, tuple[str, Any]],
        span_metadata: Any,
        code: Any,
        annotations: Mapping[str, Any] | None = None,
    ) -> dict[str, str | None]:
        """Register the groups of a graph with the spans, before the core has the graph.

        `groups` has by name of each group its prefix and a key of one of its tasks; the annotations
        are those of all tasks. Returns the id of the span of each group.
        """
        computation = self._computation(code)
        computation.annotations.update(annotations or {})
        found = {}
        for name, (prefix, _) in groups.items():
            group = self._groups.get(name)
            if group is None:
                views = self._guards.views
                is_new = name not in views.groups
                group = views.group(name, prefix)
                self._groups[name] = group, computation
                # As Dask does: a group of before is part of the computation that it came with.
                if is_new:
                    computation.groups.add(group)
            else:
                group = group[0]
            found[name] = group
        extension = self._live.scheduler.extensions.get("spans")
        if extension is not None:
            tasks = [
                SimpleNamespace(key=key, group=found[name], annotations=None)
                for name, (_, key) in groups.items()
            ]
            extension.observe_tasks(tasks, span_metadata=span_metadata, code=code)
        return {name: group.span_id for name, group in found.items()}

    def gone(self, last: Mapping[str, Any]) -> None:
        """Turn the view of a group of `SchedulerCore.take_gone_groups` into a plain object."""
        self._groups.pop(last["name"], None)
        group = self._guards.views.release_group(last["name"])
        if group is not None:
            fill_counts(group, last)
            fill_times(group, last)

    def write(self) -> None:
        """Replace the views by the scheduler's groups, after an export."""
        scheduler = self._live.scheduler
        extension = scheduler.extensions.get("spans")
        for name, (group, computation) in self._groups.items():
            real = scheduler.task_groups.get(name)
            if real is None or real is group:
                # No task of the group was ever made, or the group is the same object.
                continue
            real.span_id = group.span_id
            computation.groups.discard(group)
            computation.groups.add(real)
            span = extension.spans.get(group.span_id) if extension is not None else None
            if span is not None:
                span.groups.discard(group)
                span.groups.add(real)
        self._groups.clear()

    def come_again(self, name: str, span_id: str | None) -> None:
        """Register a new group under a name that an earlier group had, in the span of that one."""
        scheduler = self._live.scheduler
        group = self._guards.views.group(name, name)
        group.span_id = span_id
        computations = self._guards.computations()
        if not computations:
            self.begin_computation()
        self._groups[name] = group, computations[-1]
        computations[-1].groups.add(group)
        extension = scheduler.extensions.get("spans")
        span = extension.spans.get(span_id) if extension is not None else None
        if span is not None:
            span.groups.add(group)

    def begin_computation(self) -> None:
        """Begin a computation, as Dask does with a graph that arrives at an idle scheduler."""
        self._guards.computations().append(Computation())

    def _computation(self, code: Any) -> Any:
        """Find or make the computation of new tasks, as Dask does."""
        computations = self._guards.computations()
        if self._live.core.is_idle() or not computations:
            self.begin_computation()
        computation = computations[-1]
        if code:
            computation.code.add(code)
        return computation

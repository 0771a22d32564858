"""Tasks placed by what links cost in streams of events: the policy in Python, and the core's.

Both get the same description of links, because nothing here measures any.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

from backhaul._native import Placement, SchedulerCore
from backhaul.dask.placement.link_placement import BETA, BETA_PRIVATE, memory_target
from backhaul.dask.scheduler.core.export_state import forgotten_task
from backhaul.dask.scheduler.core.placement import placement_of
from backhaul_bench.placement.policy import PolicyInPython

from .events import Event

__all__ = ["OurLinks", "our_placing", "place", "placing_of", "policy_of", "tell_links"]


def place(scheduler: Any) -> PolicyInPython:
    """Make a scheduler of upstream place by links."""
    policy = PolicyInPython(scheduler)
    policy.attach()
    return policy


def policy_of(scheduler: Any) -> PolicyInPython | None:
    """Return the policy of a scheduler of upstream; None if tasks are not placed by links."""
    found = placement_of(scheduler)
    assert found is None or isinstance(found, PolicyInPython)
    return found


def tell_links(
    mirror: Placement,
    *,
    nics: list[tuple[int, float]],
    flows: list[tuple[int, int, float, float]],
    request_s: float,
) -> None:
    """Describe links, which are between hosts by number."""
    mirror.set_hosts(nics, flows)
    mirror.set_request_seconds(request_s)


class _Named:
    """Stands for a worker of the core's, of which there is no object."""

    def __init__(self, address: str) -> None:
        self.address = address


class OurLinks:
    """The core's knowledge of workers and links."""

    def __init__(self) -> None:
        self.mirror = Placement(beta=BETA, beta_private=BETA_PRIVATE)
        self.hosts: dict[str, int] = {}
        #: Object and number of each worker that is there, by address
        self.workers: dict[str, tuple[Any, int]] = {}

    def begin(self, core: SchedulerCore) -> None:
        """Make a core place by these links."""
        core.place_by_links(self.mirror, [], memory_target())

    def before(self, event: Event) -> None:
        """Take in a worker that is about to join."""
        if event.name != "worker_added":
            return
        address = event.arguments["address"]
        if address not in self.workers:
            host = self.hosts.setdefault(event.arguments["host"], len(self.hosts))
            worker = _Named(address)
            self.workers[address] = worker, self.mirror.add_worker(worker, host, host)

    def after(self, event: Event) -> None:
        """Forget a worker that has gone."""
        if event.name == "worker_removed" and event.arguments["address"] in self.workers:
            worker, _ = self.workers.pop(event.arguments["address"])
            self.mirror.remove_worker(worker)

    def go_on(self, core: SchedulerCore, scheduler: Any) -> None:
        """Make a scheduler of upstream place by the knowledge of the core that it was made from."""
        placement = PolicyInPython(scheduler)
        placement.mirror = placement.roots.mirror = self.mirror
        placement.hosts = self.hosts

        def replace(ws: Any) -> None:
            _, number = self.workers[ws.address]
            self.mirror.replace_worker(number, ws)
            placement._states[ws.address] = ws
            placement._by_host.setdefault(ws.host, []).append(ws.address)
            placement.roots.add_worker(ws, number)

        vars(placement)["_add"] = replace
        placement.attach()
        del vars(placement)["_add"]
        _write_placing(core, scheduler)

    @classmethod
    def of(cls, scheduler: Any) -> OurLinks:
        """Take over what a scheduler of upstream's knows, for a core that is made of it."""
        placement = policy_of(scheduler)
        assert placement is not None
        ours = cls()
        ours.mirror, ours.hosts = placement.mirror, placement.hosts
        numbers = placement.roots.numbers
        ours.workers = {ws.address: (ws, number) for ws, number in numbers.items()}
        return ours


def _write_placing(core: SchedulerCore, scheduler: Any) -> None:
    """Export the core's data about placement to a scheduler that has the core's tasks."""
    placement = policy_of(scheduler)
    said = core.placing()
    if placement is None or said is None:
        return
    workers, tasks = scheduler.workers, scheduler.tasks
    roots = placement.roots
    roots.nbytes.clear()
    roots.nbytes.update(said["result_bytes"])
    # One that left half done, as an event was refused, is not there.
    roots.hints = OrderedDict(
        (text, workers[address]) for text, address in said["hints"].items() if address in workers
    )

    def planned(text: str, is_there: bool) -> Any:
        return tasks[text] if is_there else forgotten_task(text, scheduler)

    roots.own = {
        workers[address]: deque(planned(*root) for root in own)
        for address, own in said["own"].items()
        if address in workers
    }
    promised = [one for one in said["promised"] if one[2] in workers]
    needed = {
        address: {ts.key: ts for ts in workers[address].needs_what} for _, _, address in promised
    }
    renamed = ((number, needed[address].get(text)) for number, text, address in promised)
    placement.mirror.rename([(number, ts) for number, ts in renamed if ts is not None])


def placing_of(scheduler: Any) -> dict[str, Any] | None:
    """Say what a scheduler of upstream's knows for placing tasks by links."""
    placement = policy_of(scheduler)
    if placement is None:
        return None
    roots = placement.roots
    hints = {key: ws.address for key, ws in sorted(roots.hints.items()) if key in scheduler.tasks}
    needed = {id(ts): ts.key for ws in scheduler.workers.values() for ts in ws.needs_what}
    return {
        "result_bytes": dict(sorted(roots.nbytes.items())),
        # Of tasks that are gone a new core has none.
        "hints": hints,
        "own": _own(
            {ws.address: [str(ts.key) for ts in own] for ws, own in roots.own.items()}, hints
        ),
        "promised": sorted(
            # Promises to workers that left in a half-done event are not needed.
            (needed[task], roots.states[number].address)
            for task, number in placement.mirror.promised()
            if task in needed and number in roots.states
        ),
    }


def our_placing(core: SchedulerCore) -> dict[str, Any] | None:
    """Say what a core knows, in the form of `placing_of`."""
    said = core.placing()
    if said is None:
        return None
    tasks = set(core.keys())
    hints = {key: address for key, address in sorted(said["hints"].items()) if key in tasks}
    own = {address: [key for key, _ in own] for address, own in said["own"].items()}
    return {
        **said,
        "hints": hints,
        "own": _own(own, hints),
        "promised": sorted((key, address) for _, key, address in said["promised"]),
    }


def _own(own: dict[str, list[str]], hints: dict[str, str]) -> dict[str, list[str]]:
    listed = {address: [key for key in keys if key in hints] for address, keys in own.items()}
    return {address: keys for address, keys in listed.items() if keys}

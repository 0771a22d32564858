"""Starvation guard: units are reserved for a request that others have overtaken too often.

A request for much, such as a whole group of GPUs, may find nothing while requests for little take
each unit as it gets free. Here it is counted how many leases went past each request that waits:
those of tasks that come after it, for something that it needs too. After `PASSES_MAX` of them what
it needs is kept for it, one request at a time; what others hold by then stays with them. So it
waits for at most so many of those that came later, and for those that run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, Generic, TypeVar

__all__ = ["PASSES_MAX", "StarvationGuard"]

#: Leases that may go past a request before what it needs is kept for it
PASSES_MAX: Final = 16

_K = TypeVar("_K")


class StarvationGuard(Generic[_K]):
    """The requests that wait, and who went past them.

    `keep` keeps what a request needs for it, and returns False if that cannot be; `keep_no_longer`
    lends it to all again.

    Attributes
    ----------
    kept : request or None
        The request that something is reserved for.
    """

    def __init__(
        self,
        *,
        names_of: Callable[[_K], Collection[str]],
        keep: Callable[[_K], bool],
        keep_no_longer: Callable[[], None],
    ) -> None:
        self.kept: _K | None = None
        self._names_of = names_of
        self._keep = keep
        self._keep_no_longer = keep_no_longer
        #: Where the first task stands that waits, and how many went past it
        self._waiting: dict[_K, tuple[Any, int]] = {}

    def refused(self, request: _K, place: Any) -> None:
        """Note that the first task of a request waits, and where it stands among all tasks."""
        _, passes = self._waiting.get(request, (None, 0))
        self._waiting[request] = place, passes

    def granted(self, request: _K, place: Any) -> None:
        """Note that a task has got what it asks for, and where it stood among all tasks."""
        if not self._waiting:
            return
        if request == self.kept:
            self.kept = None
        self._waiting.pop(request, None)
        names = set(self._names_of(request))
        for other, (stands, passes) in self._waiting.items():
            if stands < place and not names.isdisjoint(self._names_of(other)):
                self._waiting[other] = stands, passes + 1
        if self.kept is None:
            self._keep_for_next()

    def left(self, request: _K) -> bool:
        """Note that no task waits with a request any more; say whether others may go on for it."""
        self._waiting.pop(request, None)
        if self.kept is None or self.kept != request:
            return False
        self.kept = None
        self._keep_no_longer()
        return True

    def forget_kept(self) -> None:
        """Note that nothing is kept any more, as what there is has changed."""
        self.kept = None

    def waits(self, request: _K, place: Any, passes: int, *, is_kept: bool) -> None:
        """Take over a request that waits: its first task's place, and how many went past it."""
        self._waiting[request] = place, passes
        if is_kept:
            self.kept = request

    def waiting(self) -> list[tuple[_K, Any, int]]:
        """Return each request that waits, its first task's place, and how many went past it."""
        return [(request, place, passes) for request, (place, passes) in self._waiting.items()]

    def clear(self) -> None:
        """Forget all that wait."""
        self._waiting.clear()
        self.kept = None

    def _keep_for_next(self) -> None:
        for request, (_, passes) in self._waiting.items():
            if passes >= PASSES_MAX and self._keep(request):
                self.kept = request
                return

"""Requests of tasks: the decorator `resources`, and how requests are found again in a graph.

A function says by an attribute what each of its calls needs. Annotations are lost when tasks are
fused (dask/dask#7036); an attribute travels with the function, through fusion, graphs that are
dictionaries, and pickles. The annotation ``resources`` of Dask's means what it always has; where
both are there, it wins, name by name.
"""

from __future__ import annotations

import functools
import itertools
import numbers
import re
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final, TypeVar

from backhaul._native import ResourceRequest
from backhaul.dask.compat.names import GraphNode
from backhaul.errors import ConfigError

__all__ = [
    "ANNOTATION",
    "ATTRIBUTE",
    "BESIDE_TASKS",
    "CPU",
    "Needs",
    "anyone_asks",
    "apart_from_threads",
    "declared_name",
    "needs_of",
    "resources",
]

#: Name of the resource that every task asks for unless it says otherwise: a thread of its worker
CPU: Final = "CPU"
#: Name of an additional request of each task that takes no thread; each worker has some of it
BESIDE_TASKS: Final = "tasks without CPU"
#: Put before names of users' resources that mean something else here
_DECLARED: Final = "declared "
_TAKEN: Final = re.compile(f"(?:{_DECLARED})*(?:{CPU}|{BESIDE_TASKS})")
#: Under this name a function has what its calls ask for
ATTRIBUTE: Final = "backhaul_resources"
#: Under this name a task's annotations carry to its worker what Dask has no place for
ANNOTATION: Final = "backhaul-resources"
#: Objects of one task that are looked at for functions that ask for something
_LOOKS_MAX: Final = 1000

_F = TypeVar("_F", bound=Callable[..., Any])
_Value = TypeVar("_Value")

#: Whether anything of this process has ever asked; until then no task is looked at
_asked = False


def anyone_asks() -> bool:
    """Tell whether a function that asks for something was ever seen in this process."""
    return _asked


def declared_name(name: str) -> str:
    """Return the name here of a resource that a user declares for Dask.

    It is the user's, but for ``CPU``, which is a number of threads here, `BESIDE_TASKS`, and names
    that another one of these gets: no two names become the same one.

    Examples
    --------
    >>> [declared_name(name) for name in ("GPU", "CPU", "declared CPU")]
    ['GPU', 'declared CPU', 'declared declared CPU']
    """
    return _DECLARED + name if _TAKEN.fullmatch(name) else name


def apart_from_threads(by_name: Mapping[str, _Value]) -> dict[str, _Value]:
    """Name resources as `declared_name` does."""
    return {declared_name(name): value for name, value in by_name.items()}


class Needs:
    """Request of each call of a function; immutable, and equal to an equal request.

    Parameters
    ----------
    amounts : mapping of str to float
        Amounts in units, by name of the resource. ``CPU`` is 1 unless it is there.
    affinity : iterable of str
        Names of those of which the units are preferred that the inputs ran on.

    Attributes
    ----------
    cpu : float
        Threads of a worker that it takes.
    resources : dict of str to float
        All other amounts, without those of nothing.
    request : ResourceRequest
        The same for the pools of a worker.

    Raises
    ------
    ConfigError
        If an amount is negative or no number, or an affinity is to something that is not asked for.
    """

    __slots__ = ("_hash", "_key", "affinity", "cpu", "request", "resources")

    def __init__(self, amounts: Mapping[str, float], affinity: Iterable[str] = ()) -> None:
        given = {name: _amount(name, units) for name, units in amounts.items()}
        preferred = (affinity,) if isinstance(affinity, str) else tuple(affinity)
        try:
            request = ResourceRequest({**given, CPU: given.get(CPU, 1.0)}, list(preferred))
        except (TypeError, ValueError) as error:
            raise ConfigError(str(error)) from None
        asked = request.needs
        if CPU in request.affinity:
            raise ConfigError("affinity to CPU: the threads of a worker have no ids")
        self.cpu = asked.pop(CPU, 0.0)
        self.resources = asked
        self.affinity = tuple(request.affinity)
        self.request = ResourceRequest(asked, list(self.affinity))
        self._key = (self.cpu, self.request)
        self._hash = hash(self._key)

    def __reduce__(self) -> Any:
        return _asking, ({**self.resources, CPU: self.cpu}, self.affinity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Needs) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        said = [f"{name}={units:g}" for name, units in {**self.resources, CPU: self.cpu}.items()]
        if self.affinity:
            said.append(f"affinity={list(self.affinity)}")
        return f"resources({', '.join(said)})"

    def __or__(self, other: Needs) -> Needs:
        """Combine what two functions ask for that run as one task: the larger of each."""
        if self == other:
            return self
        amounts = {**self.resources, CPU: max(self.cpu, other.cpu)}
        for name, units in other.resources.items():
            amounts[name] = max(units, amounts.get(name, 0.0))
        return Needs(amounts, dict.fromkeys((*self.affinity, *other.affinity)))

    def with_annotated(self, annotated: Mapping[str, float], affinity: Iterable[str]) -> Needs:
        """Replace what annotations say otherwise."""
        if not annotated and not affinity:
            return self
        return Needs(
            {**self.resources, CPU: self.cpu, **annotated},
            dict.fromkeys((*self.affinity, *affinity)),
        )


def resources(*, affinity: Iterable[str] = (), **amounts: float) -> Callable[[_F], _F]:
    """Say what each call of a function needs while it runs.

    Parameters
    ----------
    affinity : iterable of str
        Names of resources of which the units are preferred that the inputs of the task ran on, or
        else units of the same group.
    **amounts : float
        Amounts in units: ``GPU=1``, ``GPU=0.5`` for a share of one, ``MEMORY=2e9``. ``CPU`` is the
        number of threads, 1 unless it is said; with ``CPU=0`` a call runs beside those that fill
        the threads of a worker.

    Returns
    -------
    callable
        Marks a function, and gives it back.

    Raises
    ------
    ConfigError
        If an amount is negative or no number, or an affinity is to something that is not asked for.
    TypeError
        If what is decorated can have no attributes.

    Examples
    --------
    >>> @resources(GPU=1, CPU=0, affinity=["GPU"])
    ... def kernel(x):
    ...     return x + 1
    >>> kernel(1)
    2
    """
    needs = _asking(amounts, affinity)

    def mark(function: _F) -> _F:
        if not callable(function):
            raise TypeError(f"only what can be called asks for resources, not {function!r}")
        try:
            setattr(function, ATTRIBUTE, needs)
        except (AttributeError, TypeError) as error:
            raise TypeError(
                f"{function!r} can have no attributes; decorate a function that calls it"
            ) from error
        return function

    return mark


def needs_of(spec: Any) -> Needs | None:
    """Find what a task asks for through the functions in it; None if none of them asks.

    Fused, nested and partial functions are inspected, closures are not. Of several functions that
    run as one task, it is the larger of each amount.
    """
    found: Needs | None = None
    stack = [spec]
    looks = 0
    while stack and looks < _LOOKS_MAX:
        looks += 1
        part = stack.pop()
        kind = type(part)
        if kind is FunctionType:
            needs = part.__dict__.get(ATTRIBUTE) if part.__dict__ else None
            if needs is not None:
                found = needs if found is None else found | needs
        elif kind in _PLAIN:
            continue
        elif isinstance(part, GraphNode):
            stack.append(getattr(part, "func", None))
            stack.extend(getattr(part, "args", ()))
            stack.extend(getattr(part, "kwargs", {}).values())
        elif kind in (tuple, list, set, frozenset):
            stack.extend(itertools.islice(part, _LOOKS_MAX))
        elif kind is dict:
            stack.extend(itertools.islice(part.values(), _LOOKS_MAX))
        elif callable(part):
            if isinstance(part, functools.partial):
                stack.append(part.func)
                stack.extend(part.args)
                stack.extend(part.keywords.values())
            needs = getattr(part, ATTRIBUTE, None)
            if isinstance(needs, Needs):
                found = needs if found is None else found | needs
    return found


#: Classes of values that hold no function with a request
_PLAIN = frozenset(
    {bool, bytes, complex, float, int, str, slice, type(None), BuiltinFunctionType, type}
)


def _asking(amounts: Mapping[str, float], affinity: Iterable[str]) -> Needs:
    """Make what a function asks for, here or in the process that it comes from."""
    global _asked
    _asked = True
    return Needs(amounts, affinity)


def _amount(name: str, units: Any) -> float:
    if isinstance(units, bool) or not isinstance(units, numbers.Real):
        raise ConfigError(f"a task cannot ask for {units!r} of {name}: it is no number")
    return float(units)

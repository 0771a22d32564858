"""How something of Dask's is replaced, when that is refused, and how it is put back.

A replacement rests on the source of what it replaces or relies upon. It is made only where that
source does what a source did that was read (`backhaul.dask.compat.normalized_source`). Otherwise,
or if another package has replaced the function before, Dask runs as it is, and the log says so
once. `backhaul.dask.compat.process_patches` and `backhaul.dask.compat.instance_patches` list all
that is replaced.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import starmap
from types import FunctionType
from typing import Any, Final

import distributed

from backhaul.dask.compat.digests import DIGESTS
from backhaul.dask.compat.function_origin import (
    IN_PLACE,
    belongs,
    is_pristine,
    name_of,
    package_over,
    source_of,
)
from backhaul.dask.compat.names import MissingName, resolve
from backhaul.dask.compat.normalized_source import source_digest

__all__ = [
    "READ_RELEASES",
    "Function",
    "InstancePatch",
    "Patch",
    "Refusal",
    "Replacement",
    "Requirement",
    "log_refusal",
    "named_as",
    "of",
    "source_digest",
]

logger = logging.getLogger(__name__)

#: Releases of distributed whose sources were read, the oldest and the newest
READ_RELEASES: Final = ("2026.7.1", "2026.8.0")

#: Sources that a warning has named, so that one cause is one line in the log of a process
_named_in_log: set[str] = set()

#: Stands for what was not there
_ABSENT: Final = object()

#: Steps of the path of a slot: an attribute, or the key of an item
_STEPS: Final = re.compile(r"(\w+)|\[([^]]+)\]")


@dataclass(frozen=True)
class Refusal:
    """Says why something of Dask is not replaced."""

    #: The reason, for people
    text: str
    #: The causes: sources that are missing, that differ, or that another package has replaced
    sources: tuple[str, ...]

    def __str__(self) -> str:
        return self.text

    def is_new(self) -> bool:
        """Tell whether the log has yet to name one of the causes, and take all for named."""
        is_new = not _named_in_log.issuperset(self.sources)
        _named_in_log.update(self.sources)
        return is_new


@dataclass(frozen=True)
class Function:
    """A function of a class or module, and the one that takes its place."""

    #: The class or module, as `backhaul.dask.compat.names.resolve` finds it, and the name there
    path: str
    #: Makes our function from Dask's: module and function under `backhaul.dask`. A name, so that
    #: nothing is imported before it is installed
    replace: str

    def __str__(self) -> str:
        owner, _, name = self.path.rpartition(".")
        try:
            return f"{name_of(self.place)}.{name}"
        except MissingName:
            return f"{owner.replace(':', '.')}.{name}"

    @property
    def name(self) -> str:
        """The name of the function in its class or module."""
        return self.path.rpartition(".")[2]

    @property
    def place(self) -> Any:
        """The class or module that has the function."""
        return resolve(self.path.rpartition(".")[0])

    def current(self) -> Any:
        """Get what the owner has now, unbound; None if it has nothing of that name."""
        return inspect.getattr_static(self.place, self.name, None)

    def make(self) -> Callable[[], Replacement]:
        """Make our function; the result puts it in the place of Dask's."""
        module, _, function = self.replace.rpartition(".")
        make: Callable[[Any], Any] = getattr(
            importlib.import_module(f"backhaul.dask.{module}"), function
        )
        original = self.current()
        ours = named_as(original, make(original))
        return functools.partial(_replace_attribute, self.place, self.name, ours, original)


@dataclass(frozen=True, kw_only=True, eq=False)
class Patch:
    """The functions of classes and modules that one feature replaces, for the whole process.

    All of them are replaced, or none.
    """

    #: The key under ``distributed.comm.backhaul`` that switches it on
    switch: str
    #: The functions
    functions: tuple[Function, ...]
    #: The sources that were read: the functions, and each other function, class or module that must
    #: behave as it did then. Each is named as for `backhaul.dask.compat.names.resolve`, and has its
    #: digests in `backhaul.dask.compat.digests`. A class stands for all its methods; where ours
    #: needs some of them only, these are named
    read: tuple[str, ...]
    #: The consequence where it is refused, for people
    without: str = "which is slower"

    def __str__(self) -> str:
        return ", ".join(map(str, self.functions))

    def refusal(self) -> Refusal | None:
        """Say why it cannot be installed; None if it can."""
        try:
            for function in self.functions:
                resolve(function.path)
            return _refusal(self.read, *(function.current() for function in self.functions))
        except MissingName as error:
            return Refusal(str(error), (error.path,))

    def install(self) -> tuple[Replacement, ...]:
        """Put our functions in the place of Dask's; to be called only if there is no `refusal`.

        `MissingName` if a name that one of our functions needs is missing; nothing was changed.
        """
        made = [function.make() for function in self.functions]
        return tuple(replace() for replace in made)


@dataclass(frozen=True, kw_only=True, eq=False)
class Requirement:
    """Sources of Dask that a feature relies upon, where the feature replaces nothing."""

    #: The place in Dask, for people
    shown: str
    #: The feature that does not work where it is refused, for people
    without: str
    #: As for `Patch`
    read: tuple[str, ...]

    def __str__(self) -> str:
        return self.shown

    def refusal(self, *values: Any) -> Refusal | None:
        """Return why the feature is refused; None if all sources are as read.

        `values` are the present values of what is replaced; one that another package has put there
        refuses.
        """
        try:
            return _refusal(self.read, *values)
        except MissingName as error:
            return Refusal(str(error), (error.path,))

    def fits(self, *values: Any) -> bool:
        """Tell whether there is no `refusal`; otherwise the log names it, once for each cause."""
        return self._logged(self.refusal(*values))

    def _logged(self, refusal: Refusal | None) -> bool:
        if refusal is not None and refusal.is_new():
            log_refusal(logger, "Backhaul leaves %s as it is (%s): %s", self, self.without, refusal)
        return refusal is None


@dataclass(frozen=True, kw_only=True, eq=False)
class InstancePatch(Requirement):
    """The replacements on one object of Dask's that serve one feature; `shown` names the object."""

    #: Paths from the object to what is replaced: an attribute (``__class__`` for the class), or an
    #: item of a mapping, as in ``stream_handlers[task-finished]``; ``data.fast.evict`` names an
    #: attribute of another object
    slots: tuple[str, ...]

    def __str__(self) -> str:
        more = len(self.slots) - 1
        return f"{self.shown}.{self.slots[0]}" + (f" and {more} more" if more else "")

    def fits_on(self, owner: Any, *slots: str) -> bool:
        """Tell whether it can be installed; if not, the log says why, once for each cause.

        The slots are those that are to be replaced; all of them if none is given.
        """
        try:
            values = [_Place.of(owner, slot).current() for slot in slots or self.slots]
        except (AttributeError, KeyError) as error:
            return self._logged(Refusal(str(error), (str(self),)))
        return self.fits(*values)

    def install(self, owner: Any, ours: Mapping[str, Any]) -> dict[str, Replacement]:
        """Put replacements, by slot, on one object: all of those that are given, or none.

        Returns what takes the replacements back, by slot; empty if they were refused and nothing
        was changed.
        """
        assert set(ours) <= set(self.slots), f"{self}: {sorted(ours)}"
        if not self.fits_on(owner, *ours):
            return {}
        return {slot: _Place.of(owner, slot).replace(value) for slot, value in ours.items()}


@dataclass(frozen=True)
class _Place:
    """An attribute of an object, an item of a mapping, or all items of a list (``[:]``)."""

    container: Any
    name: str
    is_item: bool

    @classmethod
    def of(cls, owner: Any, slot: str) -> _Place:
        """Follow a path; `AttributeError` or `KeyError` if an object on the way is missing."""
        *way, (attribute, item) = _STEPS.findall(slot)
        for name, key in way:
            owner = owner[key] if key else getattr(owner, name)
        return cls(owner, item or attribute, is_item=bool(item))

    def current(self) -> Any:
        """Return the present value; `_ABSENT` for an item that is missing.

        `AttributeError` if an attribute is missing.
        """
        if not self.is_item:
            return getattr(self.container, self.name)
        return self.container[:] if self.name == ":" else self.container.get(self.name, _ABSENT)

    def replace(self, ours: Any) -> Replacement:
        """Replace the value."""
        original = self.current()
        if not self.is_item:
            return _replace_attribute(self.container, self.name, ours, original)
        self._set_item(ours)
        return Replacement(ours, original, self._restore)

    def _set_item(self, value: Any) -> None:
        if self.name == ":":
            self.container[:] = value
        elif value is _ABSENT:
            del self.container[self.name]
        else:
            self.container[self.name] = value

    def _restore(self, ours: Any, original: Any) -> bool:
        found = self.current()
        # The items of a list are compared, because `found` is a copy.
        if found != ours if self.name == ":" else found is not ours:
            return False
        self._set_item(original)
        return True


class Replacement:
    """Something of Dask's that was replaced; `restore` puts it back if `ours` is still there."""

    __slots__ = ("_original", "_restore", "ours")

    def __init__(self, ours: Any, original: Any, restore: Callable[[Any, Any], bool]) -> None:
        self.ours = ours
        self._original = original
        self._restore = restore

    @property
    def original(self) -> Any:
        """Return the value before; None if there was none."""
        return None if self._original is _ABSENT else self._original

    def take_back(self) -> bool:
        """Put back the value before, unless the patch was replaced; tell whether it is back."""
        return self._restore(self.ours, self._original)


def _replace_attribute(owner: Any, name: str, ours: Any, original: Any) -> Replacement:
    # A name that was inherited, from a base class or from the class of an object, is inherited
    # again once ours is deleted.
    is_own = name == "__class__" or name in getattr(owner, "__dict__", ())

    def restore(ours: Any, original: Any) -> bool:
        found = inspect.getattr_static(owner, name, None) if name != "__class__" else type(owner)
        if found is not ours:
            return False
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
        if isinstance(function, FunctionType):
            vars(function).pop(IN_PLACE, None)
        return True

    function = _getter(ours)
    setattr(owner, name, ours)
    if isinstance(function, FunctionType):
        setattr(function, IN_PLACE, (function, _getter(original)))
    return Replacement(ours, original, restore)


def _getter(found: Any) -> Any:
    return found.fget if isinstance(found, property) else found


def _refusal(read: Iterable[str], *originals: Any) -> Refusal | None:
    """Say which sources differ from what was read, or have been replaced by another package.

    `MissingName` if one is missing.
    """
    #: Names by the package that has replaced what they name; None where Dask itself differs
    strange: dict[str | None, list[str]] = {}
    known: list[Any] = []
    for name in read:
        source = source_of(name)
        known.append(source)
        if source_digest(source) not in DIGESTS[name] or not is_pristine(source):
            shown = name_of(source)
            # A replacement that was made in a function is not known by its own name.
            shown = name if "<locals>" in shown else shown
            strange.setdefault(package_over(source), []).append(shown)
    if not strange:
        for original in originals:
            if not belongs(original, known):
                package = package_over(original) or "another package"
                strange.setdefault(package, []).append(name_of(original))
    if not strange:
        return None
    sources = tuple(name for names in strange.values() for name in names)
    return Refusal("; ".join(starmap(_cause, strange.items())), sources)


def _cause(package: str | None, names: list[str]) -> str:
    """Say in what way some sources are not those that were read."""
    shown, read = ", ".join(names), " to ".join(READ_RELEASES)
    if package is not None:
        return f"{package} has replaced {shown}"
    verb = "differs" if len(names) == 1 else "differ"
    version = distributed.__version__
    if version in READ_RELEASES:
        return f"{shown} {verb} from what was read of distributed {read}"
    age = "older" if _numbers(version) < _numbers(READ_RELEASES[0]) else "newer"
    return f"{shown} of distributed {version}, {age} than what was read ({read}), {verb}"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def named_as(original: Any, ours: Any) -> Any:
    """Give a function the names and the docstring of the one that it replaces, and return it."""
    for attribute in ("__name__", "__qualname__", "__doc__"):
        if (value := getattr(original, attribute, None)) is not None:
            setattr(ours, attribute, value)
    return ours


def of(owner: str, names: str) -> tuple[str, ...]:
    """Name methods of one class, for what is `read`; spaces are between the names."""
    return tuple(f"{owner}.{name}" for name in names.split())


def log_refusal(log: logging.Logger, message: str, *arguments: object) -> None:
    """Log why a part of Backhaul is left out.

    In a release that was read another library has changed Dask, which is a warning. In any other
    release many parts are left out, which `backhaul.dask.compat.activation` reports in one line.
    """
    is_read = distributed.__version__ in READ_RELEASES
    log.log(logging.WARNING if is_read else logging.DEBUG, message, *arguments)

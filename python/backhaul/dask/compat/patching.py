"""How something of Dask's is replaced, when that is refused, and how it is put back.

A replacement rests on the source of what it replaces or relies upon. It is made only where that
source does what a source did that was read (`backhaul.dask.compat.normalized_source`). Otherwise,
or if another package has replaced the function before, Dask runs as it is, and the log says so
once. `backhaul.dask.compat.process_patches` and `backhaul.dask.compat.instance_patches` list all
that is replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import logging
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Final

import distributed
import distributed.utils
import tornado.gen
import zict.common

import dask
from backhaul.dask.compat.digests import DIGESTS
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
    "as_dask_has_it",
    "is_dasks",
    "is_pristine",
    "log_refusal",
    "of",
    "source_digest",
    "source_of",
]

logger = logging.getLogger(__name__)

#: Decorators that Dask and its libraries use, and the code that `dataclass` makes, whose
#: ``__repr__`` is wrapped by a function of ``reprlib`` from Python 3.13 on
_DECORATORS = {
    contextlib.__file__,
    dataclasses.__file__,
    functools.__file__,
    reprlib.__file__,
    tornado.gen.__file__,
    zict.common.__file__,
    "<string>",
}

#: Releases of distributed whose sources were read, the oldest and the newest
READ_RELEASES: Final = ("2026.7.1", "2026.8.0")

#: Sources that a warning has named, so that one cause is one line in the log of a process
_named_in_log: set[str] = set()

#: Stands for what was not there
_ABSENT: Final = object()

#: Steps of the path of a slot: an attribute, or the key of an item
_STEPS: Final = re.compile(r"(\w+)|\[([^]]+)\]")

#: Attribute of a function of this package: itself, and the function that it replaces now. On the
#: function, as a table would keep each worker and scheduler that has one of its own for as long as
#: the process lives; with itself, as `functools.wraps` copies attributes
_IN_PLACE: Final = "_backhaul_in_place"


@dataclass(frozen=True)
class Refusal:
    """Says why something of Dask is not replaced.

    Parameters
    ----------
    text : str
        The reason, for people.
    sources : tuple of str
        The causes: sources that are missing, that differ, or that another package has replaced.
    """

    text: str
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
    """A function of a class or module, and the one that takes its place.

    Parameters
    ----------
    path : str
        The class or module, as `backhaul.dask.compat.names.resolve` finds it, and the name there.
    replace : str
        Makes our function from Dask's: module and function under `backhaul.dask`. A name, so that
        nothing is imported before it is installed.
    """

    path: str
    replace: str

    def __str__(self) -> str:
        owner, _, name = self.path.rpartition(".")
        try:
            return f"{_name(self.place)}.{name}"
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
        ours = make(original)
        for attribute in ("__name__", "__qualname__", "__doc__"):
            if (value := getattr(original, attribute, None)) is not None:
                setattr(ours, attribute, value)
        return functools.partial(_replace_attribute, self.place, self.name, ours, original)


@dataclass(frozen=True, kw_only=True, eq=False)
class Patch:
    """The functions of classes and modules that one feature replaces, for the whole process.

    All of them are replaced, or none.

    Parameters
    ----------
    switch : str
        The key under ``distributed.comm.backhaul`` that switches it on.
    functions : tuple of Function
        The functions.
    read : tuple of str
        The sources that were read: the functions, and each other function, class or module that
        must behave as it did then. Each is named as for `backhaul.dask.compat.names.resolve`, and
        has its digests in `backhaul.dask.compat.digests`. A class stands for all its methods; where
        ours needs some of them only, these are named.
    without : str
        The consequence where it is refused, for people.
    """

    switch: str
    functions: tuple[Function, ...]
    read: tuple[str, ...]
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

        Raises
        ------
        MissingName
            If a name that one of our functions needs is missing; nothing was changed.
        """
        made = [function.make() for function in self.functions]
        return tuple(replace() for replace in made)


@dataclass(frozen=True, kw_only=True, eq=False)
class Requirement:
    """Sources of Dask that a feature relies upon, where the feature replaces nothing.

    Parameters
    ----------
    shown : str
        The place in Dask, for people.
    without : str
        The feature that does not work where it is refused, for people.
    read : tuple of str
        As for `Patch`.
    """

    shown: str
    without: str
    read: tuple[str, ...]

    def __str__(self) -> str:
        return self.shown

    def refusal(self, *values: Any) -> Refusal | None:
        """Return why the feature is refused; None if all sources are as read.

        Parameters
        ----------
        *values : object
            Present values of what is replaced; one that another package has put there refuses.
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
    """The replacements on one object of Dask's that serve one feature.

    Parameters
    ----------
    shown : str
        The object, for people.
    slots : tuple of str
        Paths from the object to what is replaced: an attribute (``__class__`` for the class), or
        an item of a mapping, as in ``stream_handlers[task-finished]``; ``data.fast.evict`` names an
        attribute of another object.
    """

    slots: tuple[str, ...]

    def __str__(self) -> str:
        more = len(self.slots) - 1
        return f"{self.shown}.{self.slots[0]}" + (f" and {more} more" if more else "")

    def fits_on(self, owner: Any, *slots: str) -> bool:
        """Tell whether it can be installed; if not, the log says why, once for each cause.

        Parameters
        ----------
        owner : object
            The object.
        *slots : str
            The slots that are to be replaced; all of them if none is given.
        """
        try:
            values = [_Place.of(owner, slot).current() for slot in slots or self.slots]
        except (AttributeError, KeyError) as error:
            return self._logged(Refusal(str(error), (str(self),)))
        return self.fits(*values)

    def install(self, owner: Any, ours: Mapping[str, Any]) -> dict[str, Replacement]:
        """Put replacements on one object: all of those that are given, or none.

        Parameters
        ----------
        owner : object
            The object.
        ours : mapping
            The replacements by slot.

        Returns
        -------
        dict
            Takes the replacements back, by slot; empty if they were refused and nothing was
            changed.
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
        """Follow the path of a slot.

        Raises
        ------
        AttributeError, KeyError
            If an object on the way is missing.
        """
        *way, (attribute, item) = _STEPS.findall(slot)
        for name, key in way:
            owner = owner[key] if key else getattr(owner, name)
        return cls(owner, item or attribute, is_item=bool(item))

    def current(self) -> Any:
        """Return the present value; `_ABSENT` for an item that is missing.

        Raises
        ------
        AttributeError
            If an attribute is missing.
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
    """Something of Dask's that was replaced, and how it is put back.

    Parameters
    ----------
    ours : object
        The present value.
    original : object
        The value before.
    restore : callable
        Puts the latter back, if the former is still there, and tells whether it was.
    """

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
            vars(function).pop(_IN_PLACE, None)
        return True

    function = _getter(ours)
    setattr(owner, name, ours)
    if isinstance(function, FunctionType):
        setattr(function, _IN_PLACE, (function, _getter(original)))
    return Replacement(ours, original, restore)


def _getter(found: Any) -> Any:
    return found.fget if isinstance(found, property) else found


def _refusal(read: Iterable[str], *originals: Any) -> Refusal | None:
    """Say which sources differ from what was read, or have been replaced by another package.

    Raises
    ------
    MissingName
        If a source is missing.
    """
    #: Names by the package that has replaced what they name; None where Dask itself differs
    strange: dict[str | None, list[str]] = {}
    known: list[Any] = []
    for name in read:
        source = source_of(name)
        known.append(source)
        if source_digest(source) not in DIGESTS[name] or not is_pristine(source):
            shown = _name(source)
            # A replacement that was made in a function is not known by its own name.
            shown = name if "<locals>" in shown else shown
            strange.setdefault(_package_over(source), []).append(shown)
    if not strange:
        for original in originals:
            if not _belongs(original, known):
                package = _package_over(original) or "another package"
                strange.setdefault(package, []).append(_name(original))
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


def of(owner: str, names: str) -> tuple[str, ...]:
    """Name methods of one class, for what is `read`; spaces are between the names."""
    return tuple(f"{owner}.{name}" for name in names.split())


def source_of(name: str) -> Any:
    """Find a function, class or module of Dask as Dask has it, the function of a property.

    Raises
    ------
    MissingName
        If there is none.
    """
    found = resolve(name)
    if isinstance(found, property):
        found = found.fget
    return as_dask_has_it(getattr(found, "__func__", found))


def _belongs(original: Any, known: Iterable[Any]) -> bool:
    """Tell whether what is replaced comes from where the sources that were read come from, or here.

    Values that are no functions are not checked: no source was read, and no code here calls them. A
    function of this package in that place calls the one that it has replaced.
    """
    if isinstance(original, functools.partial):
        original = original.func
    original = original.__func__ if isinstance(original, MethodType) else original
    original = getattr(original, "func", original)
    if not callable(original) or isinstance(original, type):
        return True
    if not isinstance(original, FunctionType):
        return False
    homes = set(filter(None, map(inspect.getsourcefile, known)))
    return all(file in homes or _is_ours(file) for file in _files(original))


def as_dask_has_it(found: Any) -> Any:
    """Return the function of Dask that a replacement stands for, or the object itself."""
    while isinstance(found, FunctionType):
        ours, original = vars(found).get(_IN_PLACE, (None, None))
        if ours is not found:
            break
        found = original
    return found


def log_refusal(log: logging.Logger, message: str, *arguments: object) -> None:
    """Log why a part of Backhaul is left out.

    In a release that was read another library has changed Dask, which is a warning. In any other
    release many parts are left out, which `backhaul.dask.compat.activation` reports in one line.
    """
    is_read = distributed.__version__ in READ_RELEASES
    log.log(logging.WARNING if is_read else logging.DEBUG, message, *arguments)


def is_dasks(handler: Any) -> bool:
    """Tell whether a function or method is Dask's, or ours in the place of it, and no program's."""
    handler = handler.__func__ if isinstance(handler, MethodType) else handler
    files = _files(handler)
    return bool(files) and all(map(_is_dasks_or_ours, files))


@functools.cache
def _is_dasks_or_ours(file: str) -> bool:
    home = Path(distributed.__file__).parent
    path = Path(file)
    if not path.is_relative_to(home):
        return _is_ours(file)
    # Its tests are programs, too.
    return "tests" not in path.relative_to(home).parts


def _is_ours(file: str) -> bool:
    return Path(__file__).parents[1] in Path(file).parents


def _name(source: Any) -> str:
    return str(getattr(source, "__qualname__", None) or getattr(source, "__name__", source))


def _wrapped(function: Any) -> Iterator[FunctionType]:
    """Yield a function and those that it wraps; a replacement counts as what it replaces."""
    if isinstance(function, (classmethod, staticmethod)):
        function = function.__func__
    elif isinstance(function, property):
        function = function.fget
    while isinstance(function := as_dask_has_it(function), FunctionType):
        yield function
        function = getattr(function, "__wrapped__", None)


def _files(function: Any) -> set[str]:
    """Collect the files that a function, its decorators and what they wrap were compiled from."""
    return {
        each.__code__.co_filename
        for each in _wrapped(function)
        # Dask's own decorators, such as `log_errors`, wrap functions of other modules.
        if not hasattr(each, "__wrapped__")
        or each.__code__.co_filename != distributed.utils.__file__
    } - _DECORATORS


def _package_over(source: Any) -> str | None:
    """Name the package that has replaced or wrapped a function, or one of a class or module."""
    home, parts = "", [source]
    if isinstance(source, type) or inspect.ismodule(source):
        home = str(inspect.getsourcefile(source))
        parts = [part for part in vars(source).values() if isinstance(part, FunctionType)]
    for part in parts:
        for function in _wrapped(part):
            file = function.__code__.co_filename
            if file not in {home, *_DECORATORS} and not _is_of_dask(file) and not _is_ours(file):
                # Not its ``__module__``, which `functools.wraps` copies
                return str(function.__globals__.get("__name__", file)).partition(".")[0]
    return None


@functools.cache
def _is_of_dask(file: str) -> bool:
    homes = (Path(str(module.__file__)).parent for module in (dask, distributed, zict))
    return any(Path(file).is_relative_to(home) for home in homes)


def is_pristine(source: Any) -> bool:
    """Tell whether only Backhaul has replaced or wrapped a function, or one of a class or module.

    A wrapper shows the source of what it wraps, and a class that of the file that it came from, so
    a digest alone would not tell.
    """
    if isinstance(source, FunctionType):
        return len(_files(source)) == 1
    parts = list(vars(source).values())
    if isinstance(source, type):
        home = sys.modules[source.__module__].__file__
    else:
        home = source.__file__
        # Functions that a module has imported belong to other modules.
        parts = [part for part in parts if getattr(part, "__module__", None) == source.__name__]
    return all(_files(part) <= {home} for part in parts)

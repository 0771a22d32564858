"""Origin of functions: Dask, this package, or another one that has replaced or wrapped them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import reprlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, Final

import distributed
import distributed.utils
import tornado.gen
import zict.common

import dask
from backhaul.dask.compat.names import resolve

__all__ = [
    "IN_PLACE",
    "as_dask_has_it",
    "belongs",
    "is_dasks",
    "is_pristine",
    "name_of",
    "package_over",
    "source_of",
]

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

#: Members of a class or module that have code
_FUNCTIONS: Final = (FunctionType, classmethod, staticmethod, property)

#: Attribute of a function of this package: itself, and the function that it replaces now. On the
#: function, as a table would keep each worker and scheduler that has one of its own for as long as
#: the process lives; with itself, as `functools.wraps` copies attributes
IN_PLACE: Final = "_backhaul_in_place"


def source_of(name: str) -> Any:
    """Find a function, class or module of Dask as Dask has it, the function of a property.

    `MissingName` if there is none.
    """
    found = resolve(name)
    if isinstance(found, property):
        found = found.fget
    return as_dask_has_it(getattr(found, "__func__", found))


def belongs(original: Any, known: Iterable[Any]) -> bool:
    """Tell whether a value that is replaced is from files of known sources, or from this package.

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
    homes = set(filter(None, map(_home_of, known)))
    return all(file in homes or _is_ours(file) for file in _files(original))


def _home_of(source: Any) -> str | None:
    # For a function `inspect` asks the file system whether the file is there.
    if isinstance(source, FunctionType):
        return source.__code__.co_filename
    return inspect.getsourcefile(source)


def as_dask_has_it(found: Any) -> Any:
    """Return the function of Dask that a replacement stands for, or the object itself."""
    while isinstance(found, FunctionType):
        ours, original = vars(found).get(IN_PLACE, (None, None))
        if ours is not found:
            break
        found = original
    return found


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
    # The simulator, a distribution beside this one, has a policy in the place of methods, too.
    home = Path(__file__).parents[2]
    return not {home, home.with_name("backhaul_bench")}.isdisjoint(Path(file).parents)


def name_of(source: Any) -> str:
    """Return the name of a function, class or module, for people."""
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
    if isinstance(function, FunctionType) and not vars(function):
        # Neither a wrapper nor a replacement, as most functions
        return {function.__code__.co_filename} - _DECORATORS
    return {
        each.__code__.co_filename
        for each in _wrapped(function)
        # Dask's own decorators, such as `log_errors`, wrap functions of other modules.
        if not hasattr(each, "__wrapped__")
        or each.__code__.co_filename != distributed.utils.__file__
    } - _DECORATORS


def package_over(source: Any) -> str | None:
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
    return all(_files(part) <= {home} for part in parts if isinstance(part, _FUNCTIONS))

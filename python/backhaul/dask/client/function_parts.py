"""Parts that the pickle of a function by value depends on.

cloudpickle writes a function of the main program, a nested function or a lambda by value: its code
and the globals, closure and defaults that the code uses. As long as all of these are the same
objects and none of them can change in place, the pickle is the same, and so is Dask's token of the
function. Looking takes a few microseconds, pickling takes hundreds.
"""

from __future__ import annotations

import sys
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, Final

__all__ = ["are_same", "is_at_its_name", "parts_of"]

#: Values of exactly these types cannot change
_CONSTANT: Final = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type(...), CodeType}
)

#: Marks a missing global: the name may be that of a builtin or an attribute
_ABSENT: Final = object()

#: Most parts that are compared; a function with more is pickled each time
_PARTS_MAX: Final = 200


def is_at_its_name(found: Any) -> bool:
    """Return whether a pickle of a function or class is its name; not so in the main program."""
    module = found.__module__
    if module is None or module == "__main__":
        return False
    owner: Any = sys.modules.get(module)
    for name in found.__qualname__.split("."):
        owner = getattr(owner, name, None)
    return owner is found


def parts_of(function: FunctionType) -> list[Any] | None:
    """Return all that the pickle of a function by value depends on, for `are_same`.

    Returns None if a part may change in place.
    """
    # cloudpickle writes the submodules that the code may use, of those that are imported by now.
    parts: list[Any] = [len(sys.modules)]
    try:
        fixed = _add_function(function, parts, set())
    except (NameError, ValueError):  # An annotation names nothing yet, or a cell is empty.
        return None
    return parts if fixed else None


def are_same(parts: list[Any], others: list[Any]) -> bool:
    """Return whether two results of `parts_of` have the same parts: the same objects."""
    if len(parts) != len(others) or parts[0] != others[0]:
        return False
    return all(map(is_, parts[1:], others[1:]))


def _add_function(function: FunctionType, parts: list[Any], seen: set[int]) -> bool:
    if id(function) in seen:
        return True
    seen.add(id(function))
    code = function.__code__
    parts += (
        function,
        code,
        function.__name__,
        function.__qualname__,
        function.__module__,
        function.__doc__,
    )
    if function.__dict__ or len(parts) > _PARTS_MAX:
        return False
    values: list[Any] = [*(function.__defaults__ or ())]
    for named in (function.__kwdefaults__, function.__annotations__):
        for name, value in (named or {}).items():
            parts.append(name)
            values.append(value)
    values += (cell.cell_contents for cell in function.__closure__ or ())
    # A file or package of another name is part of the pickle, too.
    scope = function.__globals__
    names = ["__package__", "__name__", "__path__", "__file__", *_names_of(code)]
    values += (scope.get(name, _ABSENT) for name in names)
    return all(_add(value, parts, seen) for value in values)


def _names_of(code: CodeType) -> list[str]:
    names = [*code.co_names]
    for constant in code.co_consts:
        if type(constant) is CodeType:
            names += _names_of(constant)
    return names


def _add(value: Any, parts: list[Any], seen: set[int]) -> bool:
    """Add a value to the parts; return whether it cannot change in place."""
    parts.append(value)
    kind = type(value)
    if kind in _CONSTANT or value is _ABSENT:
        return True
    if kind is tuple:
        return all(_add(item, parts, seen) for item in value)
    if kind is FunctionType:
        return is_at_its_name(value) or _add_function(value, parts, seen)
    if kind is ModuleType:
        return value.__name__ != "__main__" and sys.modules.get(value.__name__) is value
    if kind is BuiltinFunctionType or isinstance(value, type):
        return is_at_its_name(value)
    return False

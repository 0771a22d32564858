"""Tasks and their functions: what may be sent without pickling it again.

The native codec writes a simple task as a payload of its own (``crates/dask-python/src/codec``) and
asks `describe` how to send its function. Its pickle is nothing but a call of
`backhaul.dask.serialize.codec.load_task`, so any process that has this package can read it with the
pickle module alone.
"""

from __future__ import annotations

import dis
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final, TypeAlias

import cloudpickle

from backhaul.dask.compat.names import Alias, DataNode, Task, TaskRef, by_value_modules, containers
from backhaul.dask.compat.names import pickle as dask_pickle
from backhaul.dask.serialize.pickled_task import PickledTask, Unloadable

__all__ = ["describe", "names"]

#: A dictionary, and names in it with their values, or alone if there is no such name.
Named: TypeAlias = tuple[dict[str, object], list[tuple[str, object] | tuple[str]]]

#: A function, its attributes, the cells of its closure with their contents, the names that it uses
#: in its namespace, and the attributes that the program gave it.
Parts: TypeAlias = tuple[FunctionType, list[object], list[tuple[CellType, object]], Named, Named]

#: Attributes that are compared before a pickle is used again, in the order of ``functions.rs``.
_ATTRIBUTES: Final = (
    "__code__",
    "__defaults__",
    "__kwdefaults__",
    "__name__",
    "__qualname__",
    "__module__",
)

#: Classes whose instances never change.
_ATOMS: Final = frozenset(
    {type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented)}
)

#: Code of functions that were found to capture what may change: asked about once.
_refused: set[CodeType] = set()
_REFUSED_MAX: Final = 10_000


def names(load_task: Callable[[bytes], Any]) -> dict[str, Any]:
    """Return what the native codec has to know of tasks.

    `load_task` is the function of a module that a pickled task calls with its payload.
    """
    return {
        "tasks": (Task, *containers),
        "slots": tuple(
            sorted({slot for kind in Task.mro() for slot in vars(kind).get("__slots__", ())})
        ),
        "task_ref": TaskRef,
        "alias": Alias,
        "data_node": DataNode,
        "partial": partial,
        "functions": (FunctionType, BuiltinFunctionType),
        "describe": describe,
        "by_value_modules": by_value_modules,
        "kept": PickledTask,
        "raising": Unloadable,
        # PROTO 5, the names of `load_task` as SHORT_BINUNICODE, STACK_GLOBAL
        "spec_prefix": b"\x80\x05" + _short(load_task.__module__) + _short("load_task") + b"\x93",
    }


def describe(function: Any) -> tuple[str, str] | tuple[bytes, list[Parts]] | None:
    """Say how a function or class can be sent apart from the task that it is part of.

    Returns module and name, if it can be imported; its pickle and all that the pickle depends on,
    if it is a function that is pickled by value and captures nothing that could change; otherwise
    nothing, and it must be pickled each time. Mutable objects may be in its defaults, closure,
    attributes and in the names that it uses: they may be other ones at the next pickling, and a
    receiver that shares the function among tasks would share them, too. So do functions that assign
    to names outside themselves.
    """
    if type(function) is FunctionType and function.__code__ in _refused:
        return None
    found = _importable(function)
    if found is not None:
        return found
    if type(function) is not FunctionType or cloudpickle.list_registry_pickle_by_value():
        return None
    parts: list[Parts] = []
    if not _is_fixed_function(function, parts, set()):
        if len(_refused) >= _REFUSED_MAX:
            _refused.clear()
        _refused.add(function.__code__)
        return None
    try:
        pickled = cloudpickle.dumps(function, protocol=dask_pickle.HIGHEST_PROTOCOL)
    except Exception:
        # The whole task is pickled next, which fails with the message for the user.
        return None
    return pickled, parts


def _importable(found: Any) -> tuple[str, str] | None:
    """Give module and name of an object that pickle writes as no more than these."""
    try:
        pickled = pickle.dumps(found, protocol=4)
    except Exception:
        return None
    module = getattr(found, "__module__", None) or _module_in(pickled)
    name = getattr(found, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    # Some objects have another module and name than those they are found by; a pickle of the object
    # has the right ones.
    for candidate in ((module, name), (_module_in(pickled), name)):
        if candidate[0] and _pickle_of_name(*candidate) == pickled:
            return candidate
    return None


def _module_in(pickled: bytes) -> str:
    """Read the first name of a pickle that starts with one."""
    # PROTO 4, FRAME and its length, SHORT_BINUNICODE and its length
    if pickled[11:12] != b"\x8c" or len(pickled) < 13:
        return ""
    return pickled[13 : 13 + pickled[12]].decode("utf-8", "replace")


def _pickle_of_name(module: str, name: str) -> bytes:
    try:
        body = _short(module) + b"\x94" + _short(name) + b"\x94\x93\x94."
    except (OverflowError, UnicodeEncodeError, ValueError):
        return b""
    return b"\x80\x04\x95" + len(body).to_bytes(8, "little") + body


def _short(text: str) -> bytes:
    """Write a short string as pickle does (SHORT_BINUNICODE)."""
    encoded = text.encode()
    return b"\x8c" + bytes([len(encoded)]) + encoded


def _is_fixed(value: object, parts: list[Parts], seen: set[int]) -> bool:
    """Tell whether a captured object is the same for ever, adding the functions that it is of."""
    if type(value) in _ATOMS:
        return True
    if type(value) in (tuple, frozenset):
        return all(_is_fixed(item, parts, seen) for item in value)  # type: ignore[attr-defined]
    if isinstance(value, ModuleType):
        name = value.__name__
        return name != "__main__" and sys.modules.get(name) is value
    if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
        found = _importable(value)
        if found is not None:
            # Any other object that it has by name may be another one after a module is loaded
            # again, and the receiver would go on with the old one.
            return found[0] == "builtins"
    if type(value) is FunctionType:
        return _is_fixed_function(value, parts, seen)
    return False


def _is_fixed_function(function: FunctionType, parts: list[Parts], seen: set[int]) -> bool:
    if id(function) in seen:
        return True
    seen.add(id(function))
    uses = list(_names_used(function.__code__))
    if any(changes or name in _REACHING for name, changes in uses):
        return False
    namespace = function.__globals__
    values: list[tuple[str, object] | tuple[str]] = []
    for name in dict.fromkeys(name for name, _ in uses):
        values.append((name, namespace[name]) if name in namespace else (name,))
    try:
        cells = [(cell, cell.cell_contents) for cell in function.__closure__ or ()]
    except ValueError:
        # A cell of the closure has no value yet.
        return False
    captured = [
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
        *(content for _, content in cells),
        *function.__dict__.values(),
        *(value[1] for value in values if len(value) == 2),
    ]
    # It is compared by identity, which would not show a change of the dictionary.
    if function.__kwdefaults__:
        return False
    if not all(_is_fixed(value, parts, seen) for value in captured):
        return False
    if _sets_attributes(function.__code__) and any(type(v) is FunctionType for v in captured):
        # It may keep state in itself, or in another function.
        return False
    attributes = [getattr(function, name) for name in _ATTRIBUTES]
    own: Named = (function.__dict__, list(function.__dict__.items()))
    parts.append((function, attributes, cells, (namespace, values), own))
    return True


#: Builtins through which a function changes what its code does not name.
_REACHING = frozenset({"globals", "locals", "vars", "exec", "eval", "setattr", "delattr"})


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _names_used(code: CodeType) -> Iterator[tuple[str, bool]]:
    """List the names outside a function that it uses, and whether it assigns to them."""
    free = frozenset(code.co_freevars)
    for inner in _codes(code):
        for instruction in dis.get_instructions(inner):
            name = instruction.argval
            match instruction.opname:
                case "LOAD_GLOBAL" | "LOAD_NAME" | "LOAD_FROM_DICT_OR_GLOBALS":
                    yield name, False
                case "STORE_GLOBAL" | "DELETE_GLOBAL":
                    yield name, True
                case "STORE_DEREF" | "DELETE_DEREF" if name in free:
                    yield name, True
                case _:
                    pass


def _sets_attributes(code: CodeType) -> bool:
    return any(
        instruction.opname in ("STORE_ATTR", "DELETE_ATTR")
        for inner in _codes(code)
        for instruction in dis.get_instructions(inner)
    )

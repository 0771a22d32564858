"""From JSON to frozen dataclasses and back, by their annotations.

A frozenset of int is CPUs, a list like ``0-3,8`` in JSON.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Iterable
from typing import Any, TypeVar

__all__ = ["cpu_list", "from_json", "read_cpu_list", "to_json"]

_T = TypeVar("_T")


def read_cpu_list(text: str) -> frozenset[int]:
    """Read CPUs as Linux lists them.

    Parameters
    ----------
    text : str
        A list such as ``0-3,8``, as the native module writes it.

    Returns
    -------
    frozenset of int
        The CPUs.
    """
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def cpu_list(cpus: Iterable[int]) -> str:
    """Write CPUs as Linux lists them.

    Parameters
    ----------
    cpus : iterable of int
        Their numbers, in any order.

    Returns
    -------
    str
        A list such as ``0-3,8``.
    """
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def from_json(kind: type[_T], value: Any) -> _T:
    """Make an instance of a dataclass from an object of JSON with the same names."""
    hints = _hints(typing.cast(Any, kind))
    return kind(**{name: _read(hint, value[name]) for name, hint in hints.items()})


def to_json(value: Any) -> Any:
    """Make what `json` can write of a dataclass."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, frozenset):
        return cpu_list(value)
    if isinstance(value, tuple):
        return [to_json(member) for member in value]
    return value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _read(hint: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is frozenset:
        return read_cpu_list(value)
    if origin is types.UnionType:
        return None if value is None else _read(arguments[0], value)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_read(arguments[0], member) for member in value)
        pairs = zip(arguments, value, strict=True)
        return tuple(_read(argument, member) for argument, member in pairs)
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast(type, hint), value)
    return value

"""Resources of a worker, as users declare them: in code, on the command line, in the configuration.

Three ways of saying it mean ids: a whole number counts them from zero, ``[0, 1]`` names them, and
``[[0, 1], [2, 3]]`` puts them into groups that belong together. A float is an amount, of bytes for
example, without ids; so is a whole number above 4096. Of what the machine knows, ``"all"`` is what
the process may use: see `backhaul.dask.resource_pools.machine_pools`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from backhaul._native import ResourcePools
from backhaul.errors import ConfigError

__all__ = ["ALL", "IDS_MAX", "Declared", "checked", "groups_of", "parse", "totals"]

#: By name: ids in groups, or an amount, or a whole number of units, or all that there are
Declared: TypeAlias = "dict[str, float | str | list[int] | list[list[int]]]"

#: Declares all units of the machine that a process may use
ALL: Final = "all"
#: A whole number above this is an amount
IDS_MAX: Final = 4096
#: Pools of which the machine knows all units
_KNOWN: Final = ("GPU", "CORE", "NIC")


def checked(declared: Mapping[str, Any] | None) -> Declared:
    """Check what a worker is said to have, and return it as lists and numbers for any message.

    Tuples are as good as lists, and None is nothing. ``"all"`` stays what it is.

    Raises
    ------
    ConfigError
        If groups overlap, an amount is negative or no number, or something is neither a number nor
        ids. Names it.
    """
    found: Declared = {name: _plain(value) for name, value in (declared or {}).items()}
    counted = {}
    for name, value in found.items():
        if value != ALL:
            counted[name] = value
        elif name not in _KNOWN:
            raise ConfigError(
                f"resources={declared!r}: a machine knows all of {', '.join(_KNOWN)}, not of {name}"
            )
    try:
        ResourcePools(counted)
    except (OverflowError, TypeError, ValueError) as error:
        raise ConfigError(f"resources={declared!r}: {error}") from error
    return found


def totals(declared: Mapping[str, Any]) -> dict[str, float]:
    """Count what is declared, for Dask, which knows numbers only; without what is `ALL`."""
    return {
        name: value if isinstance(value, int | float) else sum(map(len, _groups(value)))
        for name, value in declared.items()
        if value != ALL
    }


def groups_of(declared: Mapping[str, Any]) -> dict[str, list[list[int]]]:
    """Give the ids of each pool that names any, by group."""
    return {
        name: _groups(value)
        for name, value in declared.items()
        if not isinstance(value, int | float | str)
    }


def parse(text: str | None) -> Declared:
    """Read resources from a command line.

    Its parts are like ``GPU=2``, ``GPU=[0,1]``, ``GPU=[[0,1],[2,3]]``, ``CORE=all`` and
    ``MEMORY=64e9``, with spaces or commas between them. `ConfigError` if one cannot be read, or
    `checked` refuses it.
    """
    found: dict[str, Any] = {}
    for part in _parts(text or ""):
        name, equals, value = part.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name:
            raise ConfigError(f"--resources must be like NAME=VALUE, got {part!r}")
        if value == ALL:
            found[name] = value
            continue
        try:
            found[name] = json.loads(value, parse_constant=_refuse)
        except ValueError as error:
            raise ConfigError(
                f"--resources {part}: {value!r} is neither a number nor ids like [[0,1],[2,3]]"
            ) from error
    return checked(found)


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _parts(text: str) -> list[str]:
    """Split at spaces and commas that are outside of brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter in ", \t\n" and depth <= 0:
            parts.append("")
        elif not letter.isspace():
            parts[-1] += letter
    return [part for part in parts if part]


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple | set | frozenset | range):
        return [_plain(each) for each in value]
    return value


def _groups(value: Any) -> list[list[int]]:
    return value if value and isinstance(value[0], list) else [value]

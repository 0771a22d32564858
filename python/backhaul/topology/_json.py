"""Dataclasses as JSON. A frozenset of int is CPUs, a list like ``0-3,8`` in JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

__all__ = ["cpu_list", "to_json"]


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

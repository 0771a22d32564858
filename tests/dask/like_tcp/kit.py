"""Kit of the programs: registration, and descriptions of values, exceptions and log lines as text.

A program is a function that takes a `Run` and returns an observation. `describe` turns each
observation into text that does not depend on the protocol, the time, or addresses in memory.
"""

from __future__ import annotations

import array
import hashlib
import logging
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from distributed import LocalCluster, Scheduler

__all__ = [
    "PROGRAMS",
    "Observation",
    "Program",
    "Run",
    "describe",
    "described_error",
    "normal_lines",
    "normal_text",
    "outcome",
    "program",
]

Observation: TypeAlias = Any


def _addresses(dask_scheduler: Scheduler) -> list[str]:
    workers = dask_scheduler.workers.values()
    return [each.address for each in sorted(workers, key=lambda each: str(each.name))]


@dataclass(frozen=True)
class Run:
    """Cluster and client that a program is given.

    Attributes
    ----------
    client : distributed.Client
        The client.
    cluster : distributed.LocalCluster
        The cluster, with two workers of one thread each in processes of their own.
    """

    client: Any
    cluster: LocalCluster

    @property
    def workers(self) -> list[str]:
        """Addresses of the workers, in the order of their names."""
        return list(self.client.run_on_scheduler(_addresses))

    def submit_on(
        self, number: int, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Submits a call that runs on the worker with that number, and runs each time."""
        return self.client.submit(
            function, *args, pure=False, workers=[self.workers[number]], **kwargs
        )


@dataclass(frozen=True)
class Program:
    """One program of the suite.

    Attributes
    ----------
    name : str
        Subject and name, as ``exceptions.unpicklable``.
    function : callable
        The program.
    own_cluster : bool
        The program changes its cluster, which no other program may use.
    logs : bool
        Warnings and errors that are logged are compared.
    left : bool
        Leftovers are waited for and compared.
    config : mapping
        Configuration of a cluster of its own.
    """

    name: str
    function: Callable[[Run], Observation]
    own_cluster: bool = False
    logs: bool = True
    left: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)


#: All programs that have been imported, by their names
PROGRAMS: dict[str, Program] = {}


def program(
    *,
    own_cluster: bool = False,
    logs: bool = True,
    left: bool = True,
    config: Mapping[str, Any] | None = None,
) -> Callable[[Callable[[Run], Observation]], Callable[[Run], Observation]]:
    """Registers a program of the suite."""

    def register(function: Callable[[Run], Observation]) -> Callable[[Run], Observation]:
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        assert name not in PROGRAMS, name
        is_alone = own_cluster or bool(config) or not left
        PROGRAMS[name] = Program(name, function, is_alone, logs, left, config or {})
        return function

    return register


# Text

_LONG = 400

_NORMAL: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\b(?:tcp|backhaul|inproc)://[\w.:\[\]/*-]+", "ADDRESS"),
        (r"\b127\.0\.0\.1:\d+", "HOST:PORT"),
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UUID"),
        (r"\b(Client|Scheduler|Worker|Nanny|LocalCluster)-UUID(-worker)?", r"\1-UUID"),
        (r"\b[0-9a-f]{32}\b", "TOKEN"),
        (r"\b0x[0-9a-f]{6,}\b", "POINTER"),
        (r"\b(pid|process) \d+", r"\1 PID"),
        (r"\b\d+(?:\.\d+)?(?:e-\d+)?\s?(?:s|ms|us|µs|seconds)\b", "DURATION"),
        (r"\bstimulus_id='[^']*'", "stimulus_id='ID'"),
        (r"\b(\w+(?:-\w+)*)-\d{10}\.\d+\b", r"\1-TIME"),
    ]
)


def normal_text(text: str) -> str:
    """Replaces what differs between two runs over the same protocol: addresses, ids, times."""
    for pattern, replacement in _NORMAL:
        text = pattern.sub(replacement, text)
    return text


#: Text of the error when the time limit of a synchronous call is over (`distributed.utils.sync`)
_TIME_LIMIT = re.compile(r"(?:timed out after [\d.]+ s\.)?")

#: Log lines that depend on the load of the machine
_OF_LOAD = re.compile(
    r"unresponsive|garbage collection|Unmanaged memory|moving large amount|Sending large graph"
    r"|took longer than|is already in use|heartbeat|Shuffle \w+ (initialized|deactivated)"
)


def normal_lines(records: Iterable[tuple[str, int, str]]) -> list[str]:
    """Returns warnings and errors as sorted text, without those that the load decides."""
    return sorted(
        f"{logging.getLevelName(level)} {name}: {normal_text(message)}"
        for name, level, message in records
        if level >= logging.WARNING and not _OF_LOAD.search(message)
    )


# Values


@dataclass(frozen=True)
class Described:
    """Description of a value or an exception within an observation."""

    text: Any


def describe(value: object) -> Any:
    """Returns plain text, or lists and dictionaries of text, that stand for a value."""
    kind = type(value)
    if isinstance(value, Described):
        return value.text
    if value is None or kind in (bool, int, float, complex, str):
        return _shortened(normal_text(repr(value)))
    if kind in (bytes, bytearray, memoryview):
        return f"{kind.__name__} {_digest(bytes(cast(Any, value)))}"
    if isinstance(value, array.array):
        return f"array {value.typecode} {_digest(value.tobytes())}"
    if kind in (list, tuple):
        return [kind.__name__, *map(describe, value)]  # type: ignore[call-overload]
    if kind in (set, frozenset):
        return [kind.__name__, *sorted(map(str, map(describe, value)))]  # type: ignore[call-overload]
    if isinstance(value, Mapping):
        return {
            "is a": kind.__name__,
            **{str(describe(key)): describe(each) for key, each in value.items()},
        }
    if isinstance(value, np.ma.MaskedArray):
        return ["masked", _array(value.data), _array(np.ma.getmaskarray(value))]
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, pa.Table):
        return ["Table", str(value.schema), _shortened(str(value.to_pydict()))]
    if isinstance(value, pd.DataFrame | pd.Series | pd.Index):
        return [kind.__name__, _shortened(str(getattr(value, "dtypes", ""))), _frame(value)]
    if isinstance(value, BaseException):
        return described_error(value)
    return f"{kind.__module__}.{kind.__qualname__} {_shortened(normal_text(repr(value)))}"


def _frame(value: Any) -> str:
    return _shortened(value.to_csv() if hasattr(value, "to_csv") else repr(list(value)))


def _array(value: np.ndarray[Any, Any]) -> list[str]:
    flags = value.flags
    content = (
        _shortened(repr(value.tolist()))
        if value.size < 30
        else _digest(value.tolist().__repr__().encode())
        if value.dtype.hasobject
        else _digest(value.tobytes())
    )
    return [
        type(value).__name__,
        str(value.dtype),
        f"{value.shape} {value.strides}",
        f"{'writeable' if flags.writeable else 'read-only'} "
        f"{'C' if flags.c_contiguous else ''}{'F' if flags.f_contiguous else ''}",
        content,
    ]


def _digest(content: bytes) -> str:
    return f"{len(content)} bytes {hashlib.sha256(content).hexdigest()[:12]}"


def _shortened(text: str) -> str:
    if len(text) <= _LONG:
        return text
    return f"{text[:_LONG]}... {_digest(text.encode())}"


# Exceptions


def described_error(error: BaseException) -> dict[str, Any]:
    """Returns type, text, causes and the frames of the program of an exception."""
    if isinstance(error, TimeoutError) and _TIME_LIMIT.fullmatch(str(error)):
        # A synchronous call waits in two threads, and either may notice first that the time is up.
        return {"raised": "TimeoutError", "text": "the time limit of a call"}
    found: dict[str, Any] = {
        "raised": f"{type(error).__module__}.{type(error).__qualname__}",
        "text": _text_of(error),
        "args": [_shortened(normal_text(repr(each))) for each in error.args],
        "frames": [
            f"{frame.name}: {frame.line}"
            for frame in traceback.extract_tb(error.__traceback__)
            if "like_tcp" in frame.filename and "outcome" not in frame.name
        ],
    }
    if error.__cause__ is not None:
        found["cause"] = described_error(error.__cause__)
    elif error.__context__ is not None and not error.__suppress_context__:
        found["context"] = described_error(error.__context__)
    if notes := getattr(error, "__notes__", None):
        found["notes"] = notes
    if isinstance(error, BaseExceptionGroup):
        found["group"] = [described_error(each) for each in error.exceptions]
    return found


def _text_of(error: BaseException) -> str:
    try:
        return _shortened(normal_text(str(error)))
    except Exception as other:
        return f"no text: {other}"


def outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns the description of what a call returned or raised."""
    try:
        return Described(describe(function(*args, **kwargs)))
    except BaseException as error:
        found = described_error(error)
        # The client keeps the exception of a future, and that the frames that it was raised in.
        error.__traceback__ = None
        return Described(found)

"""Settings under ``distributed.comm.backhaul``, read from ``dask.config``.

The defaults, with a line on each key, are in ``backhaul-dask.yaml`` in the folder above; importing
this module registers them. Keys that programs for UCX set elsewhere are read too (`ucx_options`).
Values are read when a listener or a comm is made, not at import, so ``dask.config.set`` works, and
Nanny passes them on to its worker with the rest of the configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from dask.utils import parse_bytes, parse_timedelta

import dask
from backhaul.dask.config.secret import Secret, read_secret
from backhaul.dask.config.ucx_options import read_ucx_keys

__all__ = [
    "Settings",
    "SmallResultLimits",
    "WindowLimits",
    "beside_tasks_max",
    "configured",
    "explained_runs_max",
    "is_choice",
    "small_result_limits",
    "switched_on",
    "transfers_links_max",
    "work_in_hand_limits",
]

_T = TypeVar("_T")
_N = TypeVar("_N", int, float)

_ROOT = "distributed.comm.backhaul"

# Every worker reads it at its start, and the loader in C takes a tenth of the time of the other.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DEFAULTS = yaml.load(
    (Path(__file__).parents[1] / "backhaul-dask.yaml").read_text(encoding="utf-8"), Loader=_LOADER
)
dask.config.update_defaults(_DEFAULTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The configuration at one moment.

    Parameters
    ----------
    contact_host, contact_interface : str or None
        The address to advertise for a listener that is bound to every interface.
    high_water_mark_bytes : int
        A write waits while more than this is queued for its peer.
    sends_max : int
        Most messages queued for one peer.
    share_results : bool
        Results of tasks may be lent to workers that ask for them.
    allocate : bool
        NumPy's arrays of a worker are born in the arena.
    device_frames : bool or None
        Memory of GPUs comes from peers as it is, where it can; None: in processes that use GPUs.
    device_allocator : str or None
        The allocator for arrays from other GPUs, see `backhaul.dask.comm.device_frames`.
    nvtx : bool
        Whether ranges of NVTX mark the work of comms.
    native : tuple of (str, object)
        Arguments of `backhaul.Context`, sorted, without those left to Backhaul. Hashable: equal
        settings share a context.
    secret : Secret or None
        The secret that all processes of the cluster prove to each other that they have.
    ucx : tuple of (str, str)
        Variables that UCX shall find in the environment while a context is made, sorted.
    arena : tuple of (str, int) or None
        Arguments of `backhaul.Arena`, sorted, without those left to Backhaul; None to do without.
    """

    contact_host: str | None
    contact_interface: str | None
    high_water_mark_bytes: int
    sends_max: int
    share_results: bool
    allocate: bool
    device_frames: bool | None
    device_allocator: str | None
    nvtx: bool
    native: tuple[tuple[str, Any], ...]
    secret: Secret | None
    ucx: tuple[tuple[str, str], ...]
    arena: tuple[tuple[str, int], ...] | None

    @classmethod
    def current(cls) -> Settings:
        """Read the configuration.

        Raises
        ------
        ValueError
            If a value cannot be understood, or keys contradict each other. Names the key, the value
            and what is allowed.
        """
        ucx_keys = read_ucx_keys(_read("lanes", _names))
        keep_alive_s = _read("timeouts.keep-alive", _seconds)
        if keep_alive_s is None:
            keep_alive_s = _seconds(dask.config.get("distributed.comm.timeouts.tcp"))
        interval_s = _read("timeouts.keep-alive-interval", _seconds)
        spin_s = _read("spin", _seconds)
        sends_max = _require("sends-limit", _count)
        native: dict[str, Any] = {
            "lanes": ucx_keys.lanes,
            "carriers": _read("carriers", _carriers),
            "eager_bytes_max": _read("eager", _bytes),
            "credit_bytes": _read("credit", _bytes),
            "credit_messages": _read("credit-messages", _count),
            "message_bytes_max": _read("message-limit", _bytes),
            "segments_max": _require("frames-limit", _count),
            "sends_max": sends_max,
            "ring_bytes": _read("ring", _bytes),
            "pool_cached_bytes_max": _read("pool", _bytes),
            "spin_us": None if spin_s is None else spin_s * 1e6,
            "handshake_timeout_s": _read("timeouts.handshake", _seconds),
            "keep_alive_interval_s": keep_alive_s / 4 if interval_s is None else interval_s,
            "keep_alive_timeout_s": keep_alive_s,
            "linger_s": _read("timeouts.linger", _seconds),
            "shared_memory_uids": _read("shared-memory-uids", _uids),
            "backlog": int(dask.config.get("distributed.comm.socket-backlog")),
        }
        return cls(
            contact_host=_read("contact-host", str),
            contact_interface=_read("contact-interface", str),
            high_water_mark_bytes=_require("high-water-mark", _bytes),
            sends_max=sends_max,
            share_results=_require("arena.share-results", _flag),
            allocate=_require("arena.allocate", _flag),
            device_frames=_read("gpu.frames", _flag),
            device_allocator=_read("gpu.allocator", _allocator),
            nvtx=_require("nvtx", _flag),
            native=_given(native),
            secret=read_secret(),
            ucx=ucx_keys.environment,
            arena=_arena(),
        )


def _arena() -> tuple[tuple[str, int], ...] | None:
    if not _require("arena.enabled", _flag):
        return None
    return _given(
        {
            "bytes_max": _read("arena.limit", _bytes),
            "cached_bytes_max": _read("arena.cached", _bytes),
            "block_bytes_min": _read("arena.block", _bytes),
        }
    )


def _given(arguments: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((key, value) for key, value in arguments.items() if value is not None))


def configured(key: str) -> Any:
    """Read a key of ``backhaul-dask.yaml``; its default where the configuration lacks it.

    That is so where a program has put back a configuration from before Backhaul was imported, as
    the fixtures of Dask's own tests do.

    Parameters
    ----------
    key : str
        The whole key.
    """
    try:
        return dask.config.get(key)
    except KeyError:
        return dask.config.get(key, config=_DEFAULTS)


def switched_on(switch: str) -> bool:
    """Tell whether one replacement of a function of Dask's, a key of the configuration, is on.

    `ValueError` with key, value and what is allowed if the value cannot be understood.
    """
    if switch == "exchange":
        return _require("exchange", _automatic)
    return _require(switch, _flag)


def is_choice(switch: str) -> bool:
    """Return whether a replacement that is off is off by a user's choice.

    Parameters
    ----------
    switch : str
        As for `switched_on`.
    """
    return bool(dask.config.get(f"{_ROOT}.{switch}", config=_DEFAULTS))


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowLimits:
    """The in-flight window of a worker: the tasks that it may hold before it has to finish one."""

    #: Expected work for each thread, in seconds
    seconds: float
    #: Most tasks for each thread, however short
    tasks_per_thread: int
    #: Share of its free memory that the expected outputs of the tasks in flight may take, 0 to 1
    memory_share: float
    #: The same in bytes, for a worker whose memory is not limited
    memory_budget_bytes: int


def work_in_hand_limits() -> WindowLimits | None:
    """Read how far the in-flight window of a worker opens; None if that is left to upstream.

    Raises
    ------
    ValueError
        If a value cannot be understood. Names the key, the value and what is allowed.
    """
    if not _require("work-in-hand.enabled", _flag):
        return None
    return WindowLimits(
        seconds=_require("work-in-hand.seconds", _seconds),
        tasks_per_thread=_require("work-in-hand.tasks-per-thread", _count),
        memory_share=_require("work-in-hand.memory-share", _share),
        memory_budget_bytes=_require("work-in-hand.memory-budget", _bytes),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallResultLimits:
    """Which results travel with the message that their task has finished."""

    #: Most bytes of one of them
    bytes_max: int
    #: Most bytes of all that a client keeps
    kept_bytes_max: int


def small_result_limits() -> SmallResultLimits | None:
    """Read which results travel with messages; None if none do.

    Raises
    ------
    ValueError
        If a value cannot be understood. Names the key, the value and what is allowed.
    """
    if not _require("small-results.enabled", _flag):
        return None
    return SmallResultLimits(
        bytes_max=_require("small-results.size", _bytes),
        kept_bytes_max=_require("small-results.kept", _bytes),
    )


def beside_tasks_max() -> int | None:
    """Read how many tasks that take less than a thread a worker runs; None: as upstream."""
    return _limit("resources", "beside")


def explained_runs_max() -> int | None:
    """Read how many runs a scheduler keeps to explain jobs; None if it keeps none."""
    return _limit("explain", "runs-limit")


def transfers_links_max() -> int | None:
    """Read how many links a scheduler tells apart; None if transfers are not counted."""
    return _limit("transfers", "links-limit")


def _limit(section: str, key: str) -> int | None:
    """Read a count of a section that may be off; None if it is.

    Raises
    ------
    ValueError
        If a value cannot be understood. Names the key, the value and what is allowed.
    """
    return _require(f"{section}.{key}", _count) if _require(f"{section}.enabled", _flag) else None


def _require(key: str, parse: Callable[[Any], _T]) -> _T:
    """Read one key that has a default here."""
    value = _read(key, parse)
    if value is None:
        raise ValueError(f"{_ROOT}.{key} must be {_ALLOWED[parse]}, got None")
    return value


def _read(key: str, parse: Callable[[Any], _T]) -> _T | None:
    """Read one key; ``None`` where the choice is left to Backhaul."""
    value = configured(f"{_ROOT}.{key}")
    if value is None:
        return None
    try:
        return parse(value)
    except (LookupError, TypeError, ValueError) as error:
        allowed = _ALLOWED.get(parse, "a string")
        raise ValueError(f"{_ROOT}.{key} must be {allowed}, got {value!r}") from error


def _bytes(value: Any) -> int:
    return _not_negative(int(parse_bytes(value)))


def _seconds(value: Any) -> float:
    return _not_negative(float(parse_timedelta(value, default="seconds")))


def _count(value: Any) -> int:
    return _not_negative(int(value))


def _share(value: Any) -> float:
    share = _not_negative(float(value))
    if not share <= 1:
        raise ValueError(f"{share} is more than 1")
    return share


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not a bool")
    return value


def _automatic(value: Any) -> bool:
    # YAML reads a bare off as false.
    if value in ("auto", True):
        return True
    if value in ("off", False):
        return False
    raise ValueError(value)


def _names(value: Any) -> tuple[str, ...]:
    # An environment variable gives one string.
    names = value.split(",") if isinstance(value, str) else value
    return tuple(str(name).strip() for name in names)


def _carriers(value: Any) -> tuple[str, ...]:
    return _names(value)


def _uids(value: Any) -> tuple[int, ...]:
    # An environment variable gives one number, or several as a tuple or a string.
    if isinstance(value, str):
        value = value.split(",")
    elif isinstance(value, int):
        value = (value,)
    return tuple(_count(uid) for uid in value)


def _allocator(value: Any) -> str:
    name = str(value)
    if name not in _ALLOCATORS and not all(name.partition(":")):
        raise ValueError(name)
    return name


def _not_negative(number: _N) -> _N:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number


_ALLOWED: dict[Callable[[Any], Any], str] = {
    _bytes: "a size like '64MiB'",
    _seconds: "a time like '50us' or '5s'",
    _count: "a whole number",
    _share: "a number from 0 to 1",
    _flag: "true or false",
    _automatic: "auto or off",
    _names: "a list of lanes like ['shm', 'tcp']",
    _carriers: "a list of carriers like ['lease', 'cuda']",
    _uids: "a list of ids of users like [1000, 1001]",
    _allocator: "rmm, cupy, numba, backhaul, or a function like 'module:function'",
}

#: Allocators of `backhaul.dask.comm.device_frames`
_ALLOCATORS = frozenset({"rmm", "cupy", "numba", "backhaul"})

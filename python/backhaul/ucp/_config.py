"""``UCX_*`` options: which there are, what they may be, and what they mean for our lanes."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from backhaul import _native
from backhaul.errors import CudaUnavailable
from backhaul.ucp.exceptions import UCXConfigError

__all__ = ["TRANSPORT_OF_LANE", "Settings", "current_options", "settings_of"]

logger = logging.getLogger("ucx")

#: Name that UCX gives to what each of our lanes does.
TRANSPORT_OF_LANE = {"inproc": "self", "shm": "posix", "tcp": "tcp"}

_LANES = ("inproc", "shm", "tcp")
_WITHIN_HOST = frozenset({"inproc", "shm"})
_BETWEEN_HOSTS = frozenset({"tcp"})
_OF_HOSTS = "sm shm mm posix sysv xpmem cma knem"
_OF_NETWORKS = (
    "tcp ib rc rc_v rc_x rc_mlx5 rc_verbs dc dc_x dc_mlx5 ud ud_v ud_x ud_mlx5 ud_verbs gga srd "
    "ugni cm"
)
_OF_GPUS = frozenset({"cuda", "cuda_copy", "cuda_ipc"})
_OF_NONE = "cuda cuda_copy cuda_ipc gdr_copy rocm rocm_copy rocm_ipc ze_copy rdmacm sockcm"
#: Lanes that stand for the transports of UCX. Those of network cards are all served by the lane for
#: other hosts; those that only connect by none, nor those that move memory of GPUs, for which there
#: is a carrier beside lanes within a host.
_LANES_OF_TRANSPORT: dict[str, frozenset[str]] = {
    "all": frozenset(_LANES),
    "self": frozenset({"inproc"}),
    "loopback": frozenset({"inproc"}),
    **dict.fromkeys(_OF_HOSTS.split(), _WITHIN_HOST),
    **dict.fromkeys(_OF_NETWORKS.split(), _BETWEEN_HOSTS),
    **dict.fromkeys(_OF_NONE.split(), frozenset[str]()),
}

#: Options that are reported without being set, with the values that UCX-Py chose where it did.
_DEFAULTS = {
    "ACC_DEVICES": "all",
    "CUDA_COPY_MAX_REG_RATIO": "0.1",
    "ERROR_SIGNALS": "SIGILL,SIGSEGV,SIGBUS,SIGFPE",
    "IB_GPU_DIRECT_RDMA": "try",
    "KEEPALIVE_INTERVAL": "20s",
    "KEEPALIVE_NUM_EPS": "128",
    "LOG_LEVEL": "warn",
    "MAX_EAGER_RAILS": "1",
    "MAX_RNDV_RAILS": "1",
    "MEMTYPE_CACHE": "n",
    "NET_DEVICES": "all",
    "PROTO_ENABLE": "y",
    "RNDV_FRAG_MEM_TYPE": "cuda",
    "RNDV_SCHEME": "auto",
    "RNDV_THRESH": "8192",
    "SEG_SIZE": "8K",
    "SELF_DEVICES": "all",
    "SHM_DEVICES": "all",
    "SOCKADDR_TLS_PRIORITY": "tcp,sockcm",
    "TLS": "all",
    "UD_TIMEOUT": "5m",
    "USE_MT_MUTEX": "n",
    "WARN_UNUSED_ENV_VARS": "y",
}
_SIZES = frozenset({"RNDV_THRESH", "SEG_SIZE"})
_TIMES = frozenset({"KEEPALIVE_INTERVAL", "UD_TIMEOUT"})

# Compiled when they are needed.
_SIZE = r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?"
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_TIME = r"(\d+(?:\.\d+)?)\s*(m?s|us|ns|m|)"
_TIME_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0}

#: Carriers for memory of the host
_ON_HOST = ("lease", "single-copy")

#: Longest payload that travels within its announcement, however large the threshold is set: a
#: longer one would be asked for by the fabric anyway.
_INLINE_BYTES_MAX = 64 << 10


class Settings(NamedTuple):
    """Meaning of the options for the fabric.

    Attributes
    ----------
    lanes : tuple of str
        Lanes that may be used, best first.
    inline_bytes_max : int
        Longest payload that travels within its announcement, in bytes.
    carriers : tuple of str or None
        Carriers that may be used; None for all, the one for GPUs where the host has one.
    keep_alive_interval_s : float
        Silence after which a peer on another host is asked for a sign of life, in seconds; 0 for
        never.
    """

    lanes: tuple[str, ...]
    inline_bytes_max: int
    carriers: tuple[str, ...] | None
    keep_alive_interval_s: float


def current_options(options: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give all options, as they would be used now.

    Parameters
    ----------
    options : mapping of str to str, optional
        Options without ``UCX_`` before their names; they go before the environment.

    Returns
    -------
    dict of str to str
        By name without ``UCX_``.

    Raises
    ------
    UCXConfigError
        If a name or a value is no text.
    """
    found = dict(_DEFAULTS)
    for name, value in os.environ.items():
        if name.startswith("UCX_"):
            found[name[4:]] = value
    for name, value in (options or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UCXConfigError(f"options must be texts, got {name!r}: {value!r}")
        found[name] = value
    return found


def settings_of(options: Mapping[str, str]) -> Settings:
    """Tell what options mean for the fabric.

    Parameters
    ----------
    options : mapping of str to str
        All options, see `current_options`.

    Raises
    ------
    UCXConfigError
        If a value cannot be used, or leaves no lane.
    """
    sizes = {name: _size(name, options[name]) for name in _SIZES}
    times = {name: _seconds(name, options[name]) for name in _TIMES}
    inline_bytes_max = min(sizes["RNDV_THRESH"], _INLINE_BYTES_MAX)
    return Settings(
        _lanes(options["TLS"]),
        inline_bytes_max,
        _carriers(options["TLS"]),
        times["KEEPALIVE_INTERVAL"],
    )


def _carriers(text: str) -> tuple[str, ...] | None:
    """Read from ``UCX_TLS`` whether memory of GPUs is to be moved by GPUs."""
    names = {name.strip().lstrip("\\").partition(":")[0] for name in text.lstrip("^").split(",")}
    if text.startswith("^"):
        return _ON_HOST if names & _OF_GPUS else None
    if names & {"all", ""}:
        return None
    if not names & _OF_GPUS:
        return _ON_HOST
    try:
        _native.cuda_devices()
    except CudaUnavailable as error:
        # As UCX does, which leaves out what cannot be loaded.
        logger.warning("UCX_TLS=%s names transports of GPUs: %s", text, error)
        return _ON_HOST
    return (*_ON_HOST, "cuda")


def _lanes(text: str) -> tuple[str, ...]:
    """Read ``UCX_TLS``: names with commas between, or ``^`` and those that may not be used."""
    excludes = text.startswith("^")
    # UCX takes a backslash before a name to mean the transport rather than an alias.
    names = [name.strip().lstrip("\\") for name in text.removeprefix("^").split(",")]
    chosen: set[str] = set()
    for name in filter(None, names):
        # A name may have the memory or the role that it is meant for behind it: ``ud:aux``.
        lanes = _LANES_OF_TRANSPORT.get(name.partition(":")[0])
        if lanes is None:
            # As UCX does, which has other transports in each build.
            logger.warning("transport %r of UCX_TLS=%s is not known", name, text)
            continue
        chosen |= lanes
    if excludes:
        chosen = set(_LANES) - chosen
    if not chosen:
        raise UCXConfigError(
            f"Couldn't set option TLS to {text}: it leaves none of the lanes that there are, "
            f"name some of {', '.join(TRANSPORT_OF_LANE.values())}"
        )
    return tuple(lane for lane in _LANES if lane in chosen)


def _size(name: str, text: str) -> int:
    if text in {"auto", "inf"}:
        return _INLINE_BYTES_MAX
    # A threshold may be given for intra- and inter-host messages apart, as ``intra:64k,inter:8k``.
    match = re.fullmatch(_SIZE, text.rpartition(":")[2].strip(), re.IGNORECASE)
    if match is None:
        raise UCXConfigError(f"Couldn't set option {name} to {text}: no size such as 8192 or 64K")
    # Its digits may be more than a float, or an int of them, can be.
    return int(min(float(match[1]) * _SIZE_UNITS[match[2].lower()], _INLINE_BYTES_MAX))


def _seconds(name: str, text: str) -> float:
    if text == "inf":
        return 0.0
    match = re.fullmatch(_TIME, text.strip(), re.IGNORECASE)
    if match is None:
        raise UCXConfigError(f"Couldn't set option {name} to {text}: no time such as 20s or 100ms")
    return float(match[1]) * _TIME_UNITS[match[2].lower()]

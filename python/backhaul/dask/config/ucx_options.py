"""Keys of the configuration that programs for UCX set, and what they mean for Backhaul.

Three generations of them are about, with the same names: ``distributed.comm.ucx``, which Dask had
until 2025, ``distributed-ucxx``, which goes before it, and ``ucx``, which Dask renames to
``distributed.ucx`` as it reads files and variables, where upstream leaves it.
``docs/guides/from-dask-cuda.md`` has the table of what each does here.

The names and their order are those of ``distributed.yaml`` (2021.3 to 2024.12) and
``distributed-ucxx.yaml`` (0.52).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import dask
from backhaul.errors import ConfigError

__all__ = ["ROOTS", "UcxKeys", "read_ucx_keys", "rmm_pool_size"]

logger = logging.getLogger(__name__)

#: Where the keys are; the first that has a value goes before the others.
ROOTS = ("distributed-ucxx", "distributed.comm.ucx", "distributed.ucx")

_RMM_KEYS = ("distributed-ucxx.rmm.pool-size", "distributed.rmm.pool-size")

#: Keys that ask for transports, and count as leaving out InfiniBand if it alone is not among them
_ASKING = ("infiniband", "nvlink", "tcp")

_POOLS = "pools are set up by CUDACluster and dask backhaul worker alone"
#: Keys that change nothing if true, and why
_WITHOUT_MEANING = {
    "nvlink": "memory of GPUs of one host goes between them by CUDA in any case",
    "cuda-copy": "what UCX is given lies on the host",
    "create-cuda-context": "UCX is given memory of the host alone, and needs no context",
    "rdmacm": "peers meet on a TCP socket, and exchange addresses of UCX workers there",
    "multi-buffer": "all buffers of a message always go together",
    "reuse-endpoints": "there is one endpoint for each peer in any case",
}
_FLAGS = ("infiniband", "tcp", *_WITHOUT_MEANING)
_KNOWN = frozenset({*_FLAGS, "net-devices", "environment"})

#: Lines that have been logged already, so that each is logged once
_said: set[str] = set()


@dataclass(frozen=True, kw_only=True, slots=True)
class UcxKeys:
    """Meaning of the keys.

    Parameters
    ----------
    lanes : tuple of str or None
        Lanes that may be used, best first; None if the keys leave that to Backhaul.
    environment : tuple of (str, str)
        Variables that UCX shall find, by their names. Those of the environment go before them, and
        are left out.
    """

    lanes: tuple[str, ...] | None
    environment: tuple[tuple[str, str], ...]


def read_ucx_keys(lanes: tuple[str, ...] | None) -> UcxKeys:
    """Read them.

    A key without a meaning here is ignored, with one line in the log.

    Parameters
    ----------
    lanes : tuple of str or None
        What ``distributed.comm.backhaul.lanes`` says.

    Raises
    ------
    ConfigError
        If a value cannot be understood, or keys contradict each other or `lanes`. Names the key and
        the value.
    """
    given = _given()
    flags = {key: given[key].flag() for key in _FLAGS if key in given}
    if flags.get("rdmacm") and flags.get("infiniband") is False:
        raise ConfigError(
            f"{given['rdmacm']} contradicts {given['infiniband']}, which it belongs to"
        )
    passed_over = [
        f"{given[key]} ({reason})" for key, reason in _WITHOUT_MEANING.items() if flags.get(key)
    ]
    passed_over += [f"{each} (not a key)" for key, each in given.items() if key not in _KNOWN]
    variables: dict[str, _Given] = {}
    asking = next((key for key in _ASKING if flags.get(key)), None)
    if asking is not None:
        lanes, transports = _lanes(given[asking], lanes)
        variables["UCX_TLS"] = replace(given[asking], text=transports)
    if "net-devices" in given:
        devices = _devices(given["net-devices"])
        if devices.text:
            variables["UCX_NET_DEVICES"] = devices
        else:
            passed_over.append(f"{devices} (UCX chooses, as it does by itself)")
    for name, wanted in _environment(given.get("environment")).items():
        before = variables.setdefault(name, wanted)
        if before.text != wanted.text:
            raise ConfigError(f"{wanted} contradicts {before}, which means {name}={before.text}")
    pool_size = _pool_size()
    if pool_size is not None:
        passed_over.append(f"{pool_size} ({_POOLS})")
    for name in variables.keys() & os.environ.keys():
        taken = variables.pop(name)
        if taken.text != os.environ[name]:
            passed_over.append(f"{taken} ({name}={os.environ[name]} of the environment counts)")
    _say(passed_over)
    environment = tuple(sorted((name, each.text) for name, each in variables.items()))
    return UcxKeys(lanes=lanes, environment=environment)


def rmm_pool_size() -> Any:
    """Read the size of the pool of device memory that the configuration asks for.

    Returns
    -------
    int, float, str or None
        As it stands there.
    """
    given = _pool_size()
    return None if given is None else given.value


@dataclass(frozen=True, slots=True)
class _Given:
    """A key with a value, which a message shows as ``key=value``."""

    key: str
    value: Any
    #: Its meaning for UCX
    text: str = ""

    def __str__(self) -> str:
        return f"{self.key}={self.value!r}"

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise ConfigError(f"{self.key} must be true, false or null, got {self.value!r}")
        return self.value


def _given() -> dict[str, _Given]:
    """Collect what has a value, by its name below the root, with hyphens."""
    found: dict[str, _Given] = {}
    for root in ROOTS:
        section = dask.config.get(root, default=None)
        if section is None:
            continue
        if not isinstance(section, Mapping):
            raise ConfigError(f"{root} must have keys like 'infiniband', got {section!r}")
        for name, value in section.items():
            key = str(name).replace("_", "-")
            # An empty mapping is the default of `environment`.
            if value is None or value == {} or key in ("version", "rmm"):
                continue
            found.setdefault(key, _Given(f"{root}.{key}", value))
    return found


def _lanes(asking: _Given, lanes: tuple[str, ...] | None) -> tuple[tuple[str, ...], str]:
    """Say which lanes and which transports of UCX a wish for one of these comes to."""
    if not asking.key.endswith(".infiniband"):
        return lanes or ("inproc", "shm", "tcp"), "tcp"
    if lanes is not None and "ucx" not in lanes:
        raise ConfigError(
            f"{asking} contradicts distributed.comm.backhaul.lanes={list(lanes)}: InfiniBand is "
            "served by the lane 'ucx'"
        )
    return lanes or ("inproc", "shm", "ucx", "tcp"), "rc,tcp"


def _devices(given: _Given) -> _Given:
    """Read which devices UCX may use; without a text if that is left to it."""
    if not isinstance(given.value, str):
        raise ConfigError(f"{given.key} must be a text like 'mlx5_0:1', got {given.value!r}")
    return replace(given, text="" if given.value == "auto" else given.value)


def _environment(given: _Given | None) -> dict[str, _Given]:
    """Read the variables that are named one by one."""
    if given is None:
        return {}
    key, value = given.key, given.value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} must have names and values, like tls: 'rc,tcp', got {value!r}")
    found = {}
    for option, setting in value.items():
        name = str(option).upper().replace("-", "_")
        each = f"{key}.{option}"
        if name.startswith("UCX_"):
            raise ConfigError(f"{each}: leave UCX_ out, it is put before each name")
        if isinstance(setting, bool):
            # YAML reads y and n so.
            text = "y" if setting else "n"
        elif isinstance(setting, str | int | float):
            text = str(setting)
        else:
            raise ConfigError(f"{each} must be a text or a number, got {setting!r}")
        found[f"UCX_{name}"] = _Given(each, setting, text)
    return found


def _pool_size() -> _Given | None:
    for key in _RMM_KEYS:
        value = dask.config.get(key, default=None)
        if value is not None:
            return _Given(key, value)
    return None


def _say(passed_over: list[str]) -> None:
    said = "; ".join(passed_over)
    if said and said not in _said:
        _said.add(said)
        logger.info("Keys that change nothing over Backhaul: %s", said)

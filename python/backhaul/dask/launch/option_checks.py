"""Checks of the options of ``dask backhaul``, before anything is started.

Dask takes most of them as text, and finds out later that they mean nothing.
"""

from __future__ import annotations

import copy
import os
import socket
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import psutil
from dask.utils import parse_bytes, parse_timedelta

from backhaul.dask.compat.names import backends, import_term
from backhaul.dask.resource_pools.declarations import parse as parse_resources

__all__ = ["checked"]

_PORT_MAX = 65535
_SIZES = ("device_memory_limit", "rmm_pool_size", "rmm_maximum_pool_size", "rmm_release_threshold")
_TIMES = ("death_timeout", "lifetime", "lifetime_stagger", "idle_timeout")
_FILES = ("pid_file", "scheduler_file")
_CERTIFICATES = ("tls_ca_file", "tls_cert", "tls_key")


def checked(parameters: Iterable[click.Parameter]) -> list[click.Parameter]:
    """Copy parameters so that they check their values; those without a rule stay as they are."""
    return [_checked(each) for each in parameters]


def _checked(parameter: click.Parameter) -> click.Parameter:
    check = _CHECKS.get(parameter.name or "")
    if check is None:
        return parameter

    def look(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        given = value if isinstance(value, (tuple, list)) else [value]
        for each in given:
            if each is None:
                continue
            try:
                check(each)
            except (LookupError, OSError, TypeError, ValueError, OverflowError) as error:
                raise click.BadParameter(f"{each!r}: {error}", ctx, param) from None
        return value

    found = copy.copy(parameter)
    found.callback = look
    return found


def _ports(text: str) -> None:
    first, colon, last = text.partition(":")
    ends = [first, last] if colon else [first]
    if not all(end.isdecimal() and int(end) <= _PORT_MAX for end in ends):
        raise ValueError(f"no port from 0 to {_PORT_MAX}, nor a range such as 3000:3026")
    if colon and int(first) >= int(last):
        raise ValueError("the range ends before it begins")


def _port_list(text: str) -> None:
    if not all(part.isdecimal() and int(part) <= _PORT_MAX for part in text.split(",")):
        raise ValueError(f"no port from 0 to {_PORT_MAX}, nor two of them with a comma between")


def _dashboard_address(text: str) -> None:
    port = text.rpartition(":")[2]
    if not port.isdecimal() or int(port) > _PORT_MAX:
        raise ValueError("no host:port or :port")


def _memory_limit(text: str) -> None:
    if text == "auto":
        return
    try:
        share = float(text)
    except ValueError:
        share = 0.0 if parse_bytes(text) >= 0 else -1.0
    if not share >= 0:
        raise ValueError("it is negative")


def _memory_limit_in_words(text: str) -> None:
    try:
        _memory_limit(text)
    except ValueError:
        raise ValueError("no size such as 4GiB, share such as 0.5, auto, or 0 for none") from None


def _size(text: str) -> None:
    try:
        share = float(text)
    except ValueError:
        try:
            share = float(parse_bytes(text))
        except ValueError:
            raise ValueError("no size such as 2GiB, nor a share such as 0.8") from None
    if not share >= 0:
        raise ValueError("it is negative")


def _time(text: str) -> None:
    try:
        seconds = float(parse_timedelta(text, default="s"))
    except (KeyError, ValueError):
        raise ValueError("no time such as 30s or 5 minutes") from None
    if not seconds >= 0:
        raise ValueError("it is negative")


def _scheme(text: str) -> None:
    known = {*backends, *(each.name for each in entry_points(group="distributed.comm.backends"))}
    for part in text.split(","):
        if part.removesuffix("://") not in known:
            raise ValueError(f"no protocol that Dask knows: {', '.join(sorted(known))}")


def _file(text: str) -> None:
    # Dask's word for none
    if not text:
        return
    folder = Path(text).parent
    if not folder.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}")
    if Path(text).is_dir():
        raise ValueError("it is a folder")


def _there(text: str) -> None:
    if not Path(text).is_file():
        raise ValueError("there is no such file")


def _folder(text: str) -> None:
    # Dask makes it; what is above it must be one that this user may write to.
    path = Path(text)
    while not path.exists() and path != path.parent:
        path = path.parent
    if not path.is_dir() or not os.access(path, os.W_OK):
        raise ValueError(f"cannot be made below {str(path)!r}")


def _host(text: str) -> None:
    name = text.rpartition("://")[2]
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    if not name:
        return
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        raise ValueError("no address of this host, nor a name that can be found") from None


def _scheduler(text: str) -> None:
    scheme, mark, _ = text.rpartition("://")
    if mark:
        _scheme(scheme)
    location = text.rpartition("://")[2]
    host, colon, port = location.rpartition(":")
    if not colon:
        host = location
    elif not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
        raise ValueError(f"its port is no number from 1 to {_PORT_MAX}; write tcp://host:8786")
    if not host:
        raise ValueError("it has no host; write tcp://host:8786")
    _host(host)


def _class(text: str) -> None:
    try:
        found = import_term(text)
    except Exception as error:
        raise ValueError(f"cannot be imported: {error}") from None
    if not isinstance(found, type):
        raise ValueError("it is no class")


def _environment(text: str) -> None:
    name, equals, _ = text.partition("=")
    if not equals or not name:
        raise ValueError("not like NAME=VALUE")


def _workers(text: str) -> None:
    if text != "auto" and not text.removeprefix("-").isdecimal():
        raise ValueError("neither a number nor auto")


def _interface(text: str) -> None:
    known = sorted(psutil.net_if_addrs())
    for part in text.split(","):
        if not any(name.startswith(part) for name in known) or not part:
            raise ValueError(f"no network interface begins with it: {', '.join(known)}")


def _gpus(text: str) -> None:
    for part in text.split(","):
        name = part.strip()
        if not name.isdecimal() and not name.startswith(("GPU-", "MIG-", "gpu")):
            raise ValueError("neither numbers nor UUIDs of GPUs, such as 0,1")


def _modules(text: str) -> None:
    for part in text.split(","):
        if not all(each.isidentifier() for each in part.strip().split(".")):
            raise ValueError("no names of modules, such as cudf,rmm")


_CHECKS: dict[str, Callable[[str], object]] = {
    "scheduler": _scheduler,
    "port": _port_list,
    "worker_port": _ports,
    "nanny_port": _ports,
    "dashboard_address": _dashboard_address,
    "memory_limit": _memory_limit_in_words,
    "protocol": _scheme,
    "host": _host,
    "interface": _interface,
    "resources": parse_resources,
    "worker_class": _class,
    "env": _environment,
    "n_workers": _workers,
    "local_directory": _folder,
    "rmm_log_directory": _folder,
    "gpus": _gpus,
    "pre_import": _modules,
    "rmm_allocator_external_lib_list": _modules,
    **dict.fromkeys(_SIZES, _size),
    **dict.fromkeys(_TIMES, _time),
    **dict.fromkeys(_FILES, _file),
    **dict.fromkeys(_CERTIFICATES, _there),
}

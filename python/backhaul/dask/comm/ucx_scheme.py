"""``ucx://`` and ``ucxx://`` over Backhaul, for programs that were written for UCX.

Dask has no comm of these names any more: it registers one that refuses, when it is imported, which
leaves a registered entry point no way in. `claim_ucx` puts ours in its place, in this process and,
by the preload `backhaul.dask.ucx_preload`, in those that are started from here.
"""

from __future__ import annotations

from typing import ClassVar

import dask
from backhaul.dask.comm.backend import BackhaulBackend, BackhaulConnector, BackhaulListener
from backhaul.dask.compat.names import backends
from backhaul.errors import ConfigError

__all__ = ["SCHEMES", "claim_ucx", "is_ours"]

#: Names of the scheme in programs for UCX; the second is that of distributed-ucxx
SCHEMES = ("ucx", "ucxx")

#: Where Dask has the backend that refuses
_REFUSING = "distributed.comm.ucx"

_PRELOAD = "backhaul.dask.ucx_preload"
_PRELOADED = ("scheduler", "nanny", "worker")


class UcxConnector(BackhaulConnector):
    """Opens connections to addresses of ``ucx://``."""

    prefix: ClassVar[str] = "ucx://"


class UcxListener(BackhaulListener):
    """Accepts peers at addresses of ``ucx://``."""

    prefix: ClassVar[str] = "ucx://"


class UcxBackend(BackhaulBackend):
    """The backend of ``ucx://`` once it is claimed."""

    _connector_class: ClassVar[type[BackhaulConnector]] = UcxConnector
    _listener_class: ClassVar[type[BackhaulListener]] = UcxListener


class UcxxConnector(BackhaulConnector):
    """Opens connections to addresses of ``ucxx://``."""

    prefix: ClassVar[str] = "ucxx://"


class UcxxListener(BackhaulListener):
    """Accepts peers at addresses of ``ucxx://``."""

    prefix: ClassVar[str] = "ucxx://"


class UcxxBackend(BackhaulBackend):
    """The backend of ``ucxx://`` once it is claimed."""

    _connector_class: ClassVar[type[BackhaulConnector]] = UcxxConnector
    _listener_class: ClassVar[type[BackhaulListener]] = UcxxListener


_BACKENDS: dict[str, type[BackhaulBackend]] = {"ucx": UcxBackend, "ucxx": UcxxBackend}


def claim_ucx(*, force: bool = False) -> None:
    """Let ``ucx://`` and ``ucxx://`` be Backhaul, here and in what is started from here.

    Schedulers, nannies and workers that this process starts do the same: a preload is added to the
    configuration, which Dask passes on. A process that is started otherwise needs that preload:
    ``dask worker --preload backhaul.dask.ucx_preload ucx://…``. So do workers whose cluster is
    given preloads by argument, which go in place of the configured ones:
    ``LocalCluster(preload=["backhaul.dask.ucx_preload", …])``. Again costs nothing.

    Parameters
    ----------
    force : bool, optional
        Also where distributed-ucxx, or another package, has the schemes.

    Raises
    ------
    ConfigError
        If another package than Dask has one of them. Nothing is changed then.
    """
    if not force:
        for scheme in SCHEMES:
            _check_free(scheme)
    for scheme in SCHEMES:
        if not isinstance(backends.get(scheme), BackhaulBackend):
            backends[scheme] = _BACKENDS[scheme]()
    for role in _PRELOADED:
        _add_preload(f"distributed.{role}.preload")


def is_ours(address: str) -> bool:
    """Tell whether an address is one of Backhaul's, here and now."""
    scheme = address.partition("://")[0]
    return scheme in ("backhaul", "backhaul+tls") or isinstance(
        backends.get(scheme), BackhaulBackend
    )


def _add_preload(key: str) -> None:
    """Add ours to the preloads of a role, whose options are one list or a list for each."""
    preloads = dask.config.get(key, default=None) or []
    # Dask takes a text for one preload.
    preloads = [preloads] if isinstance(preloads, str) else list(preloads)
    if _PRELOAD in preloads:
        return
    chosen = {key: [*preloads, _PRELOAD]}
    options = dask.config.get(f"{key}-argv", default=None) or []
    if options and not isinstance(options[0], str):
        chosen[f"{key}-argv"] = [*options, []]
    dask.config.set(chosen)


def _check_free(scheme: str) -> None:
    known = backends.get(scheme)
    if known is None or isinstance(known, BackhaulBackend):
        return
    owner = type(known).__module__
    if owner != _REFUSING:
        raise ConfigError(
            f"{scheme}:// belongs to {owner}: uninstall that package, or call"
            " claim_ucx(force=True) to use Backhaul for it"
        )

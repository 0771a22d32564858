"""Switching a program to Backhaul as a whole: `enable`."""

from __future__ import annotations

import importlib

import dask
from backhaul_default_scheme import heed_default_scheme

__all__ = ["enable"]


def enable(scheme: str = "backhaul") -> None:
    """Make this process, and those that it starts, speak Backhaul unless a scheme is given.

    The same as ``DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME=backhaul`` in the environment before
    Dask is imported: `distributed.LocalCluster` and ``Client()`` without an address begin a cluster
    over it, and addresses without a scheme are its own. A protocol that is named, or an address
    with its scheme, is unaffected.

    Parameters
    ----------
    scheme : str, default "backhaul"
        ``"backhaul"`` or ``"backhaul+tls"``; ``"tcp"`` to have Dask's own again.

    Raises
    ------
    ValueError
        If it is another scheme.

    Examples
    --------
    >>> import backhaul.dask
    >>> backhaul.dask.enable()
    >>> backhaul.dask.enable("tcp")
    """
    known = ("backhaul", "backhaul+tls", "tcp")
    if scheme not in known:
        raise ValueError(f"scheme must be one of {', '.join(known)}, got {scheme!r}")
    dask.config.set({"distributed.comm.default-scheme": scheme})
    heed_default_scheme(importlib.import_module("distributed.deploy.local"))

"""Warns of listening ports that a secret does not protect.

Peers prove the secret in the handshake of ``backhaul://``. Dask's ``tcp://`` and ``ws://`` have no
such step, so that a scheduler, worker or nanny that listens on one of them runs the code of any
process that reaches the port. `warn_of_listeners` is called after each listener that a server of
Dask starts in a process whose configuration has a secret: by `backhaul_default_scheme`, and by the
listener of ``backhaul://`` where the secret came into the configuration later.
"""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakKeyDictionary

import dask
from backhaul.dask.config.secret import is_configured

__all__ = ["warn_of_listeners"]

logger = logging.getLogger(__name__)

#: Schemes whose peers show a certificate or the secret, and the one within a process
_PROTECTED = ("backhaul", "backhaul+tls", "inproc", "tls", "wss")
_ROUTES_KEY = "distributed.scheduler.http.routes"
#: Routes by which a scheduler's HTTP server changes the state of the cluster; off by default
_API_ROUTE = "distributed.http.scheduler.api"

#: Warnings that were logged, for each server
_reported: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def warn_of_listeners(server: Any) -> None:
    """Warn once of each listener of a server that lets peers in without the secret."""
    if not is_configured() or server is None:
        return
    for listener in getattr(server, "listeners", ()):
        address = str(listener.listen_address)
        if address.partition("://")[0] not in _PROTECTED:
            _warn_once(
                server,
                address,
                "lets any process that reaches this port run code as this user; to listen on "
                "backhaul:// alone, say --protocol backhaul, or protocol='backhaul' in a program",
            )
    if hasattr(server, "http_server") and getattr(server, "jupyter", False):
        _warn_once(
            server,
            "its dashboard",
            "has a Jupyter server, by which any process that reaches this port runs code as this "
            "user; start the scheduler without --jupyter",
        )
    if type(server).__name__ == "Scheduler" and _API_ROUTE in dask.config.get(_ROUTES_KEY):
        _warn_once(
            server,
            "its dashboard",
            f"lets any process that reaches this port retire workers; take {_API_ROUTE} out of "
            f"{_ROUTES_KEY}",
        )


def _warn_once(server: Any, port: str, effect: str) -> None:
    reported = _reported.setdefault(server, set())
    if (line := f"{port} {effect}") in reported:
        return
    reported.add(line)
    logger.warning(
        "The secret does not protect %s of this %s, which %s (docs/security.md)",
        port,
        type(server).__name__.lower(),
        effect,
    )

"""Where else a scheduler listens: so that workers who know its ``tcp://`` address find the other.

A plugin of schedulers writes the addresses into the scheduler's metadata, where any peer may ask.
`LocalCluster` brings it along, and so does ``dask backhaul scheduler``, for which this module is a
preload. A scheduler without it is spoken to at the address that was given.
"""

from __future__ import annotations

import asyncio
from typing import Any

from dask.typing import Key
from distributed import Scheduler, SchedulerPlugin, rpc
from distributed.security import Security

from backhaul.dask.comm.addresses import Location, parse_location
from backhaul.dask.config.secret import is_configured

__all__ = ["Announcement", "addresses_of", "dask_setup", "preferred_address", "scheduler_protocols"]

_METADATA: list[Key] = ["backhaul-addresses"]


class Announcement(SchedulerPlugin):
    """Keeps the addresses of a scheduler in its metadata, which a restart empties."""

    name = "backhaul-announcement"

    async def start(self, scheduler: Scheduler) -> None:
        """Write them, now that the scheduler listens."""
        self.restart(scheduler)

    def restart(self, scheduler: Scheduler) -> None:
        """Write them again."""
        scheduler.set_metadata(keys=_METADATA, value=addresses_of(scheduler))


async def dask_setup(scheduler: Scheduler) -> None:
    """Add the plugin; called by Dask before it starts those that are there."""
    scheduler.add_plugin(Announcement())


def scheduler_protocols(security: Security) -> list[str]:
    """Return the protocols that a scheduler listens on unless the user names others.

    ``backhaul`` is the last one. Before it comes the protocol for peers without Backhaul: ``tls``
    where the cluster has certificates, ``tcp`` where it has neither certificates nor a secret. With
    a secret alone there is none, because ``tcp://`` asks its peers for nothing.
    """
    is_encrypted = security.require_encryption or (
        security.get_tls_config_for_role("scheduler")["ca_file"] is not None
    )
    if is_encrypted:
        return ["tls", "backhaul"]
    return ["backhaul"] if is_configured() else ["tcp", "backhaul"]


def addresses_of(scheduler: Any) -> list[str]:
    """List the addresses that a scheduler of this process is reached at, the first one first."""
    return [str(listener.contact_address) for listener in getattr(scheduler, "listeners", ())]


async def preferred_address(
    given: str, *, protocol: str, security: Security, timeout_s: float
) -> str:
    """Find the scheduler's address for a protocol, given another one of its addresses.

    Returns `given` if it has that protocol already, the scheduler has not said where it listens, or
    does not answer in time. The host is always the one that was given: it is known to be reached
    from here, which what the scheduler calls itself is not.
    """
    scheme, _, location = given.rpartition("://")
    if scheme == protocol:
        return given
    try:
        async with asyncio.timeout(timeout_s):
            async with rpc(
                given, connection_args=security.get_connection_args("worker")
            ) as scheduler:
                addresses: list[str] = await scheduler.get_metadata(keys=_METADATA, default=[])
    except (OSError, TimeoutError):
        return given
    for address in addresses:
        if address.startswith(f"{protocol}://"):
            host, port = parse_location(location, 8786).host, parse_location(address).port
            return f"{protocol}://{Location(host, port)}"
    return given

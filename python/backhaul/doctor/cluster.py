"""A running cluster: its versions, and over which lanes its workers reach each other."""

from __future__ import annotations

import asyncio
import importlib.util
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from backhaul.doctor.findings import Finding, State

__all__ = ["TIMEOUT_S", "advice_for", "examine", "refusal"]

#: Longest time for a scheduler to answer, in seconds
TIMEOUT_S = 4
#: Lanes are asked for between so many workers at most: it opens a connection for each pair
_WORKERS_MAX = 16
_TOPIC = "cluster"


def examine(address: str) -> Iterator[Finding]:
    """Connect to a scheduler as a client does, and ask its workers.

    Parameters
    ----------
    address : str
        Of the scheduler, with its scheme.
    """
    if importlib.util.find_spec("distributed") is None:
        said = "distributed is not installed"
        yield Finding(_TOPIC, address, State.ABSENT, said, "pip install 'backhaul[dask]'")
        return
    from distributed import Client

    reason = refusal(address)
    if reason is not None:
        yield Finding(_TOPIC, address, State.BROKEN, f"not reached: {reason}", advice_for(reason))
        return
    with Client(address, timeout=TIMEOUT_S, set_as_default=False) as client:
        # Not `scheduler_info`: another answer, without workers, may take its place meanwhile.
        workers: dict[str, int] = client.nthreads()
        threads = sum(workers.values())
        noun = "worker" if len(workers) == 1 else "workers"
        said = f"{len(workers)} {noun}, {threads} threads"
        yield Finding(_TOPIC, address, State.WORKS if workers else State.LIMITED, said)
        versions: Any = client.get_versions(packages=["backhaul"])
        yield from _versions(versions)
        yield _protocols(workers)
        connection: Any = client.scheduler_comm
        yield _protection(connection.comm)
        yield from _lanes(client, list(workers)[:_WORKERS_MAX], len(workers))


def refusal(address: str) -> str | None:
    """Return why no scheduler answers at an address; None if one does."""
    from backhaul.dask.launch.scheduler_probe import NOT_DASK, NOT_DASK_TEXT

    try:
        asyncio.run(_identify(address))
    except TimeoutError:
        return f"no scheduler answers there within {TIMEOUT_S} s"
    except NOT_DASK:
        return NOT_DASK_TEXT
    except (OSError, ValueError, RuntimeError) as error:
        return _innermost(error)
    return None


def advice_for(reason: str) -> str:
    """Return what to do, by the reason for which a scheduler was not reached."""
    if "secret" in reason:
        return "set distributed.comm.backhaul.secret-file, as docs/security.md says"
    if "TLS" in reason or "ertificate" in reason:
        return (
            "set distributed.comm.tls.ca-file, client.cert and client.key, as "
            "docs/guides/encryption.md says"
        )
    return "is it that of a scheduler, and does this host reach it?"


async def _identify(address: str) -> None:
    """Ask a scheduler who it is, in `TIMEOUT_S` at most.

    `distributed.Client` has no time limit for a peer that accepts the connection and is silent.
    """
    from distributed import rpc
    from distributed.security import Security

    from backhaul.dask.launch.scheduler_probe import connect_once

    arguments = Security().get_connection_args("client")
    async with asyncio.timeout(TIMEOUT_S):
        await connect_once(address, arguments)
        async with rpc(address, connection_args=arguments) as scheduler:
            await scheduler.identity()


def _versions(versions: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare the releases of distributed and Backhaul in all processes."""
    processes = {
        "client": versions["client"],
        "scheduler": versions["scheduler"],
        **versions["workers"],
    }
    for name in ("distributed", "backhaul"):
        found = Counter(
            str((each or {}).get("packages", {}).get(name) or "none") for each in processes.values()
        )
        said = ", ".join(f"{version} in {count}" for version, count in sorted(found.items()))
        one = len(found) == 1 and "none" not in found
        advice = "" if one else f"install one release of {name} everywhere"
        state = State.WORKS if one else State.LIMITED
        yield Finding(_TOPIC, name, state, f"{said} processes", advice)


def _protocols(workers: Mapping[str, Any]) -> Finding:
    schemes = Counter(address.partition("://")[0] for address in workers)
    said = ", ".join(f"{scheme}:// {count}" for scheme, count in sorted(schemes.items())) or "none"
    if all(scheme.startswith("backhaul") for scheme in schemes):
        return Finding(_TOPIC, "workers speak", State.WORKS, said)
    advice = "start them with --protocol backhaul, or see docs/guides/switching.md"
    return Finding(_TOPIC, "workers speak", State.LIMITED, said, advice)


def _protection(comm: Any) -> Finding:
    """Tell who may connect to the scheduler, and whether the connection to it is encrypted."""
    cipher = comm.extra_info.get("cipher")
    said = f"{cipher[1]}, {cipher[0]}" if cipher else "not encrypted"
    trust = getattr(comm, "info", {}).get("trust", "certificate" if cipher else "anyone")
    if trust != "anyone":
        return Finding(_TOPIC, "connections", State.WORKS, f"{said}; peers need a {trust}")
    host = urlsplit(comm.peer_address).hostname or ""
    if host == "::1" or host.startswith("127."):
        return Finding(_TOPIC, "connections", State.WORKS, f"{said}; any process here may connect")
    advice = "docs/security.md has secrets and certificates"
    return Finding(_TOPIC, "connections", State.LIMITED, f"{said}; anyone may connect", advice)


def _lanes(client: Any, asked: list[str], count: int) -> Iterator[Finding]:
    """Ask the workers that speak Backhaul for their lanes to each other."""
    asked = [address for address in asked if address.startswith("backhaul")]
    if len(asked) < 2:
        return
    from backhaul.dask.observe.lanes import lane_reasons

    found: dict[str, dict[str, tuple[str, str]]] = client.run(lane_reasons, asked, workers=asked)
    pairs = [reason for of_one in found.values() for reason in of_one.values()]
    among = "" if len(asked) == count else f", among {len(asked)} of {count} workers"
    for (lane, reason), number in Counter(pairs).most_common():
        noun = "connection" if number == 1 else "connections"
        yield Finding(
            _TOPIC, f"lane {lane}", State.WORKS, f"{number} {noun} between workers{among}: {reason}"
        )


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split()) or type(error).__name__

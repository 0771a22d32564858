"""Reaching a scheduler before workers are started for it, and saying why that fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from distributed import rpc
from distributed.security import Security

from backhaul.dask.compat.cli_names import wait_for_signals
from backhaul.dask.compat.names import get_backend
from backhaul.dask.config.secret import is_configured
from backhaul.dask.launch.announce import preferred_address
from backhaul.errors import ConfigError, ConnectFailed

__all__ = ["NOT_DASK", "NOT_DASK_TEXT", "connect_once", "reach_scheduler", "root_cause"]

#: Errors of a handshake with a server of another kind: Dask takes its first bytes for a size
NOT_DASK: Final = (MemoryError, LookupError, TypeError, AttributeError)
NOT_DASK_TEXT: Final = "the server there does not speak Dask's protocol"
#: How long a scheduler has to say where else it listens, in seconds
_ANSWER_S = 10.0
#: How long one attempt to reach it takes at most, and the pause behind one that failed, in seconds
_ATTEMPT_S = 4.0
_PAUSE_S = 1.0
#: An attempt that may take this long finds the reason, in seconds
_TELLING_S = 1.0
#: When to say first that it is not reached yet, and how often from then on, in seconds
_SAY_FIRST_S = 3.0
_SAY_EACH_S = 10.0


async def reach_scheduler(
    address: str,
    *,
    protocol: str,
    security: Security,
    names: Sequence[str],
    timeout_s: float,
    say: Callable[[str], None],
) -> str | None:
    """Wait until a scheduler answers, and look whether the names of workers are free there.

    `say` is called with each line of progress. Returns its address for the protocol; None if a
    signal has come meanwhile.

    Raises
    ------
    ConnectFailed
        If it was not reached in time. Names the address and the reason.
    ConfigError
        If a name is taken.
    """
    reaching = asyncio.create_task(_reached(address, protocol, security, names, timeout_s, say))
    signalled = asyncio.create_task(wait_for_signals())
    try:
        await asyncio.wait({reaching, signalled}, return_when=asyncio.FIRST_COMPLETED)
        # A signal that came with the answer is handled some turns of the loop later.
        for _ in range(3):
            await asyncio.sleep(0)
        if signalled.done():
            say(f"signal {signalled.result()}: no worker was started")
            return None
        return reaching.result()
    finally:
        for task in (reaching, signalled):
            task.cancel()
        # Not awaited themselves: a signal that cancels this meanwhile would be lost with them.
        await asyncio.wait({reaching, signalled})
        if not reaching.cancelled():
            reaching.exception()


async def _reached(
    address: str,
    protocol: str,
    security: Security,
    names: Sequence[str],
    timeout_s: float,
    say: Callable[[str], None],
) -> str:
    await _reach(address, security, names, timeout_s, say)
    return await preferred_address(
        address, protocol=protocol, security=security, timeout_s=_ANSWER_S
    )


async def _reach(
    address: str,
    security: Security,
    names: Sequence[str],
    timeout_s: float,
    say: Callable[[str], None],
) -> None:
    started = time.monotonic()
    say_at = started + _SAY_FIRST_S
    reason = ""
    while True:
        left_s = started + timeout_s - time.monotonic()
        attempt_s = max(0.1, min(_ATTEMPT_S, left_s))
        try:
            workers = await _workers_of(address, security, attempt_s)
        except (OSError, TimeoutError) as error:
            # The last attempt may be too short for an answer, and for the reason.
            if not reason or attempt_s >= _TELLING_S:
                reason = root_cause(error) or reason or f"no answer within {attempt_s:.1f} s"
        except NOT_DASK:
            reason = NOT_DASK_TEXT
        else:
            _refuse_taken(address, workers, names)
            return
        now = time.monotonic()
        if now - started >= timeout_s:
            raise ConnectFailed(
                f"the scheduler at {address} was not reached within {timeout_s:g} s: "
                f"{reason}{_hint(address)}"
            )
        if now >= say_at:
            say_at = now + _SAY_EACH_S
            say(f"the scheduler at {address} is not reached yet: {reason}")
        await asyncio.sleep(max(0.0, min(_PAUSE_S, left_s)))


def _hint(address: str) -> str:
    """Return where to look instead, if there is a secret and no ``tcp://`` with it."""
    if not (is_configured() and address.startswith("tcp://")):
        return ""
    return "; a scheduler with a secret listens on backhaul:// (port 8785), and not on tcp://"


async def connect_once(address: str, arguments: dict[str, Any]) -> None:
    """Connect to an address and hang up, to learn why that fails.

    `rpc` repeats a refused connection until its limit. A last attempt that has no time left then
    takes the place of the reason.
    """
    scheme, _, location = address.partition("://")
    comm = await get_backend(scheme).get_connector().connect(location, **arguments)
    comm.abort()


async def _workers_of(address: str, security: Security, timeout_s: float) -> dict[str, Any]:
    arguments = security.get_connection_args("worker")
    connect_s = 0.8 * timeout_s
    async with asyncio.timeout(timeout_s):
        await connect_once(address, arguments)
        async with rpc(address, connection_args=arguments, timeout=connect_s) as scheduler:
            workers: dict[str, Any] = (await scheduler.identity())["workers"]
    return workers


def _refuse_taken(address: str, workers: dict[str, Any], names: Sequence[str]) -> None:
    taken = {str(each["name"]): where for where, each in workers.items()}
    for name in names:
        if name in taken:
            raise ConfigError(
                f"the scheduler at {address} has a worker named {name!r} already, at "
                f"{taken[name]}: give these another --name"
            )


def root_cause(error: BaseException) -> str:
    """Say in one line what an error came from: the text of its innermost cause that has any."""
    text = ""
    cause: BaseException | None = error
    while cause is not None:
        text = " ".join(str(cause).split()) or text
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return text

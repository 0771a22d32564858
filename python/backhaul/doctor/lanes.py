"""Which lanes work on this machine, each tried with a message to itself; whether memory is lent."""

from __future__ import annotations

from backhaul import Arena, BackhaulError, Context, connect, listen

__all__ = ["LANES", "check_arena", "check_lanes"]

#: Best first
LANES = ("inproc", "shm", "tcp")

_TIMEOUT_S = 10.0


def check_lanes() -> dict[str, str]:
    """Connect to a listener of this process over each lane and send a message.

    Returns
    -------
    dict of str to str
        For each lane ``works``, or why it does not.
    """
    return {lane: _check(lane) for lane in LANES}


def _check(lane: str) -> str:
    context = Context(lanes=[lane])
    try:
        with_peer = listen("127.0.0.1:0", context=context)
        connecting = connect(with_peer.address, context=context, lanes=[lane])
        server = with_peer.accept().wait(_TIMEOUT_S)
        client = connecting.wait(_TIMEOUT_S)
        received = bytearray(8)
        sending = client.send(b"backhaul")
        server.recv(received).wait(_TIMEOUT_S)
        sending.wait(_TIMEOUT_S)
        if client.lane != lane:
            return f"does not work: the handshake chose {client.lane} ({client.info()})"
        return "works" if received == b"backhaul" else f"does not work: received {received!r}"
    except BackhaulError as error:
        return f"does not work: {type(error).__name__}: {error}"
    finally:
        context.close()


def check_arena() -> str:
    """Take a block of an arena, which peers on this host could map.

    Returns
    -------
    str
        ``works``, or why it does not: results are then copied between processes.
    """
    arena = Arena()
    try:
        arena.take(1 << 20)
    except MemoryError:
        return f"does not work: {arena.unavailable()}"
    return "works"

"""Sends memory of a GPU by the carrier for it, over shared memory, and looks whether it arrives."""

from __future__ import annotations

import json
from typing import TextIO

from backhaul import BackhaulError, Context, DeviceBuffer
from backhaul.doctor.children import answering

_NBYTES = 1 << 20
_TIMEOUT_S = 20.0


def main(answer: TextIO) -> None:
    """Print what came of it as JSON."""
    why = ""
    try:
        _exchange()
    except (BackhaulError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
    found = {"why": why, "nbytes": _NBYTES, "is_default": not why and _is_default()}
    json.dump(found, answer)


def _exchange() -> None:
    pattern = bytes(range(256)) * (_NBYTES // 256)
    source, target = DeviceBuffer(_NBYTES), DeviceBuffer(_NBYTES)
    source.copy_from_host(pattern)
    with Context(lanes=["shm"], carriers=["cuda"]) as context:
        with context.listen("127.0.0.1:0") as listener:
            connecting = context.connect(listener.address)
            far = listener.accept().wait(_TIMEOUT_S)
            near = connecting.wait(_TIMEOUT_S)
        receiving = far.recv(target)
        near.send(source).wait(_TIMEOUT_S)
        receiving.wait(_TIMEOUT_S)
    copy = bytearray(_NBYTES)
    target.copy_to_host(copy)
    if copy != pattern:
        raise ValueError("it arrived changed")


def _is_default() -> bool:
    """Tell whether two contexts agree on it without being told."""
    with Context() as context, context.listen("127.0.0.1:0") as listener:
        connecting = context.connect(listener.address)
        # Held, as it ends the connection when it goes.
        _far = listener.accept().wait(_TIMEOUT_S)
        return "cuda" in connecting.wait(_TIMEOUT_S).info()["carriers"]


if __name__ == "__main__":
    with answering() as answer:
        main(answer)

"""Connects to itself over UCX, and tells which libraries that took."""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import TextIO

from backhaul import BackhaulError, Context
from backhaul.doctor.children import answering

_TIMEOUT_S = 15.0

#: Parts of UCX, by the beginnings of the files that they are in
_PARTS = ("libucp.so", "libuct.so", "libucs.so", "libucm.so")


def main(answer: TextIO) -> None:
    """Print what was found as JSON."""
    error, carriers = "", []
    try:
        with Context(lanes=["ucx"]) as context, context.listen("127.0.0.1:0") as listener:
            connecting = context.connect(listener.address)
            server = listener.accept().wait(_TIMEOUT_S)
            client = connecting.wait(_TIMEOUT_S)
            received = bytearray(8)
            sending = client.send(b"backhaul")
            server.recv(received).wait(_TIMEOUT_S)
            sending.wait(_TIMEOUT_S)
            carriers = client.info()["carriers"]
            if client.lane != "ucx":
                error = f"the handshake chose {client.lane}: {client.info()['reason']}"
    except (BackhaulError, ValueError) as failure:
        error = str(failure)
    libraries = mapped()
    found = {
        "error": error,
        "carriers": carriers,
        "libraries": libraries,
        "version": version(libraries.get("libucp")),
        "modules": modules(libraries.get("libucs")),
    }
    json.dump(found, answer)


def mapped() -> dict[str, str]:
    """Parts of UCX in this process, with their files."""
    found = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = Path("/" + line.partition("/")[2])
        for part in _PARTS:
            if path.name.startswith(part):
                found[part.partition(".")[0]] = str(path)
    return found


def opened(path: str) -> ctypes.CDLL:
    """Give a library of this process, by the file that it is mapped from.

    By its bare name it would not be found: once UCX is there, its hook of ``dlopen`` looks for such
    names where the system does, and may map another release beside it.
    """
    return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)


def version(libucp: str | None) -> str:
    """Ask the library that is loaded."""
    if libucp is None:
        return ""
    library = opened(libucp)
    library.ucp_get_version_string.restype = ctypes.c_char_p
    said: bytes = library.ucp_get_version_string()
    return said.decode()


def modules(libucs: str | None) -> list[str]:
    """Transports that are in files of their own beside the library."""
    if libucs is None:
        return []
    folder = Path(libucs).parent / "ucx"
    return sorted(
        {path.name.partition(".")[0][len("libuct_") :] for path in folder.glob("libuct_*")}
    )


if __name__ == "__main__":
    with answering() as answer:
        main(answer)

"""Loads libcuda and asks it what there is."""

from __future__ import annotations

import ctypes
import itertools
import json
from pathlib import Path
from typing import TextIO

from backhaul.doctor.children import answering

_SONAME = "libcuda.so.1"


def main(answer: TextIO) -> None:
    """Print what was found as JSON."""
    try:
        library = ctypes.CDLL(_SONAME)
    except OSError as error:
        json.dump({"why": f"no {_SONAME}: {error}"}, answer)
        return
    found = {"path": mapped("libcuda.so"), "version": 0, "devices": 0, "error": "", "peers": []}
    version, devices = ctypes.c_int(), ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) == 0:
        found["version"] = version.value
    status = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(devices))
    found["devices"] = devices.value
    if status:
        name = ctypes.c_char_p()
        known = library.cuGetErrorName(status, ctypes.byref(name)) == 0 and name.value
        found["error"] = known.decode() if known else f"error {status}"
    elif hasattr(library, "cuDeviceCanAccessPeer"):
        found["peers"] = peers(library, devices.value)
    json.dump(found, answer)


def peers(library: ctypes.CDLL, count: int) -> list[tuple[str, str, bool]]:
    """Ask for each pair of devices whether one may read the other's memory, by PCI address."""
    handles = []
    for number in range(count):
        device, address = ctypes.c_int(), ctypes.create_string_buffer(32)
        if library.cuDeviceGet(ctypes.byref(device), number):
            return []
        library.cuDeviceGetPCIBusId(address, len(address), device)
        handles.append((device, address.value.decode()))
    found = []
    for one, other in itertools.permutations(handles, 2):
        may = ctypes.c_int()
        if library.cuDeviceCanAccessPeer(ctypes.byref(may), one[0], other[0]) == 0:
            found.append((one[1], other[1], bool(may.value)))
    return found


def mapped(name: str) -> str:
    """Tell from which file a library has been loaded; what is mapped is what runs."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if Path(path).name.startswith(name):
            return f"/{path}"
    return name


if __name__ == "__main__":
    with answering() as answer:
        main(answer)

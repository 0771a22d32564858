"""Loads libcuda and asks it what there is."""

from __future__ import annotations

import ctypes
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
    found = {"path": mapped("libcuda.so"), "version": 0, "devices": 0, "error": ""}
    version, devices = ctypes.c_int(), ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) == 0:
        found["version"] = version.value
    status = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(devices))
    found["devices"] = devices.value
    if status:
        name = ctypes.c_char_p()
        known = library.cuGetErrorName(status, ctypes.byref(name)) == 0 and name.value
        found["error"] = known.decode() if known else f"error {status}"
    json.dump(found, answer)


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

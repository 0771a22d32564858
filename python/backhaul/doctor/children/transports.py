"""Lists the transports that UCX has on this host, and their devices, as ``ucx_info -d`` does."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from typing import TextIO

from backhaul import BackhaulError, Context
from backhaul.doctor.children import answering
from backhaul.doctor.children.ucx import mapped, opened

# uct.h of UCX, unchanged from 1.13 to 1.21
_NAME, _DOMAIN_COUNT, _DOMAINS = 1, 2, 4
_KINDS = ("network", "host", "accelerator", "process")


class _Domain(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char * 16),)


class _Component(ctypes.Structure):
    _fields_ = (
        ("mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 16),
        ("domain_count", ctypes.c_uint),
        ("domains", ctypes.POINTER(_Domain)),
        ("flags", ctypes.c_uint64),
    )


class _Resource(ctypes.Structure):
    _fields_ = (
        ("transport", ctypes.c_char * 10),
        ("device", ctypes.c_char * 32),
        ("kind", ctypes.c_int),
        ("system_device", ctypes.c_uint8),
    )


def main(answer: TextIO) -> None:
    """Print transport, device and kind of each as JSON."""
    try:
        # Loads the libraries as Backhaul does, wherever they are.
        with Context(lanes=["ucx"]):
            found = sorted(set(resources(opened(mapped()["libuct"]))))
    except (BackhaulError, OSError, ValueError) as error:
        json.dump({"error": str(error), "transports": []}, answer)
        return
    json.dump({"error": "", "transports": found}, answer)


def resources(uct: ctypes.CDLL) -> Iterator[tuple[str, str, str]]:
    """Open every memory domain of every component, and read what it offers."""
    components, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_uint()
    if uct.uct_query_components(ctypes.byref(components), ctypes.byref(count)):
        return
    for index in range(count.value):
        component = ctypes.c_void_p(components[index])
        about = _Component(mask=_NAME | _DOMAIN_COUNT)
        uct.uct_component_query(component, ctypes.byref(about))
        domains = (_Domain * max(1, about.domain_count))()
        about.mask, about.domains = _DOMAINS, domains
        uct.uct_component_query(component, ctypes.byref(about))
        for domain in domains[: about.domain_count]:
            yield from _offered(uct, component, domain.name)
    # Nothing is closed: the process ends.


def _offered(
    uct: ctypes.CDLL, component: ctypes.c_void_p, domain: bytes
) -> Iterator[tuple[str, str, str]]:
    settings, opened = ctypes.c_void_p(), ctypes.c_void_p()
    if uct.uct_md_config_read(component, None, None, ctypes.byref(settings)):
        return
    if uct.uct_md_open(component, domain, settings, ctypes.byref(opened)):
        return
    offered, count = ctypes.POINTER(_Resource)(), ctypes.c_uint()
    if uct.uct_md_query_tl_resources(opened, ctypes.byref(offered), ctypes.byref(count)):
        return
    for each in offered[: count.value]:
        kind = _KINDS[each.kind] if 0 <= each.kind < len(_KINDS) else "other"
        yield each.transport.decode(), each.device.decode(), kind


if __name__ == "__main__":
    with answering() as answer:
        main(answer)

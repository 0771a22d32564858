"""Frames in memory of GPUs: how they travel beside a message, and who allocates for them.

A serializer of the family ``cuda`` gives frames with ``__cuda_array_interface__``. Where both ends
of a comm have the carrier for such memory, the frames on the host go first, as one message, with a
description in front of them; then each frame on a GPU as a separate message, under its own tag. The
reader allocates by what its process uses (`allocator`) and receives in place, so nothing passes the
host.

Elsewhere `BackhaulComm` leaves the family out, as Dask does for families that one side lacks, and
the family ``dask`` copies to the host. Frames that are serialized already, and only passed on, are
copied to the host here, and back by a reader that has a GPU.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from backhaul import CudaUnavailable, DeviceBuffer, Endpoint, Request, _native
from backhaul.dask.compat.names import Worker
from backhaul.dask.serialize import codec

__all__ = [
    "SERIALIZERS",
    "Allocate",
    "Description",
    "Parted",
    "allocator",
    "described",
    "is_described",
    "offer",
    "part",
    "place",
    "places",
    "reaches",
    "receive",
    "send",
    "without_cuda",
]

#: Allocates memory on the GPU that the process uses: something with ``__cuda_array_interface__``.
Allocate: TypeAlias = Callable[[int], Any]

#: Families that serialize a message where GPUs reach each other, if its writer names none: those of
#: Dask's own comm over UCX.
SERIALIZERS: Final = codec.WITH_CUDA

#: Bytes with which no message begins: msgpack never uses the first byte.
_MARK: Final = b"\xc1GPU"

#: Version of the description, told in the handshake.
_VERSION: Final = 1

#: Libraries whose arrays lie on GPUs: a process that has imported one wants them there. Not RMM:
#: distributed's own diagnostics import it in every process where it is installed.
_LIBRARIES: Final = ("cupy", "numba.cuda", "cudf")

#: Most separate frames on their way: each takes a place in the native queue.
_APART_MAX: Final = 64

_HOST: Final = frozenset({bytes, bytearray, memoryview})


class Description(NamedTuple):
    """Description in front of a message of which some frames are on a GPU."""

    #: Tag of the first separate frame; the others follow in order.
    tag: int
    #: Place in the message and bytes of each separate frame.
    apart: tuple[tuple[int, int], ...]
    #: Places of frames that lay on a GPU and were copied to the host.
    staged: tuple[int, ...]

    def frame(self) -> bytes:
        """Give what is sent."""
        return _MARK + bytes(msgpack.packb(tuple(self)))


class Parted(NamedTuple):
    """A message of which some frames are on a GPU."""

    #: The description and the frames on the host, with empty ones in the place of the others.
    host: list[codec.Frame]
    #: The separate frames, in order, none of them empty.
    device: list[Any]


def offer(carriers: Sequence[str], wanted: bool | None) -> dict[str, Any]:
    """Say in the handshake what this side takes of the carriers that both sides have.

    That is nothing, if memory of GPUs should not come here: there is no carrier, or it is a process
    that uses no GPU, such as a scheduler, in which CUDA is not to be started. `wanted` is None to
    look whether this process uses any.
    """
    is_opened, is_fetched = "cuda" in carriers, "ucx-cuda" in carriers
    if not (is_opened or is_fetched) or not (_uses_gpu() if wanted is None else wanted):
        return {}
    # UCX fetches the bytes: no process opens a handle of a GPU that has to be seen.
    visible = None if is_fetched else os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"device-frames": _VERSION, "visible-devices": visible}


def _uses_gpu() -> bool:
    if any(name in sys.modules for name in _LIBRARIES):
        return True
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return True
    # Its tasks may at any time.
    return bool(Worker._instances)


def reaches(local: Mapping[str, Any], remote: Mapping[str, Any]) -> bool:
    """Tell by both parts of the handshake whether memory of our GPUs can be sent to the peer."""
    if local.get("device-frames") != _VERSION or remote.get("device-frames") != _VERSION:
        return False
    return _sees(remote.get("visible-devices"), local.get("visible-devices"))


def _sees(theirs: str | None, ours: str | None) -> bool:
    """Tell whether a process sees each GPU of another, by their ``CUDA_VISIBLE_DEVICES``.

    A handle opens only where its GPU is seen. Whether two names of different kinds mean the same
    GPU only CUDA can tell, which is not started for that.
    """
    if theirs is None or theirs == ours:
        return True
    return ours is not None and _names(ours) <= _names(theirs)


def _names(devices: str) -> set[str]:
    return {name.strip() for name in devices.split(",")}


def without_cuda(serializers: Sequence[str] | None) -> Sequence[str] | None:
    """Leave the family ``cuda`` out, where the peer takes no memory of GPUs."""
    if serializers is None or "cuda" not in serializers:
        return serializers
    return [name for name in serializers if name != "cuda"]


def places(frames: Sequence[Any]) -> list[int]:
    """Find the frames of a message that are on a GPU."""
    if len(frames) == 1:
        # Its header
        return []
    return [
        place
        for place, frame in enumerate(frames)
        if type(frame) not in _HOST and hasattr(frame, "__cuda_array_interface__")
    ]


def part(frames: list[codec.Frame], tag: int, *, by_device: bool) -> Parted | None:
    """Part a message whose frames are not all on the host; None if they are.

    `tag` is that of the first separate frame. Frames on a GPU are sent separately if `by_device`,
    or are copied to the host, here and now.
    """
    on_device = places(frames)
    if not on_device:
        return None
    host = list(frames)
    device: list[Any] = []
    apart: list[tuple[int, int]] = []
    for place in on_device:
        frame: Any = host[place]
        nbytes = _nbytes(frame)
        if by_device:
            host[place] = b""
            apart.append((place, nbytes))
            if nbytes > 0:
                device.append(frame)
        else:
            host[place] = copy = bytearray(nbytes)
            _native.copy_memory(frame, copy)
    description = Description(tag, tuple(apart), () if by_device else tuple(on_device))
    return Parted([description.frame(), *host], device)


async def send(endpoint: Endpoint, frames: Sequence[Any], tag: int) -> None:
    """Send the separate frames of `part`, the first with a tag, and wait until the peer has them.

    Not left for later: the peer waits for them, and would for ever if one failed unseen.
    """
    sent: deque[Request[None]] = deque()
    for number, frame in enumerate(frames):
        if len(sent) >= _APART_MAX:
            await sent.popleft()
        sent.append(endpoint.send(frame, tag=tag + number))
    while sent:
        await sent.popleft()


async def receive(
    endpoint: Endpoint, frames: list[Any], description: Description, allocate: Allocate
) -> None:
    """Allocate memory for the separate frames, by `allocator`, and receive them there.

    The description came in front of the message, whose frames are changed in place.
    """
    tag = description.tag
    posted: deque[Request[Any]] = deque()
    for place, nbytes in description.apart:
        frames[place] = memory = allocate(nbytes)
        if nbytes == 0:
            continue
        if len(posted) >= _APART_MAX:
            await posted.popleft()
        posted.append(endpoint.recv(memory, tag=tag))
        tag += 1
    while posted:
        await posted.popleft()


def is_described(frames: Sequence[Any]) -> bool:
    """Tell whether there is a description in front of a message."""
    if not frames:
        return False
    first = frames[0]
    # Asked of each message: the first byte tells for nearly all.
    return len(first) > len(_MARK) and first[0] == _MARK[0] and first[: len(_MARK)] == _MARK


def described(frames: Sequence[Any]) -> Description:
    """Give the description in front of a message; `ValueError` if it is damaged."""
    tag, apart, staged = msgpack.unpackb(frames[0][len(_MARK) :], use_list=False)
    return Description(tag, apart, staged)


def _nbytes(frame: Any) -> int:
    nbytes = getattr(frame, "nbytes", None)
    return len(frame) if nbytes is None else int(nbytes)


@functools.cache
def allocator(name: str | None) -> Allocate:
    """Find who allocates for what comes from other GPUs; once, as imports that fail take time.

    The name is ``"rmm"``, ``"cupy"``, ``"numba"``, ``"backhaul"``, or a function of one argument,
    the size in bytes, as ``"module:function"``; `ImportError` if there is no such module. None
    takes the first of these four that there is.
    """
    if name is not None:
        module, _, function = name.partition(":")
        if function:
            return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]
        return _MAKERS[name]()
    for make in _MAKERS.values():
        try:
            return make()
        except Exception:  # One that is there may want what is not: a library of CUDA, a driver
            continue
    raise AssertionError("the last one is ours")


def place(frames: list[Any], staged: Sequence[int], allocate: Allocate) -> None:
    """Copy frames that came by way of the host to a GPU, in place, if this process has one."""
    try:
        _native.cuda_devices()
    except CudaUnavailable:
        # For another process, or nothing here could use them.
        return
    for number in staged:
        memory = allocate(_nbytes(frames[number]))
        _native.copy_memory(frames[number], memory)
        frames[number] = memory


def _rmm() -> Allocate:
    rmm: Any = importlib.import_module("rmm")
    return lambda nbytes: rmm.DeviceBuffer(size=nbytes)


def _cupy() -> Allocate:
    cupy: Any = importlib.import_module("cupy")
    return lambda nbytes: cupy.empty(nbytes, dtype="u1")


def _numba() -> Allocate:
    cuda: Any = importlib.import_module("numba.cuda")
    return lambda nbytes: cuda.device_array((nbytes,), dtype="u1")


#: In the order in which they are tried
_MAKERS: Final[dict[str, Callable[[], Allocate]]] = {
    "rmm": _rmm,
    "cupy": _cupy,
    "numba": _numba,
    "backhaul": lambda: DeviceBuffer,
}

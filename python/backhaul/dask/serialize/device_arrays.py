"""Serializers for arrays on GPUs that Dask has none for: PyTorch's, JAX's, and any other's.

They belong to the family ``cuda``: the frame is the memory of the array where it lies. Dask brings
those of CuPy, Numba, RMM and cuDF. Dask's own for PyTorch, of the family ``dask``, cannot take
tensors on a GPU: these are copied to the host first, where the peer has no way for them.

Nothing is imported for it. A library's serializers are registered when one of its objects is first
met, as Dask registers its own.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, Final

from backhaul import DeviceBuffer, _native
from backhaul.dask.compat.names import (
    cuda_deserialize,
    cuda_serialize,
    dask_deserialize,
    dask_serialize,
    ensure_memoryview,
)
from backhaul.dask.compat.process_patches import LAZY_SERIALIZERS

__all__ = ["Bytes", "register", "register_device_array"]


class Bytes:
    """The memory of a contiguous array on a GPU, which is kept, as bytes."""

    __slots__ = ("_array", "nbytes")

    def __init__(self, array: Any, nbytes: int) -> None:
        self._array = array
        self.nbytes = nbytes

    def __len__(self) -> int:
        return self.nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = dict(self._array.__cuda_array_interface__)
        interface.pop("descr", None)
        return {**interface, "shape": (self.nbytes,), "typestr": "|u1", "strides": None}

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, ordinal = self._array.__dlpack_device__()
        return kind, ordinal

    def __dlpack__(self, *, stream: object = None) -> object:
        # By this the array is put in order, where its interface says nothing of streams.
        return self._array.__dlpack__(stream=stream)


def register_device_array(
    cls: type,
    rebuild: Callable[[Any, tuple[int, ...], str], Any],
    *,
    contiguous: Callable[[Any], Any] | None = None,
) -> None:
    """Make Dask send arrays of a class from GPU to GPU, and by the host where that cannot be.

    Parameters
    ----------
    cls : type
        Its objects have ``__cuda_array_interface__``.
    rebuild : callable
        Makes an array of what came, which has ``__cuda_array_interface__`` over that many bytes
        and has to be kept; of a shape; and of a type, such as ``"<f4"``.
    contiguous : callable, optional
        Makes a contiguous array, in C's order, of one that says strides. Without it such arrays are
        not sent.
    """

    def serialize(array: Any) -> tuple[dict[str, Any], list[Any]]:
        interface = array.__cuda_array_interface__
        if interface.get("strides") is not None and contiguous is not None:
            array = contiguous(array)
            interface = array.__cuda_array_interface__
        shape, typestr = tuple(interface["shape"]), interface["typestr"]
        nbytes = functools.reduce(lambda size, length: size * length, shape, _item_bytes(typestr))
        return {"shape": shape, "typestr": typestr}, [Bytes(array, nbytes)]

    def deserialize(header: dict[str, Any], frames: list[Any]) -> Any:
        (frame,) = frames
        return rebuild(frame, tuple(header["shape"]), header["typestr"])

    _register_both(cls, serialize, deserialize)


def _item_bytes(typestr: str) -> int:
    digits = typestr.lstrip("<>|=").lstrip("biufcmOSUVt")
    return int(digits) * (4 if "U" in typestr else 1)


def _register_both(
    cls: type, serialize: Callable[[Any], Any], deserialize: Callable[[Any, Any], Any]
) -> None:
    """Register serializers of both families: ``cuda``, and ``dask`` by way of the host."""
    cuda_serialize.register(cls)(serialize)
    cuda_deserialize.register(cls)(deserialize)

    def serialize_by_host(array: Any) -> tuple[dict[str, Any], list[Any]]:
        header, frames = serialize(array)
        return header, [_to_host(frame) for frame in frames]

    def deserialize_by_host(header: dict[str, Any], frames: list[Any]) -> Any:
        return deserialize(header, [_to_device(frame) for frame in frames])

    dask_serialize.register(cls)(serialize_by_host)
    dask_deserialize.register(cls)(deserialize_by_host)


def _to_host(frame: Any) -> memoryview:
    copy = bytearray(frame.nbytes)
    _native.copy_memory(frame, copy)
    return memoryview(copy)


def _to_device(frame: Any) -> DeviceBuffer:
    view = ensure_memoryview(frame)
    memory = DeviceBuffer(view.nbytes)
    memory.copy_from_host(view)
    return memory


@functools.cache
def register() -> None:
    """Register everything, each library's when it is first met; again does nothing."""
    _register_both(DeviceBuffer, lambda buffer: ({}, [buffer]), _take_device_buffer)
    cuda_serialize.register_lazy("jaxlib")(_register_jax)
    cuda_deserialize.register_lazy("jaxlib")(_register_jax)
    for library in LAZY_SERIALIZERS:
        if library in sys.modules:
            # Dask may have met it already, and does not look again.
            _register_torch()
        for registry in (cuda_serialize, cuda_deserialize, dask_serialize, dask_deserialize):
            registry.register_lazy(library)(_register_torch)


def _take_device_buffer(header: dict[str, Any], frames: list[Any]) -> DeviceBuffer:
    (frame,) = frames
    if isinstance(frame, DeviceBuffer):
        return frame
    memory = DeviceBuffer(frame.nbytes)
    _native.copy_memory(frame, memory)
    return memory


@functools.cache
def _register_torch() -> None:
    torch: Any = importlib.import_module("torch")
    theirs: Any = importlib.import_module("distributed.protocol.torch")

    def serialize(tensor: Any) -> tuple[dict[str, Any], list[Any]]:
        # On the host, of a class of its own, or with more than its values: the next family.
        if type(tensor) is not torch.Tensor or not tensor.is_cuda or tensor.grad is not None:
            raise NotImplementedError(type(tensor))
        if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
            raise NotImplementedError(tensor.layout)
        values = tensor.detach().contiguous()
        header = {
            "shape": tuple(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "requires_grad": tensor.requires_grad,
        }
        frame = Bytes(values.view(-1).view(torch.uint8), values.nbytes) if values.nbytes else b""
        return header, [frame]

    def deserialize(header: dict[str, Any], frames: list[Any]) -> Any:
        (frame,) = frames
        dtype = getattr(torch, header["dtype"])
        if 0 in header["shape"]:
            tensor = torch.empty(header["shape"], dtype=dtype, device="cuda")
        else:
            values = torch.as_tensor(frame, device="cuda")
            tensor = values.view(dtype).view(header["shape"])
        return tensor.requires_grad_(header["requires_grad"])

    def serialize_by_host(tensor: Any) -> tuple[dict[str, Any], list[Any]]:
        if not tensor.is_cuda:
            return theirs.serialize_torch_Tensor(tensor)  # type: ignore[no-any-return]
        if tensor.grad is not None:
            # Dask would bring the gradient back on the host: pickled it stays where it is.
            raise NotImplementedError(type(tensor))
        on_host = tensor.detach().cpu().requires_grad_(tensor.requires_grad)
        header, frames = theirs.serialize_torch_Tensor(on_host)
        # By which Dask puts it back on a GPU.
        header["device"] = tensor.device.type
        return header, frames

    cuda_serialize.register(torch.Tensor)(serialize)
    cuda_deserialize.register(torch.Tensor)(deserialize)
    dask_serialize.register(torch.Tensor)(serialize_by_host)


@functools.cache
def _register_jax() -> None:
    jax: Any = importlib.import_module("jax")
    array_class: Final = type(jax.numpy.zeros(()))

    def serialize(array: Any) -> tuple[dict[str, Any], list[Any]]:
        # On the host, or on several devices: pickled, as without us.
        devices = array.devices()
        if len(devices) != 1 or next(iter(devices)).platform not in ("cuda", "gpu"):
            raise NotImplementedError(type(array))
        # Its interface names no types but NumPy's.
        values = array.ravel().view(jax.numpy.uint8)
        header = {"shape": tuple(array.shape), "dtype": str(array.dtype)}
        return header, [Bytes(values, values.nbytes) if values.nbytes else b""]

    def deserialize(header: dict[str, Any], frames: list[Any]) -> Any:
        (frame,) = frames
        dtype = jax.numpy.dtype(header["dtype"])
        if 0 in header["shape"]:
            return jax.numpy.empty(header["shape"], dtype)
        if not hasattr(frame, "__dlpack__"):
            frame = _take_device_buffer({}, [frame])
        return jax.dlpack.from_dlpack(frame).view(dtype).reshape(header["shape"])

    cuda_serialize.register(array_class)(serialize)
    cuda_deserialize.register(array_class)(deserialize)

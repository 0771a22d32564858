"""`Array`: what is known of the memory of an object."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from backhaul._buffers import as_buffer
from backhaul.errors import InvalidBuffer

__all__ = ["Array", "DeviceView", "asarray", "flat", "is_on_device", "nbytes_of"]

_T = TypeVar("_T")


class Array(Generic[_T]):
    """The memory of an object: its size, layout and where it is.

    `Endpoint.send` and `Endpoint.recv` take the object itself as well.

    Parameters
    ----------
    obj : object
        Anything with the buffer protocol or ``__cuda_array_interface__``.

    Attributes
    ----------
    obj : object
        The object whose memory it is.
    cuda : bool
        Whether the memory is that of a GPU.
    readonly : bool
        Whether it may not be written to.
    itemsize : int
        Size of an element, in bytes.
    ndim : int
        Number of dimensions.
    shape, strides : tuple of int
        Elements in, and bytes between elements of, each dimension.
    nbytes : int
        Size of all elements, in bytes.

    Raises
    ------
    TypeError
        If the object offers no memory.
    NotImplementedError
        If it has a mask, or is an array of pointers.
    ValueError
        If its interface contradicts itself.
    """

    __slots__ = (
        "_ptr",
        "cuda",
        "itemsize",
        "nbytes",
        "ndim",
        "obj",
        "readonly",
        "shape",
        "strides",
    )

    def __init__(self, obj: Any) -> None:
        interface = getattr(obj, "__cuda_array_interface__", None)
        self.cuda = interface is not None
        self.obj: Any = obj
        if interface is not None:
            if interface.get("mask") is not None:
                raise NotImplementedError(f"arrays with a mask cannot be sent, got {obj!r}")
            self._ptr, self.readonly = interface["data"]
            self.itemsize = _itemsize(interface["typestr"])
            self.shape = tuple(map(int, interface["shape"]))
            strides = interface.get("strides")
        else:
            view = memoryview(obj)
            if view.suboffsets:
                raise NotImplementedError(f"arrays of pointers cannot be sent, got {obj!r}")
            self._ptr = None
            # The object that was viewed, as a view of a view is one of the object.
            self.obj = view.obj
            self.readonly = view.readonly
            self.itemsize = view.itemsize
            self.shape = view.shape or ()
            strides = view.strides or None
        self.ndim = len(self.shape)
        if strides is not None and len(strides) != self.ndim:
            raise ValueError(f"shape and strides differ in length: {self.shape!r}, {strides!r}")
        self.strides = _c_strides(self.shape, self.itemsize) if strides is None else tuple(strides)
        self.nbytes = self.itemsize
        for length in self.shape:
            self.nbytes *= length

    @property
    def ptr(self) -> int:
        """Address of the memory."""
        if self._ptr is None:
            import numpy as np

            self._ptr = np.asarray(memoryview(self.obj)).__array_interface__["data"][0]
        return int(self._ptr)

    @property
    def c_contiguous(self) -> bool:
        """Tell whether the elements lie without gaps, the last dimension first."""
        return self.strides == _c_strides(self.shape, self.itemsize)

    @property
    def f_contiguous(self) -> bool:
        """Tell whether the elements lie without gaps, the first dimension first."""
        return self.strides[::-1] == _c_strides(self.shape[::-1], self.itemsize)

    @property
    def contiguous(self) -> bool:
        """Tell whether the elements lie without gaps in either order."""
        return self.c_contiguous or self.f_contiguous

    def __repr__(self) -> str:
        return f"<ucp.Array, {self.nbytes} bytes of {type(self.obj).__qualname__}>"


def asarray(obj: Any) -> Array[Any]:
    """Give the `Array` of an object, which may be one.

    Parameters
    ----------
    obj : object
        As for `Array`.
    """
    return obj if isinstance(obj, Array) else Array(obj)


class DeviceView:
    """Memory of a GPU as bytes, whatever the array over it is.

    Parameters
    ----------
    array : Array
        The array, contiguous in either order.
    nbytes : int, optional
        How much of it, from its beginning; all of it by default.
    """

    __slots__ = ("_array", "nbytes")

    def __init__(self, array: Array[Any], nbytes: int | None = None) -> None:
        self._array = array
        self.nbytes = array.nbytes if nbytes is None else nbytes

    def first(self, nbytes: int) -> DeviceView:
        """Give its first bytes."""
        return DeviceView(self._array, nbytes)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        theirs = self._array.obj.__cuda_array_interface__
        known = {key: theirs[key] for key in ("data", "stream", "version") if key in theirs}
        return {**known, "shape": (self.nbytes,), "typestr": "|u1", "strides": None}


#: Types that most messages are of, none of them on a GPU.
_ON_HOST = frozenset({bytes, bytearray, memoryview})


def is_on_device(buffer: Any) -> bool:
    """Tell whether the memory of an object, or an `Array`, is that of a GPU."""
    if type(buffer) in _ON_HOST:
        return False
    if isinstance(buffer, Array):
        return buffer.cuda
    return hasattr(buffer, "__cuda_array_interface__")


def nbytes_of(buffer: Any) -> int:
    """Give the size of an object's memory, in bytes.

    Parameters
    ----------
    buffer : object
        An `Array`, or what it takes.

    Raises
    ------
    TypeError
        If the object offers no memory.
    """
    if isinstance(buffer, Array | DeviceView):
        return buffer.nbytes
    if is_on_device(buffer):
        return Array(buffer).nbytes
    try:
        return memoryview(buffer).nbytes
    except (TypeError, ValueError, BufferError):
        return memoryview(flat(buffer)).nbytes


def flat(buffer: Any, *, writable: bool = False) -> Any:
    """Give something with C-contiguous memory in place of an object.

    Parameters
    ----------
    buffer : object
        An `Array`, or what it takes; Fortran order too.
    writable : bool, optional
        It is going to be written to.

    Returns
    -------
    object
        With the buffer protocol over the same memory, one byte after the other; a `DeviceView` of
        memory of a GPU.

    Raises
    ------
    TypeError
        If the object offers no memory.
    InvalidBuffer
        If it is read-only but written to, has gaps, or holds objects.
    """
    if isinstance(buffer, DeviceView):
        return buffer
    if is_on_device(buffer):
        return _flat_device(asarray(buffer), writable)
    if isinstance(buffer, Array):
        buffer = buffer.obj
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError, BufferError):
        other = as_buffer(buffer)
        if other is None:
            raise TypeError(
                f"need the buffer protocol or __array_interface__, got {type(buffer)!r}"
            ) from None
        view = memoryview(other)
    # Names of fields are between colons.
    if "O" in "".join(view.format.split(":")[::2]):
        raise InvalidBuffer(f"references to Python objects cannot be sent, got {type(buffer)!r}")
    if writable and view.readonly:
        raise InvalidBuffer(f"cannot receive into read-only memory, got {type(buffer)!r}")
    if not view.c_contiguous and view.f_contiguous:
        import numpy as np

        # The elements in the order in which they lie, which is how UCX-Py sends them.
        view = memoryview(np.asarray(view).T)  # type: ignore[arg-type]
    if not view.c_contiguous:
        raise InvalidBuffer(
            f"memory must be C or F contiguous, got {type(buffer)!r} of shape {view.shape} "
            f"with strides {view.strides}"
        )
    return view if view.nbytes == 0 else view.cast("B")


def _flat_device(array: Array[Any], writable: bool) -> Any:
    if array.nbytes == 0:
        return memoryview(bytearray())
    if writable and array.readonly:
        raise InvalidBuffer(f"cannot receive into read-only memory, got {array!r}")
    if not array.contiguous:
        raise InvalidBuffer(
            f"memory must be C or F contiguous, got {array!r} of shape {array.shape} "
            f"with strides {array.strides}"
        )
    return DeviceView(array)


def _c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = []
    for length in reversed(shape):
        strides.append(itemsize)
        itemsize *= length
    return tuple(reversed(strides))


def _itemsize(typestr: str) -> int:
    if not isinstance(typestr, str) or not typestr:
        raise ValueError(f"typestr must be a text such as '<f8', got {typestr!r}")
    import numpy as np

    return np.dtype(typestr).itemsize

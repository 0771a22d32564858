"""Dask's messages to frames and back, by the native codec.

The frames are those of ``distributed.protocol.core``: a msgpack header, in which serialized objects
are placeholders, and the frames of these objects. Either side reads what the other wrote, as long
as this package is installed where tasks are read. Objects that the header cannot express go to
Dask's own serializers, with the same arguments and the same errors.
"""

from __future__ import annotations

import logging
import pickle as stdlib_pickle
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from backhaul import _native
from backhaul.dask.compat.names import (
    Pickled,
    Serialize,
    Serialized,
    ToPickle,
    context_meter,
    cuda_serialize,
    dask_serialize,
    decompress,
    ensure_memoryview,
    is_msgpack_serializable,
    maybe_compress,
    merge_and_deserialize,
    msgpack_decode_default,
    msgpack_encode_default,
    msgpack_opts,
    pickle,
    safe_sizeof,
    serialize_and_split,
)
from backhaul.dask.serialize import task_codec

__all__ = [
    "WITH_CUDA",
    "EncodeOptions",
    "Frame",
    "Message",
    "codec",
    "dumps",
    "encode",
    "encode_here",
    "load_task",
    "loads",
]

#: Loggers of Dask's own codec and of what calls it for a comm: programs listen there.
logger = logging.getLogger("distributed.protocol.core")
comm_logger = logging.getLogger("distributed.comm.utils")

Frame: TypeAlias = bytes | bytearray | memoryview

#: What `encode` passes on to the serializers: serializers, on_error, context, frame_split_size.
EncodeOptions: TypeAlias = tuple[Any, str, dict[str, Any] | None, int | None]

#: What `loads` passes on: deserialize, deserializers.
_DecodeOptions: TypeAlias = tuple[bool, Any]

_DEFAULTS: Final[EncodeOptions] = (None, "message", None, None)

#: Families that serialize where memory of GPUs travels, unless a writer names others.
WITH_CUDA: Final = ("cuda", "dask", "pickle", "error")


class Message(NamedTuple):
    """A message that is ready to be sent."""

    #: Header and serialized parts.
    frames: list[Frame]
    #: Size of all frames, in bytes.
    message_bytes: int
    #: Frames on GPUs that are sent separately, see `backhaul.dask.comm.device_frames`.
    device: Sequence[Any] = ()


def dumps(
    msg: Any,
    serializers: Any = None,
    on_error: str = "message",
    context: dict[str, Any] | None = None,
    frame_split_size: int | None = None,
) -> list[Frame]:
    """Serialize a message, as ``distributed.protocol.core.dumps`` does.

    Parameters
    ----------
    msg : object
        Objects that msgpack can hold, sets, enumerations, and objects marked by ``Serialize``,
        ``Serialized``, ``ToPickle`` or ``Pickled``.
    serializers : sequence of str, optional
        Families of serializers to use, in order.
    on_error : {"message", "raise"}
        Whether a part that cannot be serialized travels as an error message or raises.
    context : dict, optional
        The result of the handshake; its ``compression`` is used here, the rest by serializers.
    frame_split_size : int, optional
        Frames above this many bytes are split.

    Returns
    -------
    list of bytes-like
        The frames.

    Raises
    ------
    TypeError
        If a part cannot be serialized, and `on_error` is ``"raise"``.
    OverflowError
        If an integer does not fit into 64 bits.
    ValueError
        If the message is nested too deeply, or refers to itself.
    """
    frames: list[Frame] = [b""]
    options = (serializers, on_error, context, frame_split_size)
    try:
        try:
            _encode(msg, frames, options)
        except TypeError as error:
            frames = _error_frames(error)
            _encode(msg, frames, options, True)
    except Exception:
        logger.critical("Failed to Serialize", exc_info=True)
        raise
    return frames


def encode(
    msg: Any,
    serializers: Any = None,
    on_error: str = "message",
    context: dict[str, Any] | None = None,
    frame_split_size: int | None = None,
    *,
    inline_bytes_max: int | None = None,
) -> Message | None:
    """Serialize a message as `dumps` does, unless that may take long.

    Gives up before more than `inline_bytes_max` bytes, as far as objects tell their size, are
    serialized, and returns None. The message is as it was then, and can be serialized in another
    thread by the same call without the limit.
    """
    frames, size = encode_here(
        msg, (serializers, on_error, context, frame_split_size), inline_bytes_max
    )
    return Message(frames, size) if size >= 0 else None


def encode_here(
    msg: Any, options: EncodeOptions, inline_bytes_max: int | None
) -> tuple[list[Frame], int]:
    """Serialize a message as `encode` does, for those who send many.

    The options are ``serializers``, ``on_error``, ``context`` and ``frame_split_size``. Returns the
    frames, and their size in bytes; below 0 if it was given up.
    """
    frames: list[Frame] = [b""]
    try:
        try:
            size = _encode(msg, frames, options, False, inline_bytes_max)
        except TypeError as error:
            frames = _error_frames(error)
            size = _encode(msg, frames, options, True, inline_bytes_max)
    except Exception as error:
        logger.critical("Failed to Serialize", exc_info=True)
        comm_logger.info("Unserializable Message: %s", msg)
        comm_logger.exception(error)
        raise
    return frames, size


def _error_frames(error: TypeError) -> list[Frame]:
    """Log that the message needs another attempt, giving frames to start from."""
    text = "Failed to serialize (%s); falling back to pickle. Be aware that this may be slow."
    logger.info(text, error)
    return [b""]


def loads(frames: Sequence[Frame], deserialize: bool = True, deserializers: Any = None) -> Any:
    """Deserialize a message, as ``distributed.protocol.core.loads`` does.

    Parameters
    ----------
    frames : sequence of bytes-like
        As `dumps` gave them; those of arrays are kept by the arrays.
    deserialize : bool, default True
        Whether objects that were marked by ``Serialize`` are deserialized, or stay ``Serialized``.
    deserializers : collection of str, optional
        Families of serializers that are allowed.

    Returns
    -------
    object
        The message. Lists have become tuples.

    Raises
    ------
    ValueError
        If the header is no msgpack, or not all of it.
    TypeError
        If a family is not allowed, or a part could not be serialized where it came from.
    """
    try:
        return _decode(frames, (deserialize, deserializers))
    except Exception:
        logger.critical("Failed to deserialize", exc_info=True)
        raise


def _default(obj: Any, frames: list[Frame], options: EncodeOptions) -> Any:
    """Give what to write for an object, putting what it is serialized to into `frames`."""
    if isinstance(obj, (Serialize, Serialized)):
        offset = len(frames)
        frames.extend(_serialized(obj, options))
        return {"__Serialized__": offset}
    if isinstance(obj, (ToPickle, Pickled)):
        offset = len(frames)
        frames.extend(_pickled(obj, options))
        return {"__Pickled__": offset}
    return msgpack_encode_default(obj)


def _default_or_pickle(obj: Any, frames: list[Frame], options: EncodeOptions) -> Any:
    """Do as `_default` does, and pickle what is left."""
    encoded = _default(obj, frames, options)
    if encoded is not obj or is_msgpack_serializable(obj):
        return encoded
    return _default(ToPickle(obj), frames, options)


def _serialized(obj: Any, options: EncodeOptions) -> list[Frame]:
    serializers, on_error, context, frame_split_size = options
    if isinstance(obj, Serialized):
        header, frames = obj.header, obj.frames
    else:
        header, frames = serialize_and_split(
            obj,
            serializers=serializers,
            on_error=on_error,
            context=context,
            size=frame_split_size,
        )
        _compress(header, frames, context)
    header["num-sub-frames"] = len(frames)
    return [codec.pack(header), *frames]


def _pickled(obj: Any, options: EncodeOptions) -> list[Frame]:
    if isinstance(obj, Pickled):
        header, frames = obj.header, obj.frames
    else:
        frames = []
        header = {
            "pickled-obj": pickle.dumps(
                obj.data, buffer_callback=lambda buffer: frames.append(ensure_memoryview(buffer))
            )
        }
        _compress(header, frames, options[2])
    header["num-sub-frames"] = len(frames)
    return [msgpack.dumps(header), *frames]


def _compress(header: dict[str, Any], frames: list[Frame], context: dict[str, Any] | None) -> None:
    """Compress in place the frames that are not compressed yet."""
    compression = list(header.get("compression", [None] * len(frames)))
    arguments = (
        {"compression": context["compression"]} if context and "compression" in context else {}
    )
    for i, known in enumerate(compression[: len(frames)]):
        if known is None:
            compression[i], frames[i] = maybe_compress(frames[i], **arguments)
    header["compression"] = tuple(compression)


def _hook(obj: dict[Any, Any], frames: Sequence[Frame], options: _DecodeOptions) -> Any:
    """Give what a map with a reserved key stands for."""
    deserialize, deserializers = options
    offset = obj.get("__Serialized__", 0)
    if offset > 0:
        header = codec.unpack(frames[offset])
        first = offset + 1
        parts = frames[first : first + header["num-sub-frames"]]
        if not deserialize:
            return Serialized(header, parts)
        if "compression" in header:
            parts = decompress(header, parts)
        return merge_and_deserialize(header, parts, deserializers=deserializers)
    offset = obj.get("__Pickled__", 0)
    if offset > 0:
        header = msgpack.loads(frames[offset])
        first = offset + 1
        parts = frames[first : first + header["num-sub-frames"]]
        if "compression" in header:
            parts = decompress(header, parts)
        return pickle.loads(header["pickled-obj"], buffers=parts)
    return msgpack_decode_default(obj)


def _weigh(obj: Any) -> int:
    """Estimate the bytes to be serialized; -1 if unknown."""
    if isinstance(obj, (Serialized, Pickled)):
        # Its frames are passed on as they are.
        return 0
    size = safe_sizeof(obj, default_size=-1)
    try:
        # The native codec counts with 64 bits, but a program's `sizeof` may return any number.
        return max(-1, min(int(size), sys.maxsize))
    except (OverflowError, ValueError):
        # An infinite number, or none
        return -1


def _scalar_header() -> bytes:
    """Give the header that Dask writes for a serialized number, or text that is not compressed."""
    header, frames = serialize_and_split(0)
    _compress(header, frames, None)
    header["num-sub-frames"] = len(frames)
    return bytes(msgpack.dumps(header, use_bin_type=True))


def _scalar_protocol(options: EncodeOptions) -> int | None:
    """Tell the protocol by which Dask would pickle scalars; None if it would do something else."""
    serializers, _, context, frame_split_size = options
    if (
        not (serializers is None or (serializers is WITH_CUDA and _cuda_leaves_scalars()))
        or (frame_split_size is not None and frame_split_size < _SPLIT_BYTES_MIN)
        or not _SCALARS.isdisjoint(dask_serialize._lookup)
    ):
        return None
    return (context or {}).get("pickle-protocol") or pickle.HIGHEST_PROTOCOL


def _cuda_leaves_scalars() -> bool:
    return _SCALARS.isdisjoint(cuda_serialize._lookup)


def _scalars_written(seconds: float) -> None:
    """Report what Dask measures for each scalar that it writes."""
    context_meter.digest_metric("serialize", seconds, "seconds")
    context_meter.digest_metric("compress", 0.0, "seconds")


def _scalars_read(seconds: float) -> None:
    """Report what Dask measures for each scalar that it reads."""
    context_meter.digest_metric("decompress", 0.0, "seconds")
    context_meter.digest_metric("deserialize", seconds, "seconds")


assert msgpack_opts == {"strict_map_key": False, "raw": False}, "the native codec does this only"

#: Classes of scalars, and what they derive from: Dask has serializers of its own for none of them.
_SCALARS: Final = frozenset({int, float, bool, str, type(None), object})

#: Frames of scalars are not split where longer ones are not; they have less than this.
_SPLIT_BYTES_MIN: Final = 1001


def load_task(payload: bytes) -> Any:
    """Return the task of the payload that its pickle holds, as the native codec wrote it.

    Raises
    ------
    ValueError
        If the payload is malformed.
    ImportError, AttributeError
        If a function is not where its name says.
    """
    return codec.decode_task(payload)


#: The native codec of this process.
codec: Final = _native.Codec(
    default=_default,
    default_or_pickle=_default_or_pickle,
    plain_default=msgpack_encode_default,
    hook=_hook,
    plain_hook=msgpack_decode_default,
    weigh=_weigh,
    to_pickle=ToPickle,
    serialize=Serialize,
    serialized=Serialized,
    scalar_header=(_header := _scalar_header()),
    scalar_header_read=msgpack.loads(_header, use_list=False, **msgpack_opts),
    scalar_protocol=_scalar_protocol,
    scalars_written=_scalars_written,
    scalars_read=_scalars_read,
    dumps=stdlib_pickle.dumps,
    ext_type=msgpack.ExtType,
    timestamp=msgpack.Timestamp,
    format_error=msgpack.FormatError,
    stack_error=msgpack.StackError,
    extra_data=msgpack.ExtraData,
    loads=pickle.loads,
    **task_codec.names(load_task),
)
_encode = codec.encode
_decode = codec.decode

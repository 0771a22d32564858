"""Tags that any hashable object makes, the same in every process.

Two peers agree on a tag without a word, so equal objects must make equal numbers wherever they are
made. Python salts ``hash`` of texts anew in each process, so it is used only where it is not
salted: for what is equal to a number, and for classes of the program, which may define their own.
"""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable
from typing import Any

__all__ = [
    "ANY_MEMORY",
    "DEFAULT_TAG",
    "ON_DEVICE",
    "PAYLOAD_TAG",
    "device_payload_tag",
    "endpoint_tag",
    "forced_tag",
    "hash64bits",
]

#: Tag of messages sent without one. Above all that `endpoint_tag` makes, like those of payloads.
DEFAULT_TAG = 1 << 63
#: With the number of an announcement: the tag of the payload that belongs to it.
PAYLOAD_TAG = 1 << 63

#: In the tag of an empty message: the message itself is on a GPU, and comes under another tag.
ON_DEVICE = 1 << 62
#: Mask of a receive that takes what is on a GPU as well.
ANY_MEMORY = ~ON_DEVICE & ((1 << 64) - 1)

_TAG_MAX = (1 << 64) - 1


def endpoint_tag(tag: object) -> int:
    """Make the tag of an endpoint's messages from any hashable object.

    Parameters
    ----------
    tag : hashable
        Numbers that are equal make equal tags, whatever their types (``1``, ``1.0``, ``True``,
        ``numpy.int64(1)``). So do equal texts, bytes, tuples, frozen sets, members of an
        enumeration, frozen dataclasses, dates, paths, classes and functions, in all processes.
        Objects of other classes count by their ``hash``, which is up to them.

    Returns
    -------
    int
        From 0 to 2**62 - 1.

    Raises
    ------
    TypeError
        If it is not hashable.
    """
    if type(tag) in _REMEMBERED:
        return _remembered_tag(tag)
    return _tag_of(tag)


def forced_tag(tag: object) -> int:
    """Check a tag that is used as it is.

    Parameters
    ----------
    tag : int
        From 0 to 2**64 - 1.

    Returns
    -------
    int
        The same.

    Raises
    ------
    TypeError
        If it is no integer.
    OverflowError
        If it is out of range.
    """
    try:
        number = operator.index(tag)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"a tag that is used as it is must be an int, got {tag!r}") from None
    if not 0 <= number <= _TAG_MAX:
        raise OverflowError(f"a tag that is used as it is must be in 0..2**64 - 1, got {tag!r}")
    return number


def device_payload_tag(tag: int, number: int) -> int:
    """Make the tag under which a message on a GPU comes.

    Parameters
    ----------
    tag : int
        The tag of the message, of `endpoint_tag`, or `DEFAULT_TAG`.
    number : int
        How many such messages of that tag came before it over the connection.

    Returns
    -------
    int
        Above all that announcements number.
    """
    return PAYLOAD_TAG | ON_DEVICE | (_digest(b"%d:%d" % (tag, number)) >> 2)


def hash64bits(*args: object) -> int:
    """Hash what ``repr`` says of objects to 64 bits.

    Parameters
    ----------
    *args : object
        Objects whose ``repr`` does not depend on the process.

    Returns
    -------
    int
        From 0 to 2**64 - 1.
    """
    return _digest(repr(args).encode(errors="surrogatepass"))


def _digest(data: bytes) -> int:
    # Here, because it loads OpenSSL, which programs without named tags need not wait for.
    from hashlib import blake2b

    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _tag_of(tag: object) -> int:
    try:
        hash(tag)
    except TypeError:
        raise TypeError(f"a tag must be hashable, got {tag!r} of {type(tag)!r}") from None
    return _digest(_canonical(tag)) >> 2


_remembered_tag: Callable[[Any], int] = functools.lru_cache(maxsize=4096)(_tag_of)
#: Types of values that are equal only to what makes the same tag, and keep nothing alive.
_REMEMBERED = frozenset({str, int, bytes, float, bool})


def _canonical(tag: Any) -> bytes:
    """Write an object as bytes that equal objects share, the kind first and then the length."""
    # Here, as most programs send without such tags.
    import dataclasses
    import numbers

    if tag is None or tag is Ellipsis or tag is NotImplemented:
        return _part(b"c", repr(tag).encode())
    if isinstance(tag, enum.Enum) and not isinstance(tag, numbers.Number):
        return _part(b"e", _name_of(type(tag)) + b"." + tag.name.encode())
    if isinstance(tag, str):
        return _part(b"s", tag.encode(errors="surrogatepass"))
    if isinstance(tag, bytes | memoryview):
        return _part(b"b", bytes(tag))
    if isinstance(tag, numbers.Number):
        return _number(tag)
    if isinstance(tag, tuple):
        return _part(b"t", b"".join(map(_canonical, tag)))
    if isinstance(tag, frozenset):
        return _part(b"f", b"".join(sorted(map(_canonical, tag))))
    if isinstance(tag, type) or (callable(tag) and hasattr(tag, "__qualname__")):
        return _part(b"n", _name_of(tag))
    if dataclasses.is_dataclass(tag):
        fields = [field for field in dataclasses.fields(tag) if field.compare]
        values = b"".join(_canonical(getattr(tag, field.name)) for field in fields)
        return _part(b"d", _part(b"n", _name_of(type(tag))) + values)
    if type(tag).__module__ in _PATH_MODULES:
        # Pure paths are equal to others. They are reduced, from Python 3.14 on, to the text by
        # which they were written; their module has another name in 3.13.
        kind = "Posix" if "Posix" in type(tag).__name__ else "Windows"
        text = str(tag) if kind == "Posix" else str(tag).lower()
        return _part(b"r", _part(b"n", f"pathlib.{kind}".encode()) + _canonical(text))
    if type(tag).__module__ in _REDUCED_MODULES:
        _, arguments = tag.__reduce_ex__(2)[:2]
        return _part(b"r", _part(b"n", _name_of(type(tag))) + _canonical(tuple(arguments)))
    # Other objects have a hash of their own making. They may be equal to a number and know it, as
    # NumPy's booleans do, so it counts as one.
    return _number(hash(tag))


#: Standard modules whose objects are hashed by a salted text, and reduced to what makes them equal.
_REDUCED_MODULES = frozenset({"datetime", "zoneinfo", "ipaddress"})
_PATH_MODULES = frozenset({"pathlib", "pathlib._local"})


def _number(number: Any) -> bytes:
    try:
        integer = int(number)
        if integer == number:
            return _part(b"i", str(integer).encode())
    except (TypeError, ValueError, OverflowError):
        pass  # complex, not a number, or infinite
    # Python's hash of numbers is that of the value, and never salted; not a number is only itself.
    return _part(b"h", b"nan" if number != number else str(hash(number)).encode())


def _name_of(named: Any) -> bytes:
    return f"{named.__module__}.{named.__qualname__}".encode()


def _part(kind: bytes, data: bytes) -> bytes:
    return kind + str(len(data)).encode() + b":" + data

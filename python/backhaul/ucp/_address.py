"""Addresses: of this host's interfaces, and of contexts, as bytes that can be passed on."""

from __future__ import annotations

import os
import socket
import struct
from typing import Any, NamedTuple

from backhaul.ucp.exceptions import UCXError

__all__ = ["Place", "UCXAddress", "get_address"]

#: First bytes of an address of a context: a name, and the version of what follows.
_MAGIC = b"BHUCP\x01"
#: Then the id of the context, the process that has it, and the size of the text that follows.
_HEAD = struct.Struct(f"<{len(_MAGIC)}s16sQH")
#: Asks for the IPv4 address of an interface; ``SIOCGIFADDR`` of ``linux/sockios.h``.
_SIOCGIFADDR = 0x8915
#: Names of interfaces, the fastest kind first, as UCX-Py looks for them.
_PREFERRED = ("ib", "eth", "en", "docker")


class Place(NamedTuple):
    """Content of an address of a context.

    Attributes
    ----------
    context : bytes
        Id of the context, 16 bytes.
    pid : int
        The process that has it.
    addresses : tuple of str
        Where it listens, as ``host:port``, the best first.
    """

    context: bytes
    pid: int
    addresses: tuple[str, ...]


class UCXAddress(bytes):
    """Where a context of UCX-Py can be reached: bytes that can be sent, pickled, and read again.

    Made by `get_worker_address` and `get_ucx_address_from_buffer`.
    """

    @classmethod
    def from_buffer(cls, buffer: Any) -> UCXAddress:
        """Read an address that was sent as bytes.

        Parameters
        ----------
        buffer : buffer
            The bytes, C-contiguous.

        Raises
        ------
        UCXError
            If they are no such address.
        TypeError
            If it is no buffer.
        """
        view = memoryview(buffer)
        if not view.c_contiguous:
            raise UCXError(f"no address of a worker: {type(buffer)!r} is not C-contiguous")
        address = cls(view)
        address.place()
        return address

    @classmethod
    def of_place(cls, place: Place) -> UCXAddress:
        """Write an address."""
        text = ",".join(place.addresses).encode()
        return cls(_HEAD.pack(_MAGIC, place.context, place.pid, len(text)) + text)

    @property
    def length(self) -> int:
        """Its size, in bytes."""
        return len(self)

    def place(self) -> Place:
        """Tell what it says.

        Raises
        ------
        UCXError
            If it is no such address.
        """
        if len(self) < _HEAD.size:
            raise UCXError(f"no address of a worker: {len(self)} bytes, needs {_HEAD.size} or more")
        magic, context, pid, text_bytes = _HEAD.unpack_from(self)
        text = bytes(self[_HEAD.size :])
        if magic != _MAGIC or len(text) != text_bytes:
            raise UCXError(f"no address of a worker, or of another version: {bytes(self[:80])!r}")
        try:
            addresses = tuple(text.decode("ascii").split(","))
        except UnicodeDecodeError:
            raise UCXError(f"no address of a worker: {text[:80]!r} is no text") from None
        return Place(context, pid, addresses)

    def __reduce__(self) -> tuple[Any, ...]:
        return (UCXAddress.from_buffer, (bytes(self),))

    def __repr__(self) -> str:
        return f"<ucp.UCXAddress of {self.length} bytes>"

    __str__ = __repr__


def get_address(ifname: str | None = None) -> str:
    """Give the IPv4 address of a network interface of this host.

    Parameters
    ----------
    ifname : str, optional
        Name of the interface. By default ``UCXPY_IFNAME``, and without that the first InfiniBand,
        Ethernet or Docker interface that has an address.

    Returns
    -------
    str
        The address, as ``"10.33.225.160"``.

    Raises
    ------
    OSError
        If the named interface does not exist or has no address.
    RuntimeError
        If none was named and none was found.
    """
    ifname = ifname or os.environ.get("UCXPY_IFNAME")
    if ifname is not None:
        return _address_of(ifname)
    names = sorted(name for _, name in socket.if_nameindex())
    for prefix in _PREFERRED:
        for name in names:
            if name.startswith(prefix):
                try:
                    return _address_of(name)
                except OSError:
                    continue
    raise RuntimeError(f"no interface of {names} has an address: name one in UCXPY_IFNAME")


def _address_of(ifname: str) -> str:
    import fcntl

    request = struct.pack("256s", ifname.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror} (interface {ifname!r})") from None
    return socket.inet_ntoa(reply[20:24])

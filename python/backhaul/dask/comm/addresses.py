"""Locations: the part of an address behind ``backhaul://``.

Dask uses worker addresses as keys of dictionaries everywhere, so each peer must have exactly one
spelling. The canonical one is ``ip:port``, with brackets around an IPv6 address in its shortest
form (RFC 5952). Nothing here opens a connection; only `resolve_host` may ask a name server.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
from typing import NamedTuple

from backhaul.dask.compat.names import get_ip, get_ip_interface

__all__ = [
    "Location",
    "contact_host",
    "is_ip",
    "is_wildcard",
    "local_host_for",
    "parse_location",
    "resolve_host",
]

#: Where `get_ip` looks for a route when there is no peer to ask about: well-known public resolvers.
#: No packet is sent.
_ANYWHERE_IPV6 = "2001:4860:4860::8888"

_ALLOWED = "write host:port, [ipv6]:port, or leave the port out where one can be chosen"


class Location(NamedTuple):
    """Where a peer listens."""

    #: IP address without brackets, or host name. Empty for every interface
    host: str
    #: TCP port; 0 lets the system choose one
    port: int

    def __str__(self) -> str:
        return f"{bracketed(self.host)}:{self.port}"


def bracketed(host: str) -> str:
    """Put brackets around an IPv6 address; leave any other host as it is."""
    return f"[{host}]" if ":" in host else host


# Workers ask for the host of a peer each time they choose the source of a fetch.
@functools.lru_cache(maxsize=4096)
def parse_location(location: str, default_port: int | None = None) -> Location:
    """Split a location into host and port.

    Parameters
    ----------
    location : str
        One of ``""``, ``":port"``, ``"host"``, ``"host:port"``, ``"[ipv6]"``, ``"[ipv6]:port"``;
        a scheme in front is dropped.
    default_port : int, optional
        Port to use where none is given. Without it a missing port is an error.

    Returns
    -------
    Location
        An IP address comes back in its canonical form.

    Raises
    ------
    ValueError
        If the location has none of these forms, or its port is missing or not in 0..65535.
    """
    rest = location.rpartition("://")[2]
    if rest.startswith("["):
        host, closed, tail = rest[1:].partition("]")
        if not closed or (tail and not tail.startswith(":")) or not _is_ipv6(host):
            raise ValueError(f"invalid address {location!r}; {_ALLOWED}")
        port_text = tail[1:] if tail else None
    else:
        host, colon, tail = rest.rpartition(":")
        if not colon:
            host, port_text = tail, None
        elif ":" in host:
            raise ValueError(
                f"invalid address {location!r}; maybe: ipv6 needs brackets like [::1]; {_ALLOWED}"
            )
        else:
            port_text = tail
    return Location(_canonical(host), _port(location, port_text, default_port))


def is_ip(host: str) -> bool:
    """Tell whether a host is an IP address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_wildcard(host: str) -> bool:
    """Tell whether listening on a host means listening on every interface."""
    return host in ("", "0.0.0.0", "::")


def resolve_host(host: str) -> str:
    """Find the IP address of a host, IPv4 before IPv6; ``""`` is this machine.

    It is in its canonical form, so resolving it again changes nothing. `OSError` if the name is
    unknown. May wait for a name server.
    """
    if is_ip(host):
        return _canonical(host)
    infos = socket.getaddrinfo(host or "localhost", None, type=socket.SOCK_STREAM)
    infos.sort(key=lambda info: info[0] != socket.AF_INET)
    return str(infos[0][4][0])


def local_host_for(host: str) -> str:
    """Find this machine's IP address on the route to another host."""
    return str(get_ip(resolve_host(host)))


def contact_host(
    bound_host: str, *, default_host: str | None, contact: str | None, interface: str | None
) -> str:
    """Choose the host to advertise for a listener that is bound to an IP address.

    That is the address itself unless it is a wildcard; otherwise the first that is given of
    `contact`, the address of `interface`, both settings of the user, `default_host`, which Dask
    proposes for ``tcp://`` and ``tls://`` only, and this machine's address on its default route.
    `ValueError` if there is no such interface, or it has no IPv4 address.
    """
    if not is_wildcard(bound_host):
        return bound_host
    if contact:
        return contact
    if interface:
        return str(get_ip_interface(interface))
    if default_host:
        return default_host
    return str(get_ip(_ANYWHERE_IPV6) if bound_host == "::" else get_ip())


def _is_ipv6(host: str) -> bool:
    return ":" in host and is_ip(host)


def _canonical(host: str) -> str:
    return str(ipaddress.ip_address(host)) if is_ip(host) else host


def _port(location: str, text: str | None, default_port: int | None) -> int:
    if text is None:
        if default_port is None:
            raise ValueError(f"missing port number in address {location!r}; {_ALLOWED}")
        return default_port
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise ValueError(f"invalid port {text!r} in address {location!r}; 0 to 65535 is allowed")
    return int(text)

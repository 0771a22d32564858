"""Encryption as Dask's security settings ask for it.

Dask gives a comm a finished `ssl.SSLContext`, from which no key can be read back. The certificates
are those of the `distributed.security.Security` that made it: as was noted when it did; or those of
the server whose context it is; or else those of this process, as for the first context of a
process, which is made before Dask loads its comm. Carrying on in clear text where encryption is
asked for would be worse than not starting, so what cannot be found is refused.
"""

from __future__ import annotations

import gc
import ssl
import tempfile
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import distributed
from distributed.security import Security

from backhaul import Tls

__all__ = ["extra_info", "remember", "remembering", "tls_for"]


class _Wanted(NamedTuple):
    """Source of a `Tls`; equal where two settings mean the same. It has keys."""

    ca: str
    cert: str
    key: str | None
    min_version: str
    max_version: str
    ciphers: str | None


_VERSIONS = {ssl.TLSVersion.TLSv1_2: "1.2", ssl.TLSVersion.TLSv1_3: "1.3"}

#: Contexts that are known by whose they are
_wanted: weakref.WeakKeyDictionary[ssl.SSLContext, _Wanted] = weakref.WeakKeyDictionary()
#: Their `Tls`: files are read once for each
_made: weakref.WeakKeyDictionary[ssl.SSLContext, Tls] = weakref.WeakKeyDictionary()


def tls_for(
    address: str, connection_args: Mapping[str, Any], *, server: object = None, asked: bool = False
) -> Tls | None:
    """Find how a connection or a listener is to be encrypted.

    Parameters
    ----------
    address : str
        Address to name in an error, with its scheme.
    connection_args : mapping
        What ``distributed.security.Security`` made for a connection or a listener.
    server : object, optional
        The scheduler, worker or nanny that listens.
    asked : bool, default False
        The scheme asks for encryption, whatever the settings say.

    Returns
    -------
    Tls or None
        None where nothing asks for encryption, and no certificates are named.

    Raises
    ------
    RuntimeError
        If encryption is required and there are no certificates, or their owner cannot be found
        out. Dask does not retry on it.
    backhaul.TlsError
        If they cannot be used; names the file and why.
    """
    context = connection_args.get("ssl_context")
    if context is None:
        if connection_args.get("require_encryption") or asked:
            raise RuntimeError(
                f"refusing unencrypted communication from/to {address!r}: encryption is required, "
                "and the security settings name no certificates; name tls_ca_file and the "
                "certificate of each role, or use Security.temporary()"
            )
        return None
    tls = _made.get(context)
    if tls is None:
        # A server may make a context for each listener.
        wanted = _wanted.get(context) or _of_server(server) or _of_process(address, context)
        tls = _made[context] = Tls(
            wanted.ca,
            wanted.cert,
            wanted.key,
            min_version=wanted.min_version,
            max_version=wanted.max_version,
            ciphers=wanted.ciphers,
        )
    return tls


def remember(server: object) -> None:
    """Note whose the context is with which a scheduler, worker or nanny connects to others."""
    wanted = _of_server(server)
    arguments = getattr(server, "connection_args", None) or {}
    context = arguments.get("ssl_context")
    if wanted is not None and context is not None:
        _wanted[context] = wanted


def remembering(original: Callable[..., ssl.SSLContext | None]) -> Callable[..., Any]:
    """Make a `Security._get_tls_context` that notes the settings of what it makes."""

    def noted(
        self: Security, tls: Mapping[str, Any], purpose: ssl.Purpose
    ) -> ssl.SSLContext | None:
        context = original(self, tls, purpose)
        if context is not None and (wanted := _of_settings(self, tls)) is not None:
            _wanted[context] = wanted
        return context

    return noted


def extra_info(tls: Mapping[str, Any] | None) -> dict[str, Any]:
    """Describe the encryption of `backhaul.Endpoint.info` as Dask's comm over TLS does.

    Returns ``peercert``, as `ssl.SSLSocket.getpeercert` has it, and ``cipher``, as
    `ssl.SSLSocket.cipher`; empty without encryption.
    """
    if tls is None:
        return {}
    return {
        "peercert": _decoded(tls["peer_certificate"]),
        "cipher": (tls["cipher"], tls["version"], tls["cipher_bits"]),
    }


def _of_server(server: object) -> _Wanted | None:
    security = getattr(server, "security", None)
    # Not imported by name: the comms are loaded before these classes.
    if isinstance(server, distributed.Scheduler):
        return _of_role(security, "scheduler")
    if isinstance(server, distributed.Worker | distributed.Nanny):
        return _of_role(security, "worker")
    return None


def _of_role(security: object, role: str) -> _Wanted | None:
    if not isinstance(security, Security):
        return None
    return _of_settings(security, security.get_tls_config_for_role(role))


def _of_settings(security: Security, settings: Mapping[str, Any]) -> _Wanted | None:
    if not settings["ca_file"] or not settings["cert"]:
        return None
    # Attributes that Dask sets by name.
    versions: Any = security
    newest = versions.tls_max_version
    return _Wanted(
        ca=settings["ca_file"],
        cert=settings["cert"],
        key=settings["key"],
        min_version=_VERSIONS[versions.tls_min_version],
        max_version="1.3" if newest is None else _VERSIONS[newest],
        ciphers=settings["ciphers"] or None,
    )


def _of_process(address: str, context: ssl.SSLContext) -> _Wanted:
    """Find the settings of who is no server: a client, or something that connects in its place."""
    found = {
        wanted
        for security in [each for each in gc.get_objects() if isinstance(each, Security)]
        for wanted in [_of_client(security)]
        if wanted is not None and _fits(context, wanted)
    }
    if not found and (configured := _of_client(Security())) is not None:
        found = {configured}
    if len(found) != 1:
        raise RuntimeError(
            f"cannot tell with which certificates to encrypt to {address!r}: this process has "
            f"{len(found)} different security settings; use one, or a process for each"
        )
    return found.pop()


def _fits(context: ssl.SSLContext, wanted: _Wanted) -> bool:
    """Tell whether settings may have made a context, by what a context shows of itself."""
    newest = {
        "1.2": (ssl.TLSVersion.TLSv1_2,),
        "1.3": (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.MAXIMUM_SUPPORTED),
    }
    if context.maximum_version not in newest[wanted.max_version]:
        return False
    if _VERSIONS.get(context.minimum_version) != wanted.min_version:
        return False
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if "\n" in wanted.ca:
            other.load_verify_locations(cadata=wanted.ca)
        else:
            other.load_verify_locations(cafile=wanted.ca)
    except OSError:
        return False
    return other.get_ca_certs(binary_form=True) == context.get_ca_certs(binary_form=True)


def _of_client(security: Security) -> _Wanted | None:
    wanted = (_of_role(security, role) for role in ("client", "worker", "scheduler"))
    return next(filter(None, wanted), None)


def _decoded(der: bytes | None) -> dict[str, Any]:
    """Read a certificate as `ssl.SSLSocket.getpeercert` does, which has no function of its own."""
    decode = getattr(getattr(ssl, "_ssl", None), "_test_decode_cert", None)
    if der is None or decode is None:
        return {}
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(ssl.DER_cert_to_PEM_cert(der))
        file.flush()
        decoded: dict[str, Any] = decode(file.name)
    return decoded

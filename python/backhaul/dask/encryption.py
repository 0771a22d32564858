"""Refusal of configurations that ask for encryption.

There are no TLS lanes yet. Carrying on in clear text where a configuration asks for encryption
would be worse than not starting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["refuse_encryption"]


def refuse_encryption(address: str, connection_args: Mapping[str, Any]) -> None:
    """Raise if the arguments of a connection or listener ask for encryption.

    Parameters
    ----------
    address : str
        Address to name in the error, with its scheme.
    connection_args : mapping
        What ``distributed.security.Security`` made for a connection or a listener.

    Raises
    ------
    RuntimeError
        If encryption is required, or certificates are given. Dask does not retry on it.
    """
    if connection_args.get("require_encryption"):
        asked = "the Dask configuration requires encryption"
    elif connection_args.get("ssl_context") is not None:
        asked = "the security settings name TLS certificates"
    else:
        return
    scheme = address.partition("://")[0]
    raise RuntimeError(
        f"refusing unencrypted communication from/to {address!r}: {asked}, and {scheme}:// cannot "
        "encrypt yet; use tls:// instead (protocol='tls'), or drop the security settings"
    )

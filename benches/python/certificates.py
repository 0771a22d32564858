"""Certificates that a benchmark makes for itself, by what Dask makes its own with."""

from __future__ import annotations

from pathlib import Path

from distributed.security import Security

import backhaul

__all__ = ["make_files", "security_of", "tls_of"]

_CA, _CERT, _KEY = "ca.pem", "peer.pem", "peer.key"


def make_files(folder: Path) -> None:
    """Write an authority, a certificate and its key into a folder. Needs `cryptography`."""
    made = Security.temporary()
    for name, text in {
        _CA: made.tls_ca_file,
        _CERT: made.tls_worker_cert,
        _KEY: made.tls_worker_key,
    }.items():
        (folder / name).write_text(text)


def security_of(folder: Path) -> Security:
    """Use the files of a folder in all roles of Dask."""
    roles = {}
    for role in ("client", "worker", "scheduler"):
        roles[f"tls_{role}_cert"] = str(folder / _CERT)
        roles[f"tls_{role}_key"] = str(folder / _KEY)
    return Security(tls_ca_file=str(folder / _CA), require_encryption=True, **roles)


def tls_of(folder: Path) -> backhaul.Tls:
    """Use the files of a folder without Dask."""
    return backhaul.Tls(*(str(folder / name) for name in (_CA, _CERT, _KEY)))

"""Proofs that the processes of a cluster have to show each other in a run."""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

__all__ = ["KINDS", "environment"]

#: As `backhaul.Endpoint.info` names them under ``trust``
KINDS = ("anyone", "secret", "certificate")

_EC = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"


def environment(kind: str, folder: Path) -> dict[str, str]:
    """Make what a kind of trust needs, and give the variables that tell Dask's programs of it.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    folder : path
        Where files go that only this cluster uses.
    """
    if kind == "secret":
        file = folder / "secret"
        file.touch(mode=0o600)
        file.write_text(secrets.token_hex(32), encoding="ascii")
        return {"DASK_DISTRIBUTED__COMM__BACKHAUL__SECRET_FILE": str(file)}
    if kind == "certificate":
        _sign(folder)
        files = {"CERT": str(folder / "peer.pem"), "KEY": str(folder / "peer.key")}
        of_roles = {
            f"DASK_DISTRIBUTED__COMM__TLS__{role}__{name}": file
            for role in ("SCHEDULER", "WORKER", "CLIENT")
            for name, file in files.items()
        }
        return {
            "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true",
            "DASK_DISTRIBUTED__COMM__TLS__CA_FILE": str(folder / "ca.pem"),
            **of_roles,
        }
    return {}


def _sign(folder: Path) -> None:
    """Make an authority, and a certificate of it for all roles."""
    sign = "x509 -req -days 3 -CAcreateserial -CA ca.pem -CAkey ca.key -in peer.csr -out peer.pem"
    for command in (
        f"req -x509 {_EC} -days 3 -subj /CN=authority -keyout ca.key -out ca.pem",
        f"req {_EC} -subj /CN=peer -keyout peer.key -out peer.csr",
        sign,
    ):
        subprocess.run(
            ["openssl", *command.split()], cwd=folder, check=True, capture_output=True, timeout=60
        )

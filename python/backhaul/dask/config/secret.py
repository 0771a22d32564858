"""The secret that all processes of a cluster share, as the configuration has it.

It is read from ``distributed.comm.backhaul.secret`` or from the file that ``secret-file`` names,
and shown by nothing here: neither by an error nor by a ``repr``.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask

__all__ = ["Secret", "is_configured", "read_secret"]

_KEY = "distributed.comm.backhaul.secret"
_FILE_KEY = "distributed.comm.backhaul.secret-file"

#: More than any secret may have, so that one that is too long is refused by its size.
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret whose ``repr`` does not show it."""

    value: bytes = field(repr=False)


def is_configured() -> bool:
    """Tells whether the configuration names a secret; does not read the file."""
    return any(dask.config.get(key, default=None) is not None for key in (_KEY, _FILE_KEY))


def read_secret() -> Secret | None:
    """Read the secret from the configuration, or the file that it names.

    Returns
    -------
    Secret or None
        None if there is none.

    Raises
    ------
    ValueError
        If both keys are set, the secret is no text, or the file cannot be read, or can be by
        others. Names the key and the file, never the secret.
    """
    text: Any = dask.config.get(_KEY, default=None)
    path: Any = dask.config.get(_FILE_KEY, default=None)
    if text is not None and path is not None:
        raise ValueError(f"{_KEY} and {_FILE_KEY} are both set: leave one of them")
    if path is not None:
        return _from_file(path)
    match text:
        case None:
            return None
        case str():
            return Secret(text.encode())
        case bytes():
            return Secret(text)
        case _:
            # Dask reads a variable of the environment as Python does: digits alone are a number.
            raise ValueError(
                f"{_KEY} must be text, got a value of type {type(text).__name__}: put it into "
                f"quotes, or into a file that {_FILE_KEY} names"
            )


def _from_file(path: Any) -> Secret:
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(f"{_FILE_KEY} must be the path of a file, got {path!r}")
    place = Path(path).expanduser()
    try:
        # The descriptor is checked and read, so both see the same file. Without the flag a pipe
        # would block.
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise ValueError(f"{_FILE_KEY}: cannot read {str(place)!r}: {error}") from error
    try:
        _check(place, os.fstat(descriptor))
        # An editor ends the last line.
        return Secret(os.read(descriptor, _READ_BYTES).rstrip(b"\r\n"))
    except OSError as error:
        raise ValueError(f"{_FILE_KEY}: cannot read {str(place)!r}: {error}") from error
    finally:
        os.close(descriptor)


def _check(place: Path, status: os.stat_result) -> None:
    """Refuse what others than its owner may read or write, or may have written."""
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{_FILE_KEY}: {str(place)!r} is not a file")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise ValueError(
            f"{_FILE_KEY}: others may read or write {str(place)!r}, which has mode {mode:03o}: "
            f"chmod 600 {place}"
        )
    if status.st_uid not in (0, os.geteuid()):
        raise ValueError(
            f"{_FILE_KEY}: {str(place)!r} belongs to user {status.st_uid}, not to {os.geteuid()}"
        )

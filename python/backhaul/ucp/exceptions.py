"""The exceptions of UCX-Py, by the names and bases that programs know."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

__all__ = [
    "UCXBaseException",
    "UCXCanceled",
    "UCXCloseError",
    "UCXConfigError",
    "UCXConnectionReset",
    "UCXError",
    "UCXMsgTruncated",
    "UCXNotConnected",
    "UCXUnreachable",
    "UCXWarning",
    "log_errors",
]


class UCXBaseException(Exception):
    """Anything that the UCX-Py API raises of its own."""


class UCXError(UCXBaseException):
    """An error without a class of its own; also a message longer than its receive."""


class UCXConfigError(UCXError):
    """A ``UCX_*`` option whose value cannot be used."""


class UCXWarning(UserWarning):
    """Something that goes on otherwise than was asked for."""


class UCXCloseError(UCXBaseException):
    """The endpoint was closed before the call."""


class UCXCanceled(UCXBaseException):
    """The endpoint was closed, or its peer was gone, while the operation waited."""


class UCXConnectionReset(UCXBaseException):
    """The peer was gone before the call, without having closed."""


class UCXMsgTruncated(UCXBaseException):
    """A message shorter than its receive."""


class UCXNotConnected(UCXBaseException):
    """There is no connection; kept for programs that catch it."""


class UCXUnreachable(UCXBaseException):
    """The peer cannot be reached."""


class DestinationUnreachable(UCXUnreachable, UCXError):
    """The peer cannot be reached: both classes, as UCX-Py raised one or the other by the call."""


@contextlib.contextmanager
def log_errors(reraise_exception: bool = False) -> Iterator[None]:
    """Log what is raised inside.

    Parameters
    ----------
    reraise_exception : bool, optional
        Raise it too.
    """
    try:
        yield
    except BaseException as error:
        logging.getLogger("ucx").exception(error)
        if reraise_exception:
            raise

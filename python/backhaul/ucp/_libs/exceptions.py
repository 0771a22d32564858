"""``ucp._libs.exceptions``."""

from __future__ import annotations

from backhaul.ucp.exceptions import (
    UCXBaseException,
    UCXCanceled,
    UCXCloseError,
    UCXConfigError,
    UCXConnectionReset,
    UCXError,
    UCXMsgTruncated,
    UCXNotConnected,
    UCXUnreachable,
    UCXWarning,
    log_errors,
)

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

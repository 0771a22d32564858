"""``ucp._libs.ucx_api``: what of it does not need UCX."""

from __future__ import annotations

import enum

from backhaul.ucp._address import UCXAddress
from backhaul.ucp._config import current_options as get_current_options
from backhaul.ucp.core import get_ucx_version

__all__ = ["AllocatorType", "UCXAddress", "get_current_options", "get_ucx_version"]


class AllocatorType(enum.Enum):
    """Kinds of memory that active messages are received into."""

    HOST = 0
    CUDA = 1
    UNSUPPORTED = -1


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"{name!r} is UCX's own interface, and there is no UCX here: use backhaul.ucp, "
        "backhaul.ucp.blocking, or backhaul.Endpoint"
    )

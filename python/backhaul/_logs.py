"""Where the native module's log messages go: the logger ``backhaul``."""

from __future__ import annotations

import logging

__all__ = ["log"]

log = logging.getLogger("backhaul").log

"""``ucp._libs.arr``."""

from __future__ import annotations

from backhaul.ucp._arr import Array, asarray

__all__ = ["Array", "asarray"]

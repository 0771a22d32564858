"""Examination of this machine for Backhaul, with advice: ``backhaul doctor``.

Everything is tried, in a process of its own where it may harm: `examine` returns a `Finding` for
each thing that Backhaul can use.
"""

from __future__ import annotations

from backhaul.doctor.findings import Finding, State
from backhaul.doctor.run import examine

__all__ = ["Finding", "State", "examine"]

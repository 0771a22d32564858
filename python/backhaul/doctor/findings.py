"""Results of an examination."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Finding", "State"]


class State(enum.Enum):
    """How something is; only the last is an error."""

    WORKS = "works"
    #: It is there, but slower, or for less, than it could be
    LIMITED = "limited"
    #: It is not there; nothing else needs it
    ABSENT = "absent"
    #: It should work, and does not
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """One thing that Backhaul can use, and how it is here.

    Attributes
    ----------
    topic : str
        Topic of the finding: ``lanes``, ``peers``, ``limits``, ``gpu``, ``rdma``, ``ucx`` or
        ``dask``.
    subject : str
        Thing that was examined.
    state : State
        How it is.
    detail : str
        Result of the examination.
    advice : str
        Advice; empty if there is nothing to do.
    """

    topic: str
    subject: str
    state: State
    detail: str
    advice: str = ""

"""States with the states that may follow each: an object checks them when it enters a state."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

__all__ = ["State", "set_transitions"]


class State(Enum):
    """A state of a state machine.

    Attributes
    ----------
    following : tuple of State
        The states that may follow; `set_transitions` sets them.
    """

    following: tuple[State, ...]


_State = TypeVar("_State", bound=State)


def set_transitions(table: Mapping[_State, tuple[_State, ...]]) -> None:
    """Set the states that may follow each state of a table."""
    for state, following in table.items():
        state.following = following

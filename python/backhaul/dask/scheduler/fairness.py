"""How many messages with tasks a scheduler handles in one turn of its event loop.

A client may send thousands of them in one batch. So few are handled in one turn, and the next one
waits for the next turn: others have theirs meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final

__all__ = ["GRAPHS_IN_TURN_MAX", "turn"]

#: Most messages in one turn of the event loop: some 5 ms, with what follows of them
GRAPHS_IN_TURN_MAX: Final = 8


class _Turn(threading.local):
    """How many messages were handled in this turn of the event loop of this thread."""

    graphs = 0

    def has_room(self) -> bool:
        """Count one more message, and tell whether it may be handled."""
        if not self.graphs:
            asyncio.get_running_loop().call_soon(self.over)
        self.graphs += 1
        return self.graphs <= GRAPHS_IN_TURN_MAX

    def over(self) -> None:
        """Begin to count anew."""
        self.graphs = 0


#: Messages that this thread has handled in this turn, for all clients
turn: Final = _Turn()

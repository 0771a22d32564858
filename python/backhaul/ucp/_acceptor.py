"""Acceptor of a listener's peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from backhaul import _native
from backhaul._native import Request
from backhaul.errors import AddressError, BackhaulError, ListenError
from backhaul.ucp._connection import Connection, Greeting
from backhaul.ucp._pump import Pump, Source
from backhaul.ucp.exceptions import DestinationUnreachable, UCXError

if TYPE_CHECKING:
    from backhaul.ucp._context import ApplicationContext

__all__ = ["Acceptor"]


class Acceptor(Source):
    """A listener of the fabric, and what its peers say first.

    Parameters
    ----------
    context : ApplicationContext
        Whose it is.
    port : int
        Where to listen, on all IPv4 interfaces; 0 for any free port.
    on_greeting : callable
        Called with a `Connection` and its `Greeting`, on whichever thread sees it first.

    Raises
    ------
    UCXError
        If the port is taken or out of range.
    """

    def __init__(
        self,
        context: ApplicationContext,
        port: int,
        on_greeting: Callable[[Connection, Greeting], None],
    ) -> None:
        super().__init__()
        self.context = context
        self._on_greeting = on_greeting
        try:
            self.native: _native.Listener = context.native.listen(f"0.0.0.0:{port}")
        except (AddressError, ListenError) as error:
            raise UCXError(f"cannot listen on port {port!r}: {error}") from error
        self.ip, _, text = self.native.address.rpartition(":")
        self.port = int(text)
        #: The loop that looks after peers from their connection to their greeting.
        self.pump: Pump | None = None

    def is_wanted(self) -> bool:
        """Peers are always wanted."""
        return True

    def post(self) -> Request[_native.Endpoint]:
        """Ask for the next peer."""
        return self.native.accept()

    def handle(self, result: _native.Endpoint) -> None:
        """Wait for the greeting of a peer that has connected."""
        try:
            self.context.check_lane(result)
        except DestinationUnreachable:
            return
        connection = Connection(self.context, result, on_greeting=self._on_greeting)
        self.context.add(connection)
        if self.pump is not None:
            self.pump.watch_soon(connection)

    def handle_end(self, error: BackhaulError) -> None:
        """Do nothing: it was closed."""
        self.context.discard(self)

    def close(self) -> None:
        """Stop listening."""
        self.native.close()
        self.context.discard(self)

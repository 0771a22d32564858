"""The control connection between a benchmark and the processes it measures.

One JSON object per line over a Unix socket, so that it works with any launcher of the processes
(``mpiexec`` too) and never shares a path with what is measured. Standard library only: it runs in
the interpreters of the peers.
"""

from __future__ import annotations

import json
import socket
from typing import Any

__all__ = ["Control", "ControlClosed"]


class ControlClosed(ConnectionError):
    """The other side ended the control connection."""


class Control:
    """One side of a control connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        #: Bytes received after the last message that was handed out
        self._received = b""

    def fileno(self) -> int:
        """Give the descriptor to wait for, unless :meth:`has_message`.

        Returns
        -------
        int
            The socket's descriptor.
        """
        return self._connection.fileno()

    def has_message(self) -> bool:
        """Say whether :meth:`receive` would return at once, from what is received already.

        Returns
        -------
        bool
            Whether a whole message waits.
        """
        return b"\n" in self._received

    @classmethod
    def connect(cls, path: str) -> Control:
        """Connect to the benchmark that listens at a path.

        Parameters
        ----------
        path : str
            Path of its Unix socket.

        Returns
        -------
        Control
            The connection.

        Raises
        ------
        OSError
            If no process listens there.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        return cls(connection)

    def send(self, **message: Any) -> None:
        """Send one message.

        Parameters
        ----------
        **message : Any
            What JSON can hold.

        Raises
        ------
        OSError
            If the other side is gone.
        """
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """Wait for one message.

        Returns
        -------
        dict of str to Any
            The message.

        Raises
        ------
        ControlClosed
            If the other side is gone.
        TimeoutError
            If a timeout is set on the connection and passed.
        """
        while not self.has_message():
            received = self._connection.recv(65536)
            if not received:
                raise ControlClosed("the control connection ended")
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

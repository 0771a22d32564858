"""One of two programs that send to each other through plain sockets, to see what a link carries.

Arguments: the own address, the other one, seconds. The bytes that arrived in a second are printed.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from typing import Final

__all__: list[str] = []

_PORT: Final = 5201
_PIECE_BYTES: Final = 1 << 20
_DEADLINE_S: Final = 30.0


def _main() -> None:
    here, there, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    with socket.create_server((here, _PORT)) as server:
        server.settimeout(_DEADLINE_S)
        sender = threading.Thread(target=_send, args=(there, seconds))
        sender.start()
        connection, _ = server.accept()
        with connection:
            piece = memoryview(bytearray(_PIECE_BYTES))
            began, found = time.perf_counter(), 0
            while nbytes := connection.recv_into(piece):
                found += nbytes
            sys.stdout.write(f"{found / (time.perf_counter() - began)}\n")
        sender.join()


def _send(address: str, seconds: float) -> None:
    with _connected(address) as connection:
        piece, end_s = bytes(_PIECE_BYTES), time.perf_counter() + seconds
        while time.perf_counter() < end_s:
            connection.sendall(piece)


def _connected(address: str) -> socket.socket:
    end_s = time.perf_counter() + _DEADLINE_S
    while True:
        try:
            return socket.create_connection((address, _PORT), _DEADLINE_S)
        except ConnectionRefusedError:
            if time.perf_counter() > end_s:
                raise
            time.sleep(0.01)


if __name__ == "__main__":
    _main()

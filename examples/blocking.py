"""Without asyncio: each operation returns a request, and `wait` waits for it on any thread.

python examples/blocking.py
"""

from __future__ import annotations

import threading

import numpy as np

import backhaul

VALUES = 1_000_000


def serve(listener: backhaul.Listener) -> None:
    """Double what comes, in place, and send it back."""
    with listener.accept().wait() as endpoint:
        array = np.empty(VALUES)
        endpoint.recv(array).wait()
        array *= 2
        endpoint.send(array).wait()


def main() -> None:
    with backhaul.listen("127.0.0.1:0") as listener:
        server = threading.Thread(target=serve, args=[listener])
        server.start()
        with backhaul.connect(listener.address).wait(10) as endpoint:
            doubled = np.empty(VALUES)
            # The receive first: a long send waits until its receiver takes it, so who sends and
            # then receives on both sides waits for ever.
            receiving = endpoint.recv(doubled)
            endpoint.send(np.arange(VALUES, dtype=float)).wait()

            # A time that runs out ends the waiting, not the request: it can be waited for again.
            try:
                receiving.wait(1e-9)
            except backhaul.TimedOut:
                receiving.wait()
            assert doubled[-1] == 2 * (VALUES - 1)
        server.join()
    print("doubled on another thread:", doubled[:3])


if __name__ == "__main__":
    main()

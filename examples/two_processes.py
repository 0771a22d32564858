"""Two processes of one host: an array is lent through shared memory, without a copy.

    python examples/two_processes.py

An array that is born in an *arena* lies in memory that peers of this host can map. Sent with
``shared=True``, it is lent: the receiver reads the same pages. So no code may write to it any more.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np

import backhaul
from backhaul import numpy_memory

VALUES = 4_000_000


def receive(address: str) -> None:
    """Be the other process: receive an array, and say what is in it."""
    with backhaul.connect(address).wait(30) as endpoint:
        (frame,) = endpoint.recv_frames().wait(30)
        total = float(np.frombuffer(frame).sum())
        print(f"  receiver: lane {endpoint.lane}, because: {endpoint.info()['reason']}")
        endpoint.send_obj(total).wait(30)


def main() -> None:
    arena = backhaul.Arena()
    context = backhaul.Context(arena=arena)
    with numpy_memory.arrays_in(arena):
        array = np.ones(VALUES)

    with backhaul.listen("127.0.0.1:0", context=context) as listener:
        child = subprocess.Popen([sys.executable, __file__, listener.address])
        with listener.accept().wait(30) as endpoint:
            endpoint.send_frames([array], shared=True).wait(30)
            assert endpoint.recv_obj().wait(30) == VALUES
            statistics = arena.statistics()
            print(f"  sender: {statistics['peak_bytes'] / 1e6:.0f} MB of the arena were in use")
        assert child.wait(30) == 0


if __name__ == "__main__":
    if sys.argv[1:]:
        receive(sys.argv[1])
    else:
        main()

"""The other process of `backhaul.doctor.fabric.examine_peers`."""

from __future__ import annotations

import sys

from backhaul import Context

_TIMEOUT_S = 20.0


def main() -> None:
    """Connect to the first argument, and exchange a message."""
    with Context() as context:
        endpoint = context.connect(sys.argv[1]).wait(_TIMEOUT_S)
        endpoint.send(b"backhaul").wait(_TIMEOUT_S)
        answer = bytearray(8)
        endpoint.recv(answer).wait(_TIMEOUT_S)
        endpoint.close().wait(_TIMEOUT_S)


if __name__ == "__main__":
    main()

"""A process that answers the requests of ``tls``: ``SCHEME FOLDER BYTES``."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import numpy as np
from distributed.comm import CommClosedError, listen
from distributed.protocol import to_serialize

from benches.python.certificates import security_of


async def main() -> None:
    """Listen, say where, and answer until told otherwise."""
    scheme, folder, size = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    data = np.random.default_rng(1).integers(0, 256, size, dtype=np.uint8)

    async def answer(comm: Any) -> None:
        try:
            while True:
                await comm.read()
                await comm.write({"data": to_serialize(data)})
        except CommClosedError:
            return

    # Held: our comms look the certificates up there.
    security = security_of(folder)
    arguments = security.get_listen_args("worker") if "tls" in scheme else {}
    async with listen(f"{scheme}://127.0.0.1:0", answer, **arguments) as listener:
        sys.stdout.write(f"{listener.contact_address}\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main())

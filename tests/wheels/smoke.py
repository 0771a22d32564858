"""Program that has to work right after an installation: messages between processes, and Dask.

A program without anything of this folder: it runs in an environment that has the wheel alone.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import sysconfig

LANES = ("shm", "tcp")
DEADLINE_S = 300.0
MESSAGE = bytes(range(256)) * 4096

ANSWER = """
import sys
import backhaul

endpoint = backhaul.connect(sys.argv[1], lanes=[sys.argv[2]]).wait(300)
for _ in range(100):
    endpoint.send_frames(endpoint.recv_frames().wait(300)).wait(300)
endpoint.close().wait(300)
"""


def ping_pong(lane: str) -> None:
    """Send messages to another process and back."""
    import backhaul

    with backhaul.Context(lanes=[lane]) as context, context.listen("127.0.0.1:0") as listener:
        accepting = listener.accept()
        command = [sys.executable, "-I", "-c", ANSWER, listener.address, lane]
        with subprocess.Popen(command) as answering:
            endpoint = accepting.wait(DEADLINE_S)
            if endpoint.lane != lane:
                raise AssertionError(f"lane {endpoint.lane} instead of {lane}")
            for number in range(100):
                message = [b"%d" % number, MESSAGE]
                endpoint.send_frames(message).wait(DEADLINE_S)
                if [bytes(frame) for frame in endpoint.recv_frames().wait(DEADLINE_S)] != message:
                    raise AssertionError(f"message {number} came back as another one")
            if answering.wait(DEADLINE_S) != 0:
                raise AssertionError(f"the other side ended with {answering.returncode}")


def dask_job() -> None:
    """Run a job on two workers, and see that they speak Backhaul and every acceleration is on."""
    import dask.array as da
    from distributed import Client, LocalCluster

    import backhaul.dask
    from backhaul.dask.compat import activation

    warned: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("backhaul").addHandler(handler)
    with (
        LocalCluster(
            protocol="backhaul", n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        ones = da.ones((2000, 2000), chunks=(500, 500))
        total = (ones + ones.T).sum().compute()
        lanes = backhaul.dask.lanes(client)
    if total != 2 * 2000 * 2000:
        raise AssertionError(f"the sum is {total}")
    if not activation.installed() or warned:
        raise AssertionError(f"accelerations: {len(activation.installed())}; warnings: {warned}")
    print("lanes of the job:", lanes)


def main() -> None:
    """Run all of it."""
    for lane in LANES:
        ping_pong(lane)
    dask_job()
    if sysconfig.get_config_var("Py_GIL_DISABLED") and sys._is_gil_enabled():  # type: ignore[attr-defined]
        raise AssertionError("something that was imported has switched the GIL on")
    print(f"Python {sys.version.split()[0]}: messages over {', '.join(LANES)}, and a Dask job")


if __name__ == "__main__":
    main()

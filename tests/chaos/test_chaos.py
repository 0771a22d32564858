"""A short part of the chaos runs, and what they rest on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.chaos.cluster import WORKERS
from tests.chaos.network import Network, why_no_network
from tests.chaos.run import JOBS_PER_CLUSTER, Bed
from tests.chaos.schedule import JOBS, LANES, Fault, Link, Plan, draw

needs_network = pytest.mark.skipif(why_no_network() is not None, reason=str(why_no_network()))

WHOLE = Link(delay_s=0.0, loss=0.0, bytes_per_s=None)


@pytest.fixture
def network() -> Iterator[Network]:
    """Make two hosts, and remove them in the end."""
    network = Network({"here": "10.79.1.1", "there": "10.79.1.2"}, seed=1)
    try:
        network.make()
        yield network
    finally:
        network.close()


#: Answers each datagram, or asks again and again, and prints how many of 50 came back in time and
#: the shortest time of one.
ECHO = """
import socket, sys, time
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if sys.argv[1] == "answer":
    own.bind(("10.79.1.2", 5000))
    print("ready", flush=True)
    while True:
        data, peer = own.recvfrom(100)
        own.sendto(data, peer)
own.setblocking(False)
came, sent_at = [], {}
for number in range(50):
    # Before, not after: this process may have to wait for its turn between the two.
    sent_at[number] = time.monotonic()
    own.sendto(str(number).encode(), ("10.79.1.2", 5000))
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end and len(came) < 50:
    try:
        number = int(own.recv(100))
        came.append(time.monotonic() - sent_at[number])
    except BlockingIOError:
        time.sleep(0.001)
print(len(came), min(came, default=0))
"""


@needs_network
def test_links_delay_lose_and_break(network: Network) -> None:
    answering = subprocess.Popen(
        [*network.within("there"), sys.executable, "-c", ECHO, "answer"], stdout=subprocess.PIPE
    )

    def ask(seconds: float) -> tuple[int, float]:
        command = [*network.within("here"), sys.executable, "-c", ECHO, str(seconds)]
        came, shortest_s = subprocess.check_output(command, timeout=300, text=True).split()
        return int(came), float(shortest_s)

    try:
        assert answering.stdout is not None
        assert answering.stdout.readline() == b"ready\n"
        assert ask(30)[0] == 50
        network.set_link("here", "there", delay_s=0.05)
        came, shortest_s = ask(30)
        assert came == 50
        assert shortest_s >= 0.1
        network.set_link("here", "there", loss=0.5)
        assert 0 < ask(1)[0] < 50
        network.set_link("here", "there", is_cut=True)
        assert ask(0.5)[0] == 0
        network.set_link("here", "there")
        assert ask(30)[0] == 50
    finally:
        answering.kill()
        answering.wait(30)


def test_a_seed_says_all_that_happens() -> None:
    def draw_all() -> list[Plan]:
        return [draw(seed, workers=3, jobs_per_cluster=JOBS_PER_CLUSTER) for seed in range(200)]

    plans = draw_all()
    assert plans == draw_all()
    assert {(plan.job, plan.lane) for plan in plans} == {
        (job, lane) for job in JOBS for lane in LANES
    }
    kinds = {fault.kind for plan in plans for fault in plan.faults}
    assert kinds == {"kill", "stop", "stop-scheduler", "cut"}


@needs_network
def test_jobs_are_right_though_workers_die_and_a_host_is_cut_off() -> None:
    """Two runs of the many that ``make chaos`` does, on an encrypted cluster of their own."""
    long = 10.0
    plans = [
        Plan(1, "transpose", "shm", WHOLE, (Fault(0.3, "kill", 1, 0), Fault(0.6, "stop", 0, 1.0))),
        Plan(2, "map", "shm", WHOLE, (Fault(0.3, "cut", 0, long), Fault(0.5, "kill", 0, 0))),
    ]
    assert max(fault.worker for plan in plans for fault in plan.faults) < len(WORKERS)
    with Bed(trust="certificate") as bed:
        for plan in plans:
            outcome, line = bed.run(plan)
            assert outcome == "right", line

"""The Python of guides runs with what it leaves out around it; what does not run says why.

Whole programs are in ``test_pages.py``. A fragment here has a cluster, certificates or a peer made
before it, addresses of hosts that are not there replaced, and something asserted after it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.documents import test_pages
from tests.documents.written import ROOT

#: Of a machine that is busy with other things
WATCHDOG_S = 300

pytestmark = pytest.mark.timeout(WATCHDOG_S + 30)

#: Not from a file, which processes of workers would import, too
RUNNER = "import sys; exec(compile(sys.stdin.read(), 'fragment', 'exec'), globals())"

CLUSTER = """
import numpy
from distributed import Client, LocalCluster

cluster = LocalCluster(
    protocol="backhaul", n_workers=2, threads_per_worker=1, dashboard_address=None
)
client = Client(cluster)
a, b = client.scheduler_info()["workers"]
made = client.submit(numpy.ones, 1 << 20, workers=[a], pure=False)
assert client.submit(numpy.sum, made, workers=[b]).result() == 1 << 20
"""

CERTIFICATES = """
from pathlib import Path
from distributed.security import Security
import backhaul

made = Security.temporary()
Path("ca.pem").write_text(made.tls_ca_file)
Path("peer.pem").write_text(made.tls_worker_cert)
Path("peer.key").write_text(made.tls_worker_key)
"""

PEER = """
import threading
import numpy as np
from backhaul.ucp import blocking

array, answer = np.arange(10.0), np.empty(10)

def start(function, *arguments):
    threading.Thread(target=function, args=arguments).start()

def echo(listener):
    with listener.accept() as ep:
        there = np.empty(10)
        ep.recv(there)
        ep.send(there)

def send(port):
    with blocking.create_endpoint("127.0.0.1", port) as ep:
        ep.send(np.arange(10.0))

echoing = blocking.create_listener(0)
start(echo, echoing)
"""

#: A call there answers False where there is no such function, before Python 3.13
OLD_PYTHON = """
import builtins, sys

if not hasattr(sys, "_is_gil_enabled"):
    sys._is_gil_enabled = builtins.bool
"""


@dataclass(frozen=True)
class Fragment:
    """Blocks of a page that run as one program."""

    page: str
    #: A text that each of its blocks has in it
    marks: tuple[str, ...]
    before: str = ""
    after: str = ""
    #: Texts of the blocks that stand for others
    instead: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()


FRAGMENTS = [
    Fragment("transfers.md", ("frame = transfers(client)",), CLUSTER, "assert len(links) >= 1"),
    Fragment(
        "several-hosts.md",
        ('Client("tcp://scheduler:8786")', "def rates"),
        CLUSTER,
        "found = client.run(rates)\nassert any(found.values()), found",
        instead=(('"tcp://scheduler:8786"', "cluster"),),
    ),
    Fragment(
        "users/dask-cluster.md",
        ('Client("tcp://scheduler:8786")', "import lanes, links, transfers"),
        CLUSTER,
        "assert set(lanes(client).values()) == {'shm'}",
        instead=(('"tcp://scheduler:8786"', "cluster"),),
    ),
    Fragment("guides/which-lane.md", ("import lanes, transfers",), CLUSTER),
    Fragment("guides/memory.md", ("import memory",), CLUSTER, "assert found.counted_bytes > 0"),
    Fragment(
        "guides/encryption.md",
        ("Security.temporary()",),
        after="    assert cluster.scheduler_address.startswith('backhaul://')",
        needs=("cryptography",),
    ),
    Fragment(
        "guides/encryption.md",
        ("backhaul.Tls(",),
        CERTIFICATES,
        "assert endpoint.info()['tls']",
        instead=(('":9000"', '"127.0.0.1:0"'), ('"host:9000"', "listener.address")),
        needs=("cryptography",),
    ),
    Fragment("launching.md", ('policy="per-numa"',)),
    Fragment("guides/from-ucx-py.md", ("# was: import ucp", "async def echo")),
    Fragment(
        "guides/from-ucx-py.md",
        ("blocking.create_endpoint",),
        PEER,
        "assert (answer == array).all()",
        instead=(
            ('"10.0.0.1", 13337, timeout=5', '"127.0.0.1", echoing.port, timeout=200'),
            ("timeout=1)", "timeout=200)"),
            (
                "create_listener(13337) as listener:\n",
                "create_listener(0) as listener:\n    start(send, listener.port)\n",
            ),
        ),
    ),
    Fragment(
        "guides/from-ucx-py.md",
        ("claim_ucx()",),
        after="    assert client.submit(sum, [1, 2]).result() == 3",
    ),
    Fragment(
        "guides/free-threaded.md",
        ("sys._is_gil_enabled()", "client.run(gc.collect)"),
        OLD_PYTHON + CLUSTER,
    ),
    Fragment(
        "guides/gpu.md",
        ("register_device_array(",),
        "class MyArray:\n    pass\n",
    ),
    Fragment(
        "design/launch-plans.md",
        ('machine.plan("per-gpu"',),
        "import backhaul.topology\n"
        f"recorded = {str(ROOT / 'crates/topology/tests/fixtures/dgx-1.nvidia-smi.txt')!r}\n"
        "backhaul.topology.discover = lambda: backhaul.topology.load(recorded)\n",
        "assert len(plan.workers) == 8",
    ),
]

#: Blocks that are not run, by page and a text in them, and why
LEFT_OUT = {
    ("launching.md", "CUDACluster("): "needs GPUs",
    ("launching.md", "SLURMCluster("): "needs dask-jobqueue and Slurm",
    ("guides/slurm.md", "SLURMCluster("): "needs dask-jobqueue and Slurm",
    ("guides/gpu.md", "# the other"): "two programs beside one another, which need a GPU",
    ("users/gpu-arrays.md", "cupy.arange"): "two programs, which need a GPU",
    ("benchmarks/scheduler.md", "range(10**6)"): "takes a minute; its figures are beside it",
}

#: Pages that have a test of their own
ELSEWHERE = {
    "guides/gpus-as-resources.md": "tests/dask/test_guide_resources.py",
    "guides/switching.md": "tests/dask/test_switching.py",
}


def blocks_of(page: str) -> list[str]:
    """Give the Python of a page, of consoles what is typed."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(python|pycon)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [block if kind == "python" else typed(block) for kind, block in found]


def typed(block: str) -> str:
    """Leave out what a console answers."""
    lines = [line[4:] for line in block.splitlines() if line.startswith((">>> ", "... "))]
    return "\n".join(lines) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "fragment", FRAGMENTS, ids=lambda each: f"{each.page} {each.marks[0][:20]}"
)
def test_a_fragment_runs_with_what_it_leaves_out(fragment: Fragment, tmp_path: Path) -> None:
    for name in ("pandas", *fragment.needs):
        pytest.importorskip(name)
    blocks = [
        block for block in blocks_of(fragment.page) if any(mark in block for mark in fragment.marks)
    ]
    assert len(blocks) == len(fragment.marks)
    program = "\n".join(blocks)
    for given, other in fragment.instead:
        assert given in program
        program = program.replace(given, other)
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input="\n".join((fragment.before, program, fragment.after)),
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_block_of_python_is_run_or_left_out_with_a_reason() -> None:
    marks = [(each.page, mark) for each in FRAGMENTS for mark in each.marks]
    unknown = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = str(path.relative_to(ROOT / "docs"))
        if page in ELSEWHERE:
            assert (ROOT / ELSEWHERE[page]).exists()
            continue
        whole = test_pages.program_of(page) if page in test_pages.PAGES else ""
        for block in blocks_of(page):
            told = [mark for of, mark in (*marks, *LEFT_OUT) if of == page and mark in block]
            if not told and block not in whole:
                unknown.append((page, block))
    assert not unknown

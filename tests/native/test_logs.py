"""Log lines of Backhaul look like those of Dask, and none comes twice."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

LISTENER = """
import logging, socket, sys, threading
{configuration}
import backhaul
listener = backhaul.Context(secret=b"x" * 32).listen("127.0.0.1:0")
host, _, port = listener.address.rpartition(":")
with socket.create_connection((host, int(port))) as stranger:
    stranger.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n" * 100)
    while stranger.recv(1 << 16):
        pass
while not listener.statistics()["rejected"]:
    threading.Event().wait(0.01)
logging.getLogger("backhaul.dask.comm.backend").warning("of Python")
"""

DASK = "import distributed"
STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"


def lines_of(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    return done.stderr.splitlines()


@pytest.mark.parametrize("configuration", ["", DASK])
def test_lines_have_time_name_and_level(configuration: str) -> None:
    rejected, of_python = lines_of(LISTENER.format(configuration=configuration))
    assert re.fullmatch(
        rf"{STAMP} - backhaul - WARNING - a connection was rejected peer=\S+ reason=.*", rejected
    )
    # Nothing was left out before the first line.
    assert "left_out" not in rejected
    assert re.fullmatch(
        rf"{STAMP} - backhaul\.dask\.comm\.backend - WARNING - of Python", of_python
    )


@pytest.mark.parametrize(
    "configuration",
    [
        "logging.basicConfig(format='mine %(message)s')",
        "logging.getLogger('backhaul').addHandler(handler := logging.StreamHandler());"
        "handler.setFormatter(logging.Formatter('mine %(message)s'))",
        # As a file of Dask's configuration does
        "import dask; dask.config.set({'logging': {'backhaul': 'warning'}}).__enter__();"
        "dask.config.set({'distributed.admin.log-format': 'mine %(message)s'}).__enter__();"
        "import distributed",
    ],
    ids=["root", "own handler", "Dask"],
)
def test_a_program_that_configures_logging_has_each_line_once(configuration: str) -> None:
    lines = lines_of(LISTENER.format(configuration=configuration))
    assert len(lines) == 2
    assert all(line.startswith("mine ") for line in lines)


def test_levels_are_those_of_the_program() -> None:
    program = "import backhaul, logging; logging.getLogger('backhaul').{}"
    assert lines_of(program.format("info('quiet')")) == []
    assert lines_of(program.format("setLevel('ERROR')") + "; backhaul._logs.log(30, 'no')") == []

"""Each bad input gets the outcome that ``outcomes.md`` has: a test compares them.

``BACKHAUL_WRITE_DOCS=1 python -m pytest tests/bad_inputs`` writes it anew.
"""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from backhaul import Context
from tests.bad_inputs import in_dask, in_programs, on_the_wire
from tests.bad_inputs.by_hand import Peer
from tests.bad_inputs.cases import Case, Place, outcome

DOCUMENT = Path(__file__).with_name("outcomes.md")

#: Heading, and what is below it: a sentence, and cases
TABLES: list[tuple[str, str, list[Case]]] = [
    (
        "Addresses",
        "In Python, with `backhaul.listen` and `backhaul.connect`.",
        in_programs.ADDRESSES,
    ),
    ("Options", "Of a `Context` and an `Arena`.", in_programs.OPTIONS),
    ("Operations", "Of endpoints, listeners and requests.", in_programs.OPERATIONS),
    (
        "Before a peer is one",
        "Bytes that a listener gets from an unknown process. The listener ends the connection, and "
        "only its own side logs the reason. Then the listener takes the next peer.",
        on_the_wire.HANDSHAKES,
    ),
    (
        "From a peer",
        "Bytes of a peer after the handshake, on the tcp lane, and the outcome of the next "
        "operation of the other side's program. The connection has ended.",
        on_the_wire.FRAMES,
    ),
    (
        "Configuration of Dask",
        "Keys below `distributed.comm.backhaul`.",
        in_dask.CONFIGURATION,
    ),
    ("A secret in Dask", "Its keys, and the file that one of them names.", in_dask.SECRETS),
    ("Comms of Dask", "With `distributed.comm`.", in_dask.COMMS),
    ("Commands", "Commands of a shell: the status, and the last line.", in_dask.COMMANDS),
]

HEAD = """# Bad inputs

The outcomes of {count} wrong inputs. The table is made by the test that gives them
(`tests/bad_inputs`), which fails where it is not true. `PORT`, `DIR` and `TIME` stand for what
differs from run to run. Each input gets an error of a type that says whose fault it is, with the
offending value; nothing hangs, and no secret is shown.
"""


def test_what_bad_inputs_get_is_what_the_document_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    place = Place(tmp_path)
    count = sum(len(cases) for _, _, cases in TABLES)
    assert count >= 80
    parts = [HEAD.format(count=count)]
    for heading, sentence, cases in TABLES:
        rows = [f"| {case.what} | {outcome(case, place)} |" for case in cases]
        told = textwrap.fill(sentence, 100, break_on_hyphens=False)
        head = [f"## {heading}", "", *told.splitlines(), "", "| given | got |", "|---|---|"]
        parts.append("\n".join([*head, *rows, ""]))
    text = "\n".join(parts)
    assert "Panic" not in text
    assert "a secret of this cluster" not in text
    if os.environ.get("BACKHAUL_WRITE_DOCS"):
        DOCUMENT.write_text(text, encoding="utf-8")
    said = DOCUMENT.read_text(encoding="utf-8").splitlines()
    assert text.splitlines() == said


def test_a_peer_that_is_written_from_the_document_is_let_in_by_its_secret() -> None:
    secret = b"a secret of this cluster"
    with (
        Context(secret=secret) as context,
        context.listen("127.0.0.1:0") as listener,
        Peer(listener.address) as peer,
    ):
        peer.shake_hands_with(secret)
        endpoint = listener.accept().wait(60)
        assert endpoint.info()["trust"] == "secret"
        assert endpoint.info()["lane"] == "tcp"

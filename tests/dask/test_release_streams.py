"""Compares the cores with a release of Dask that differs from them, and with one that is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dask.release_streams import STREAMS, main


def test_a_release_whose_worker_differs_is_distinguished_from_the_core(
    copied_dask: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copied_dask / "distributed" / "worker_state_machine.py"
    before, after = "        ts.nbytes = None\n", "        ts.nbytes = 0\n"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    assert main([str(copied_dask), "--seeds", "5"]) == 1
    said = capsys.readouterr().out
    for streams in STREAMS[:3]:
        assert f"{streams.name}: agrees on 5 streams" in said
    assert "worker core: DIFFERS" in said
    assert "/nbytes: upstream has 0, ours None" in said


def test_a_release_that_cannot_be_imported_is_said(
    copied_dask: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied_dask / "distributed" / "worker_state_machine.py").write_text("raise OSError('gone')\n")
    assert main([str(copied_dask), "--seeds", "1"]) == 1
    said = capsys.readouterr().out
    assert said.count("cannot be compared") == len(STREAMS)
    assert "OSError: gone" in said

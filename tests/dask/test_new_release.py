"""The reader of other releases of Dask: it finds what differs, and says what it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dask
from backhaul.dask.compat.digests import DIGESTS
from tests.dask.new_release import main, sources, write_digests

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(dask.__file__).parent.parent


@pytest.fixture
def release(copied_dask: Path) -> Path:
    """Give a folder with all of Dask that is installed, as if it were another release."""
    return copied_dask


def test_sources_read_as_text_have_the_digests_of_imported_ones() -> None:
    assert len(sources()) > 60
    for source in sources():
        _, digest = source.found_in(INSTALLED)
        assert digest in source.digests, source


def test_a_release_that_was_read_has_nothing_new(
    release: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(release)]) == 0
    assert "0 differ, 0 have to be read; 0 names are gone" in capsys.readouterr().out


def test_changed_sources_are_shown(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worker = release / "distributed" / "worker.py"
    before = "async def execute(self, key: Key, *, stimulus_id: str) -> StateMachineEvent:"
    after = before.replace("key: Key", "key: Key, of_another_mind: bool = True")
    worker.write_text(worker.read_text().replace(before, after))
    spill = release / "distributed" / "spill.py"
    spill.write_text(spill.read_text().replace("class SpillBuffer", "class Spilling"))
    assert main([str(release)]) == 1
    out = capsys.readouterr().out
    assert "distributed.worker.Worker.execute has to be read\n" in out
    assert "used by Worker._start_async_instruction" in out
    assert "    +    async def execute(self, key: Key, of_another_mind: bool = True," in out
    assert "distributed.spill.SpillBuffer is gone" in out
    assert "distributed.spill.SpillBuffer is gone, and names.py imports it" in out
    assert out.splitlines()[-1].endswith("3 differ, 3 have to be read; 1 names are gone")


def test_sources_with_equal_behaviour_are_left_out(
    release: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = release / "distributed" / "worker.py"
    text = worker.read_text()
    before = "async def execute(self, key: Key, *, stimulus_id: str) -> StateMachineEvent:"
    assert before in text
    after = before.replace("key: Key", "key: object") + "\n        # Another comment"
    worker.write_text(text.replace(before, after))
    assert main([str(release)]) == 0
    assert "0 differ, 0 have to be read; 0 names are gone" in capsys.readouterr().out


def test_digests_of_read_sources_are_added(release: Path, tmp_path: Path) -> None:
    worker = release / "distributed" / "worker.py"
    before = "async def execute(self, key: Key, *, stimulus_id: str)"
    worker.write_text(worker.read_text().replace(before, before.replace("*,", "*, more=0,")))
    file = tmp_path / "digests.json"
    write_digests(release, file)
    written = {name: tuple(known) for name, known in json.loads(file.read_text("utf-8")).items()}
    (added,) = {name for name, known in written.items() if known != DIGESTS[name]}
    assert added == "Worker.execute"
    assert written[added][:-1] == DIGESTS[added]
    assert written.keys() == DIGESTS.keys()


def test_the_two_releases_that_are_supported_were_read(capsys: pytest.CaptureFixture[str]) -> None:
    places = (
        p for name in (".venv", ".venv-newest") for p in ROOT.glob(f"{name}/lib/*/site-packages")
    )
    others = [p for p in places if (p / "distributed").exists() and p != INSTALLED]
    if not others:
        pytest.skip("the other release is not installed: `make test` has both")
    for other in others:
        assert main([str(other)]) == 0
    assert "distributed.nanny.WorkerProcess.start differs, and was read" in capsys.readouterr().out


def test_a_folder_without_dask_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert f"{tmp_path} does not hold the sources of dask" in capsys.readouterr().err

"""The hashed requirements are those that people edit, and each has the archives of Linux."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests import hashes

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"^(?P<name>[^#\s].*?)(?: \\\n    --hash=sha256:[0-9a-f]{64})+$", re.MULTILINE)


@pytest.mark.parametrize("source", hashes.SOURCES, ids=lambda path: path.name)
def test_hashed_file_has_each_requirement_with_hashes(source: Path) -> None:
    """Run ``make hashes`` after a change of ``requirements/*.txt``."""
    text = (hashes.FOLDER / source.name).read_text(encoding="utf-8")
    listed = {str(Requirement(entry["name"])) for entry in ENTRY.finditer(text)}
    assert listed == {str(each) for each in hashes.pinned(source)}
    assert text.count("==") == len(listed)


def test_hashes_are_for_each_python_that_is_supported() -> None:
    """One file of another minimum would break ``make`` on an older patch release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == f">={hashes.OLDEST}"
    for path in hashes.FOLDER.iterdir():
        assert "python_full_version" not in path.read_text(encoding="utf-8")


def test_no_file_is_left_of_a_source_that_is_gone() -> None:
    assert {path.name for path in hashes.FOLDER.iterdir()} == {path.name for path in hashes.SOURCES}


@pytest.mark.parametrize(
    ("archive", "is_wanted"),
    [
        ("numpy-2.4.6.tar.gz", True),
        ("numpy-2.4.6-cp314-cp314t-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", True),
        ("cryptography-50.0.2-cp311-abi3-manylinux_2_28_aarch64.whl", True),
        ("click-8.5.1-py3-none-any.whl", True),
        ("numpy-2.4.6-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("numpy-2.4.6-cp311-cp311-macosx_14_0_arm64.whl", False),
        ("numpy-2.4.6-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", False),
    ],
)
def test_archives_are_those_that_pip_may_choose_on_linux(archive: str, is_wanted: bool) -> None:
    assert hashes.wanted(archive) is is_wanted


def test_every_installation_of_make_requires_hashes() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = text.replace("\\\n", "").splitlines()
    installed = [line for line in lines if re.search(r"\$\(PIP_\w+\).* -r ", line)]
    assert len(installed) > 5
    assert not [line for line in installed if "$(PIP_HASHED)" not in line]
    assert "PIP_HASHED := $(PIP_INSTALL) --require-hashes\n" in text

"""Bill of materials of the wheel that the tests with the newest Dask install."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.documents.written import ROOT
from tests.wheels.sbom import third_party, wrong_with

WHEELS = sorted((ROOT / ".venv-newest" / "wheel").glob("*.whl"))


@pytest.mark.skipif(not WHEELS, reason="no wheel is built: make test builds it")
def test_wheel_lists_its_crates() -> None:
    assert wrong_with(WHEELS[-1]) is None
    assert len(third_party(WHEELS[-1])) > 30


def test_wheel_without_a_bill_is_named(tmp_path: Path) -> None:
    wheel = tmp_path / "backhaul-1-cp311-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("backhaul/__init__.py", "")
    assert (wrong_with(wheel) or "").startswith("has no bill of materials that can be read: ")
    bill = '{"bomFormat": "CycloneDX", "components": [{"name": "libc", "version": "0.0.1"}]}'
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("backhaul-1.dist-info/sboms/backhaul.cyclonedx.json", bill)
    assert wrong_with(wheel) == "lists crates that Cargo.lock has not: [('libc', '0.0.1')]"

"""Which variables of the environment Backhaul's sources read."""

from __future__ import annotations

import re

from tests.documents.written import ROOT

__all__ = ["READ_BY_OTHERS", "read_by_the_source"]

_PYTHON = re.compile(r'(?:environ(?:\.get)?[\[(]|getenv\(|")((?:BACKHAUL|UCXPY)_[A-Z_]+)"')
_ENVIRON = re.compile(r'environ(?:\.get)?[\[(]"([A-Z_]+)"')
_RUST = re.compile(r'env::var(?:_os)?\("([A-Z_]+)"')
#: Not for programs of users: read while crates are built, by launchers of MPI, or by a Rust test
_LEFT_OUT = {"BACKHAUL_TEST_ALONE", "OMPI_COMM_WORLD_RANK", "OUT_DIR", "PMI_RANK"}

#: Told on the page, and read by Dask, click, CUDA, UCX or by tests
READ_BY_OTHERS = {
    "BACKHAUL_CUDA_DRIVER",
    "BACKHAUL_LIVE_PLACEMENT",
    "BACKHAUL_REQUIRE_GPU",
    "BACKHAUL_SCREENSHOTS",
    "BACKHAUL_WRITE_DOCS",
    "CARGO_TARGET_DIR",
    "DASK_CONFIG",
    "DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME",
}


def read_by_the_source() -> set[str]:
    """List the names in the sources of the wheel."""
    found: set[str] = set()
    for path in ROOT.glob("python/**/*.py"):
        text = path.read_text(encoding="utf-8")
        found |= {*_PYTHON.findall(text), *_ENVIRON.findall(text)}
    for crate in ("cuda", "fabric", "proto", "python", "shm", "sys", "topology", "ucx"):
        for path in ROOT.glob(f"crates/{crate}/src/**/*.rs"):
            text = path.read_text(encoding="utf-8")
            found |= set(_RUST.findall(text)) | set(
                re.findall(r'"((?:BACKHAUL|RAPIDS)_[A-Z_]+)"', text)
            )
    return found - _LEFT_OUT

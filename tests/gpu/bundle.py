"""Pack what a machine with a GPU and without a network needs: `make gpu-bundle`.

Into ``.gpu/`` go the wheels of this project, its Rust tests that need a GPU, wheels of Dask and of
test tools for the Python of that machine, and the parts of UCX that reach GPUs. `run.py` takes it
from there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / ".gpu"

#: Upper limit of the whole, in bytes: what such machines take
BYTES_MAX = 60 << 20

#: Tests of the workspace that run there: package and the arguments that name them
RUST_TESTS = (
    ("cuda", ["-p", "backhaul-testkit", "--test", "cuda"]),
    ("cuda-lib", ["-p", "backhaul-cuda", "--lib"]),
)

#: Files that are kept of the wheel of libucx, by the beginning of the file name: each library under
#: the one of its three names by which others ask for it
UCX_KEPT = (
    "libcudart",
    "libgomp",
    "libucm.so.0",
    "libucm_cuda.so.0",
    "libucp.so.0",
    "libucs.so.0",
    "libuct.so.0",
    "libuct_cma.so.0",
    "libuct_cuda.so.0",
    "libucx_perftest_cuda.so.0",
    "ucx_info",
    "ucx_perftest",
)

#: Files that are left out all the same
UCX_LEFT_OUT = (".so.0.0.0", "_daemon")

#: Files of the other environments that are not needed there, being large, or there already: pages,
#: pictures, data frames, another event loop
NOT_PACKED = frozenset(
    (
        *("bokeh", "contourpy", "cycler", "flit_core", "fonttools", "kiwisolver", "maturin"),
        *("matplotlib", "narwhals", "numpy", "pandas", "pillow", "prometheus_client", "pyarrow"),
        *("pyparsing", "python-dateutil", "tzdata", "uvloop", "xyzservices"),
    )
)

#: Tags of wheels that such a machine takes, newest first
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (39, 34, 31, 28, 27, 26, 24, 17)),
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)


#: Their tests begin and end with `reset`, by an event loop of their own that the pytest-asyncio of
#: their time asked for: since 1.0 it is not asked for any more.
_RESET = """

@pytest.fixture(autouse=True)
def reset_before_and_after():
    ucp.reset()
    yield
    ucp.reset()
"""

#: Read instead of the project's, which would have them imported one by one: they import one
#: another.
_PYTEST_INI = """[pytest]
asyncio_mode = strict
"""


def main() -> None:
    """Pack, and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default="3.12", help="version of Python there")
    parser.add_argument("--wheels", type=Path, nargs="+", required=True, help="of this project")
    parser.add_argument(
        "--ucx-py", type=Path, metavar="FOLDER", help="a checkout of UCX-Py, to run its tests"
    )
    options = parser.parse_args()
    if BUNDLE.exists():
        shutil.rmtree(BUNDLE)
    (BUNDLE / "wheels").mkdir(parents=True)
    for wheel in options.wheels:
        shutil.copy(wheel, BUNDLE / "wheels")
    _download(options.python)
    _trim_ucx()
    _build_tests()
    if options.ucx_py is not None:
        _copy_ucx_py(options.ucx_py)
    _report()


def _download(python: str) -> None:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--only-binary=:all:", "--implementation", "cp"),
        *("--python-version", python, "--dest", str(BUNDLE / "wheels")),
    ]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, *_requirements(python)], check=True)


def _requirements(python: str) -> Iterator[str]:
    """Give what the environments of this project pin for a Python, without what is not packed."""
    for name in ("common", "complete", "run", "test", "gpu"):
        for line in (ROOT / f"requirements/{name}.txt").read_text().splitlines():
            if "==" not in line or line.startswith("#"):
                continue
            pinned = Requirement(line)
            is_for_it = pinned.marker is None or pinned.marker.evaluate({"python_version": python})
            if is_for_it and pinned.name.lower() not in NOT_PACKED:
                yield f"{pinned.name}{pinned.specifier}"


def _trim_ucx() -> None:
    """Take what reaches GPUs out of the wheel of libucx, as it is: stripped it breaks."""
    (wheel,) = (BUNDLE / "wheels").glob("libucx_cu*.whl")
    with zipfile.ZipFile(wheel) as archive, tarfile.open(BUNDLE / "ucx.tar.xz", "w:xz") as kept:
        for info in archive.infolist():
            path = Path(info.filename)
            if not path.name.startswith(UCX_KEPT) or path.name.endswith(UCX_LEFT_OUT):
                continue
            # Other libraries that the wheel brings are found where its own are.
            is_others = path.parts[0].endswith(".libs")
            place = Path("lib") if is_others else Path(*path.parts[1:-1])
            member = tarfile.TarInfo(str(place / path.name))
            member.size, member.mode = info.file_size, 0o755
            with archive.open(info) as content:
                kept.addfile(member, content)
    wheel.unlink()


def _build_tests() -> None:
    (BUNDLE / "bin").mkdir()
    for name, arguments in RUST_TESTS:
        built = subprocess.run(
            ["cargo", "test", "--locked", "--no-run", "--message-format=json", *arguments],
            check=True,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in built.stdout.splitlines():
            message = json.loads(line)
            program = message.get("executable")
            if program and message["profile"]["test"]:
                shutil.copy(program, BUNDLE / "bin" / name)
        # Most of it is debug information. Where there is no strip it is only larger.
        if strip := shutil.which("strip"):
            subprocess.run([strip, str(BUNDLE / "bin" / name)], check=True)


def _copy_ucx_py(checkout: Path) -> None:
    tests = next(
        (path for path in (checkout / "tests", checkout / "ucp/tests") if path.is_dir()), None
    )
    if tests is None:
        raise SystemExit(f"{checkout} has no folder tests: is it a checkout of UCX-Py?")
    target = BUNDLE / "ucx-py-tests"
    shutil.copytree(tests, target, ignore=shutil.ignore_patterns("__pycache__"))
    for path in target.rglob("*.py"):
        text = path.read_text()
        text = text.replace("import ucp\n", "import backhaul.ucp as ucp\n")
        text = text.replace("from ucp", "from backhaul.ucp")
        path.write_text(text + _RESET if path == target / "conftest.py" else text)
    (target / "pytest.ini").write_text(_PYTEST_INI)


def _report() -> None:
    total = 0
    for entry in sorted(BUNDLE.iterdir()):
        files = [path for path in [entry, *entry.rglob("*")] if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        total += size
        print(f"{entry.name:14} {len(files):4} files {size / 2**20:6.1f} MiB")
    print(f"{'':14} {'':4}       {total / 2**20:6.1f} MiB in {BUNDLE}")
    if total > BYTES_MAX:
        raise SystemExit(f"more than {BYTES_MAX / 2**20:.0f} MiB: it would not fit")


if __name__ == "__main__":
    main()

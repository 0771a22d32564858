"""Run everything that needs a GPU, on a machine that has one: `make gpu-test`.

Needs no network, but Python with CuPy, Numba or PyTorch, as far as there are tests for them, and
what `bundle.py` has packed into ``.gpu/``. Every step is bounded, and skipped with its reason; with
``BACKHAUL_REQUIRE_GPU=1`` a skip is a failure. The log lies in ``.gpu/log.txt``, and in the folder
``$OUT`` where there is one.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import site
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUNDLE = ROOT / ".gpu"
#: Folder that is unpacked and installed, for as long as it runs
WORK = Path(tempfile.gettempdir()) / f"backhaul-gpu-{os.getuid()}"
VENV = WORK / "venv"
UCX = WORK / "ucx"
PYTHON = str(VENV / "bin/python")
REQUIRED = os.environ.get("BACKHAUL_REQUIRE_GPU") == "1"

#: All of it, in seconds
TIME_MAX_S = 600
#: Most steps at once
TOGETHER_MAX = 4


@dataclass(frozen=True)
class Step:
    """One command, and what it is for.

    Attributes
    ----------
    name : str
        Property that it shows.
    command : sequence of str
        The command, run in the checkout.
    time_max_s : float
        Seconds after which it is ended and has failed.
    environment : dict
        Variables beside those of this process.
    needs : Path, optional
        A file or folder without which it is skipped.
    is_alone : bool
        Whether nothing else may run meanwhile, as it measures times.
    """

    name: str
    command: Sequence[str]
    time_max_s: float = 120
    environment: tuple[tuple[str, str], ...] = ()
    needs: Path | None = None
    is_alone: bool = False


def steps() -> Iterator[Step]:
    """Give the steps in order: the carrier, then Rust, Python, UCX-Py's tests, timings.

    Yields
    ------
    Step
        To be run whatever became of the one before it.
    """
    # JAX would take three quarters of a GPU for itself, in each process.
    real = (
        ("BACKHAUL_CUDA_DRIVER", "real"),
        ("BACKHAUL_LIBUCP", str(UCX / "lib/libucp.so.0")),
        ("UCX_MODULE_DIR", str(UCX / "lib/ucx")),
        ("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
    )
    pytest = [PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "-q"]
    backhaul = str(VENV / "bin/backhaul")
    yield Step("what the driver says of memory", [PYTHON, "tests/gpu/probe.py"], 30, is_alone=True)
    yield Step("doctor", [backhaul, "doctor"], 60, real, is_alone=True)
    carrier = BUNDLE / "bin/cuda"
    yield Step("carrier (Rust)", [str(carrier), "--test-threads=6"], 150, real, carrier, True)
    library = BUNDLE / "bin/cuda-lib"
    yield Step("crates/cuda (Rust)", [str(library)], 30, real, library)
    files = ["tests/native/test_device.py", "tests/native/test_device_interfaces.py"]
    files += ["tests/native/test_ucx_gpus.py", "tests/ucp/test_device.py"]
    for file in (*files, "tests/dask/test_device_frames.py"):
        yield Step(file, [*pytest, file], 180, real)
    libraries = ["tests/gpu/test_libraries.py", "tests/gpu/test_cluster.py"]
    yield Step("libraries and clusters (Python)", [*pytest, *libraries], 180, real)
    theirs = BUNDLE / "ucx-py-tests"
    options = ["-rfEs", "--timeout=60", "-c", str(theirs / "pytest.ini")]
    yield Step("UCX-Py's tests", [*pytest, *options, str(theirs)], 200, real, theirs)
    p2p = [backhaul, "bench", "p2p", "--memory", "cuda", "--sizes", "8,1MiB,64MiB,256MiB"]
    yield Step("bench p2p --memory cuda", p2p, 120, is_alone=True)
    yield from _perftest()
    arrays = [backhaul, "bench", "random-array", "--repetitions", "2"]
    yield Step("bench random-array", arrays, 120, is_alone=True)


def _perftest() -> Iterator[Step]:
    """Give what UCX itself does between two processes of this machine."""
    program = UCX / "bin/ucx_perftest"
    libraries = UCX / "lib"
    environment = (("LD_LIBRARY_PATH", str(libraries)), ("UCX_MODULE_DIR", str(libraries / "ucx")))
    script = (
        f"{program} -p 13391 & server=$!; sleep 2; "
        f"{program} 127.0.0.1 -p 13391 -t $2 -m cuda -s $0 -n $1 -w 10; status=$?; "
        "kill $server 2>/dev/null; exit $status"
    )
    sizes = ((8, 1000), (1 << 20, 500), (64 << 20, 50))
    for test, (size, count) in itertools.product(("tag_bw", "tag_lat"), sizes):
        command = ["sh", "-c", script, str(size), str(count), test]
        name = f"ucx_perftest -t {test} -m cuda, {size} bytes"
        yield Step(name, command, 60, environment, program, is_alone=True)


def why_no_gpu() -> str | None:
    """Ask the driver itself whether there is a GPU.

    Returns
    -------
    str or None
        Text that says what is missing; None if nothing is.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no driver: {error}"
    status = driver.cuInit(0)
    count = ctypes.c_int()
    if status == 0:
        status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return f"the driver refuses to start: error {status}"
    return None if count.value else "the driver sees no device"


def make_venv(folder: Path) -> str:
    """Make an environment that has all that the running one has.

    Parameters
    ----------
    folder : Path
        Where to; what is there is removed.

    Returns
    -------
    str
        Its interpreter.
    """
    if folder.exists():
        shutil.rmtree(folder)
    # The machine's pip is used: its Python may come without one to install.
    venv.create(folder, system_site_packages=True, with_pip=False, symlinks=True)
    # Where the running one is such an environment itself, "system" means the Python below it.
    (ours,) = folder.glob("lib/python*/site-packages")
    theirs = [path for path in site.getsitepackages() if Path(path).is_dir()]
    lines = (f"import site; site.addsitedir({path!r})\n" for path in theirs)
    (ours / "machine.pth").write_text("".join(lines))
    return str(folder / "bin/python")


def install_packed() -> None:
    """Install what was packed, over what the machine has."""
    if WORK.exists():
        shutil.rmtree(WORK)
    WORK.mkdir()
    with tarfile.open(BUNDLE / "ucx.tar.xz") as archive:
        archive.extractall(UCX, filter="data")
    python = make_venv(VENV)
    wheels = sorted((BUNDLE / "wheels").glob("*.whl"))
    subprocess.run(
        [
            *(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"),
            *("--disable-pip-version-check", "--ignore-installed", *map(str, wheels)),
        ],
        check=True,
    )


def main() -> int:
    """Run the steps, and log what came of them.

    Returns
    -------
    int
        0 if nothing failed, and nothing that is required was skipped.
    """
    missing = why_no_gpu()
    if missing is None and not (BUNDLE / "wheels").is_dir():
        missing = f"{BUNDLE} is not there: make gpu-bundle packs it, on a machine with a network"
    if missing is not None:
        print(f"skipped: {missing}")
        return int(REQUIRED)
    install_packed()
    begun = time.monotonic()
    outcomes = []
    with open(BUNDLE / "log.txt", "w") as log, ThreadPoolExecutor(TOGETHER_MAX) as pool:
        for group in groups(steps()):
            left = TIME_MAX_S - (time.monotonic() - begun)
            done = pool.map(_run, group, [left] * len(group))
            for step, (outcome, output) in zip(group, done, strict=True):
                outcomes.append((step.name, outcome))
                text = f"=== {step.name}: {outcome}\n$ {' '.join(step.command)}\n{output}\n"
                print(text, flush=True)
                log.write(text)
        summary = "\n".join(f"{outcome:30} {name}" for name, outcome in outcomes)
        print(summary)
        log.write(summary + "\n")
    if out := os.environ.get("OUT"):
        shutil.copy(BUNDLE / "log.txt", out)
    is_bad = ("failed", "skipped") if REQUIRED else ("failed",)
    return int(any(outcome.startswith(is_bad) for _, outcome in outcomes))


def groups(each: Iterable[Step]) -> Iterator[list[Step]]:
    """Give together what may run at once, in order."""
    together: list[Step] = []
    for step in each:
        if step.is_alone and together:
            yield together
            together = []
        together.append(step)
        if step.is_alone:
            yield together
            together = []
    if together:
        yield together


def _run(step: Step, left_s: float) -> tuple[str, str]:
    if step.needs is not None and not step.needs.exists():
        return f"skipped: no {step.needs.name}", ""
    if left_s < 5:
        return "skipped: no time is left", ""
    begun = time.monotonic()
    try:
        done = subprocess.run(
            step.command,
            cwd=ROOT,
            env={**os.environ, **dict(step.environment), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=min(step.time_max_s, left_s),
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as expired:
        output = expired.output or b""
        text = output.decode(errors="replace") if isinstance(output, bytes) else output
        return f"failed: not over after {expired.timeout:.0f} s", text
    took_s = time.monotonic() - begun
    if done.returncode == 0:
        return f"passed in {took_s:.1f} s", done.stdout
    return f"failed with {done.returncode} after {took_s:.1f} s", done.stdout


if __name__ == "__main__":
    sys.exit(main())

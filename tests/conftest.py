"""Fixtures and settings of all tests."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
from pathlib import Path

import hypothesis
import pytest

from tests.hangs import Hangs, add_option
from tests.processor_times import ProcessorTimes

_ROOT = Path(__file__).resolve().parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugins."""
    add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Heed SIGINT, which a shell has ignored by what it starts in the background; be patient.

    Tests send it to programs that they start, and these inherit that.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # On a busy machine any example may take 200 ms.
    hypothesis.settings.register_profile(
        "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("busy")
    config.pluginmanager.register(ProcessorTimes())
    config.pluginmanager.register(Hangs())


@pytest.fixture(scope="module", autouse=True)
def what_was_before_is_kept() -> None:
    """Keep what is there when a module's tests begin out of all garbage collections in it.

    Many tests make some: Dask's helpers and `backhaul.ucp.reset` do, for each. Those of a late
    module would look through all that earlier ones have imported, 0.2 s each with Bokeh and pandas.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def cuda_driver(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Find the folder with a CUDA driver that needs no GPU, built if there is none.

    ``crates/testkit/examples/fake_cuda/main.rs`` says what it is, and what it cannot show. With
    ``BACKHAUL_CUDA_DRIVER=real`` it is the one of the machine, which is in no folder.
    """
    if os.environ.get("BACKHAUL_CUDA_DRIVER") == "real":
        return None
    target = Path(os.environ.get("CARGO_TARGET_DIR") or "target")
    library = _ROOT / target / "debug" / "examples" / "libfake_cuda.so"
    sources = (_ROOT / "crates" / "testkit" / "examples" / "fake_cuda").glob("*.rs")
    changed_at = max(source.stat().st_mtime for source in sources)
    if not library.exists() or library.stat().st_mtime < changed_at:
        if shutil.which("cargo") is None:
            pytest.skip("the driver that needs no GPU is not built, and there is no cargo")
        command = ["cargo", "build", "--locked", "--quiet"]
        command += ["-p", "backhaul-testkit", "--example", "fake_cuda"]
        subprocess.run(command, cwd=_ROOT, check=True)
        # Cargo leaves it as it is where only times have changed.
        library.touch()
    folder = tmp_path_factory.mktemp("cuda_driver")
    # The last is what UCX's module for CUDA is linked with beside it.
    for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / name).symlink_to(library)
    return folder


@pytest.fixture
def gpu_environment(cuda_driver: Path | None) -> dict[str, str]:
    """Environment of a process that has a CUDA driver, and can import ``device_arrays``."""
    environment = dict(os.environ)
    _prepend(environment, "PYTHONPATH", Path(__file__).parent / "cuda")
    if cuda_driver is not None:
        for name in os.environ:
            if name.startswith(("CUDA_", "FAKE_CUDA_")):
                del environment[name]
        _prepend(environment, "LD_LIBRARY_PATH", cuda_driver)
    return environment


def _prepend(environment: dict[str, str], name: str, folder: Path) -> None:
    rest = environment.get(name)
    environment[name] = f"{folder}{os.pathsep}{rest}" if rest else str(folder)

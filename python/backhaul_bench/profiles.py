"""Flame graphs of the processes of a cluster, taken from outside by py-spy.

py-spy is not among the requirements: it is looked for beside the interpreter and on ``PATH``.
Profiles are taken in repetitions of their own, after those that are timed.
"""

from __future__ import annotations

import contextlib
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from backhaul_bench.dask_cluster import ROLES, DaskCluster
from backhaul_bench.shares import WAITING, group_of, parse_stacks, shares

__all__ = ["Profile", "Profiler", "ProfilerFailed"]

_START_TIMEOUT_S = 30.0
_WRITE_TIMEOUT_S = 60.0
#: Output of py-spy once it is attached
_ATTACHED = b"Sampling process"
#: Suffix of the file by py-spy's name of the format. One recording gives one format only.
_FORMATS = {"flamegraph": "svg", "raw": "txt"}


class ProfilerFailed(RuntimeError):
    """py-spy is missing, may not look into the processes, or wrote nothing."""


@dataclass(frozen=True)
class Profile:
    """Where the processes of one role spent their time in one case."""

    case: str
    configuration: str
    role: str
    #: Stacks that were not waiting, over all threads of all processes of the role
    samples: int
    #: By group of functions, from 0 to 1
    shares: dict[str, float]


class Profiler:
    """Writes profiles to a folder.

    Parameters
    ----------
    folder : Path
        Where; made if it is not there.
    native : bool
        Whether to show the functions of compiled extensions too.
    seconds : float
        How long to sample for each file, at least.
    rate_hz : int
        Samples per second of each process.

    Raises
    ------
    ProfilerFailed
        If py-spy is not installed.
    OSError
        If the folder cannot be made.
    """

    def __init__(
        self, folder: Path, *, native: bool = False, seconds: float = 5.0, rate_hz: int = 200
    ) -> None:
        beside = Path(sys.executable).with_name("py-spy")
        command = str(beside) if beside.exists() else shutil.which("py-spy")
        if command is None:
            raise ProfilerFailed("py-spy is missing; install it with: pip install py-spy")
        self._command = command
        self._options = ["--rate", str(rate_hz), *(["--native"] if native else [])]
        self._seconds = seconds
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def profile(
        self, cluster: DaskCluster, case: str, repeat: Callable[[], object]
    ) -> list[Profile]:
        """Profile every process of a cluster, writing a flame graph and folded stacks of each.

        Parameters
        ----------
        cluster : DaskCluster
            Whose processes.
        case : str
            How files and reports name what is done.
        repeat : callable
            Does it once; called as often as the time asks for.

        Returns
        -------
        list of Profile
            One for each role that has processes.

        Raises
        ------
        ProfilerFailed
            If py-spy cannot attach, or saw nothing.
        """
        label = cluster.configuration.label
        prefix = re.sub(r"[^\w.-]+", "-", f"{case}-{label}")
        written: dict[str, list[Path]] = {role: [] for role in ROLES}
        for format_name, suffix in _FORMATS.items():
            with ExitStack() as stack:
                for role, pids in cluster.pids.items():
                    for index, pid in enumerate(pids):
                        number = f"-{index}" if len(pids) > 1 else ""
                        file = self._folder / f"{prefix}-{role.removesuffix('s')}{number}.{suffix}"
                        stack.enter_context(self._recording(pid, file, format_name))
                        if format_name == "raw":
                            written[role].append(file)
                end = time.monotonic() + self._seconds
                while time.monotonic() < end:
                    repeat()
        # In a cluster of one process, the other roles have none.
        return [self._read(case, label, role, files) for role, files in written.items() if files]

    @contextmanager
    def _recording(self, pid: int, file: Path, format_name: str) -> Iterator[None]:
        """Sample one process while the context is open."""
        file.unlink(missing_ok=True)
        with subprocess.Popen(
            [
                *(self._command, "record", "--pid", str(pid), "--format", format_name),
                *("--output", str(file), *self._options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as recorder:
            try:
                said = _wait_attached(recorder)
                yield
                # It writes its file when it is interrupted.
                recorder.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    said += recorder.communicate(timeout=_WRITE_TIMEOUT_S)[0]
            finally:
                recorder.kill()
        if not file.exists():
            raise ProfilerFailed(f"py-spy wrote no {file.name}:\n{_last_lines(said)}")

    @staticmethod
    def _read(case: str, label: str, role: str, files: list[Path]) -> Profile:
        stacks: Counter[tuple[str, ...]] = Counter()
        for file in files:
            stacks += parse_stacks(file.read_text(encoding="utf-8", errors="replace"))
        busy = sum(count for stack, count in stacks.items() if group_of(stack) != WAITING)
        return Profile(case, label, role, busy, shares(stacks))


def _wait_attached(recorder: subprocess.Popen[bytes]) -> bytes:
    """Wait until py-spy samples; returns what it said."""
    assert recorder.stdout is not None
    said = b""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while _ATTACHED not in said:
        left_s = max(0.0, deadline - time.monotonic())
        ready = select.select([recorder.stdout], [], [], left_s)[0]
        line = recorder.stdout.readline() if ready else b""
        if not line:
            raise ProfilerFailed(
                "py-spy cannot look into a process of the cluster; it may need root or "
                f"kernel.yama.ptrace_scope = 0:\n{_last_lines(said)}"
            )
        said += line
    return said


def _last_lines(said: bytes) -> str:
    return "\n".join(said.decode(errors="replace").strip().splitlines()[-6:])

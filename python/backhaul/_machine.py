"""Machine and versions that a benchmark ran on, as its report has them."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from backhaul._units import format_bytes

__all__ = ["Machine", "installed_versions"]


@dataclass(frozen=True)
class Machine:
    """The facts of this machine that decide how fast data moves."""

    cpu_model: str
    #: Cores this process may run on
    cores_usable: int
    #: Cores the machine has
    cores_total: int
    memory_bytes: int
    kernel: str
    #: Runnable processes over the last minute: a benchmark on a busy machine says little
    load_1min: float

    @classmethod
    def here(cls) -> Machine:
        """Read the facts from procfs and the scheduler.

        Returns
        -------
        Machine
            Facts that cannot be read are ``unknown`` or 0.
        """
        return cls(
            cpu_model=_cpu_model(),
            cores_usable=len(os.sched_getaffinity(0)),
            cores_total=os.cpu_count() or 0,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
            load_1min=round(os.getloadavg()[0], 2),
        )

    def describe(self) -> str:
        """Put the facts into one line.

        Returns
        -------
        str
            Processor, cores, memory, kernel and load.
        """
        return (
            f"{self.cpu_model}, {self.cores_usable} of {self.cores_total} cores, "
            f"{format_bytes(self.memory_bytes)} memory, {self.kernel}, load {self.load_1min}"
        )


def installed_versions(*names: str) -> dict[str, str]:
    """Say which version of Python and of some distributions is installed.

    Parameters
    ----------
    *names : str
        Distribution names.

    Returns
    -------
    dict of str to str
        ``python`` first, then each name that is installed.
    """
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or "unknown"
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or "unknown"

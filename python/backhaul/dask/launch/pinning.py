"""CPUs and memory of a process, set before it starts.

Linux keeps CPU affinity and memory policy for each thread, and hands both on to what the thread
forks and across ``execve`` (``sched_setaffinity(2)``, ``set_mempolicy(2)``). So the thread that
starts a process takes them on, starts it, and takes its own back. The new process has them from
its first instruction, and with it every thread that it ever makes: the interpreter's, those of
OpenBLAS and Arrow, Backhaul's engine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from typing import Literal

from backhaul import _native
from backhaul.errors import ConfigError

__all__ = ["MemoryPolicy", "PinnedProcess", "Pinning"]

#: ``prefer``: its own nodes first, others when these are full. ``bind``: these and no others.
#: ``none``: what this process has.
MemoryPolicy = Literal["prefer", "bind", "none"]

# linux/mempolicy.h
_PREFERRED, _BIND, _PREFERRED_MANY = 1, 2, 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinning:
    """Where a process may run, and where its memory comes from."""

    #: Whose it is, for messages
    owner: str
    #: CPUs by number of the operating system; empty to leave the affinity as it is
    cpus: frozenset[int] = frozenset()
    #: NUMA nodes; empty to leave the policy as it is
    memory_nodes: tuple[int, ...] = ()
    #: How strictly memory comes from these nodes
    memory_policy: MemoryPolicy = "prefer"

    def __post_init__(self) -> None:
        if self.memory_policy not in ("prefer", "bind", "none"):
            raise ConfigError(
                f"memory_policy must be 'prefer', 'bind' or 'none', got {self.memory_policy!r}"
            )

    @contextlib.contextmanager
    def on_this_thread(self) -> Iterator[str | None]:
        """Take CPUs and memory on for a while, on the calling thread alone.

        Yields why the memory policy could not be set; the CPUs are set all the same.

        Raises
        ------
        ConfigError
            If a CPU may not be used here.
        """
        cpus_before = os.sched_getaffinity(0)
        self._take_cpus()
        try:
            policy_before, refusal = self._take_memory()
            try:
                yield refusal
            finally:
                if policy_before is not None:
                    _native.set_memory_policy(*policy_before)
        finally:
            os.sched_setaffinity(0, cpus_before)

    def check(self) -> str | None:
        """Try it on a thread made for that, and return why the memory policy cannot be set.

        Raises
        ------
        ConfigError
            If a CPU may not be used here.
        """
        found: list[str | ConfigError | None] = []

        def attempt() -> None:
            try:
                with self.on_this_thread() as refusal:
                    found.append(refusal)
            except ConfigError as error:
                found.append(error)

        thread = threading.Thread(target=attempt, name="backhaul pinning check")
        thread.start()
        thread.join()
        outcome = found[0]
        if isinstance(outcome, ConfigError):
            raise outcome
        return outcome

    def _take_cpus(self) -> None:
        if not self.cpus:
            return
        before = os.sched_getaffinity(0)
        # OverflowError: a number that is too large for any CPU.
        with contextlib.suppress(OSError, OverflowError):
            os.sched_setaffinity(0, self.cpus)
        # The kernel leaves out, without a word, what the cpuset forbids and what does not exist.
        got = os.sched_getaffinity(0)
        if got == self.cpus:
            return
        os.sched_setaffinity(0, before)
        missing = (self.cpus - got if got < self.cpus else self.cpus - before) or self.cpus
        raise ConfigError(
            f"worker {self.owner!r} cannot be pinned to CPUs {_listed(self.cpus)}: this "
            f"process may not use {_listed(missing)} (its cpuset, or no such CPU; now on "
            f"{_listed(before)}); plan for this machine, or give the job these CPUs"
        )

    def _take_memory(self) -> tuple[tuple[int, list[int]] | None, str | None]:
        """Set the memory policy; return the one before, or why it is as it was."""
        if not self.memory_nodes or self.memory_policy == "none":
            return None, None
        if self.memory_policy == "bind":
            mode, call = _BIND, "MPOL_BIND"
        elif len(self.memory_nodes) == 1:
            mode, call = _PREFERRED, "MPOL_PREFERRED"
        else:
            mode, call = _PREFERRED_MANY, "MPOL_PREFERRED_MANY"
        try:
            before = _native.memory_policy()
            _native.set_memory_policy(mode, list(self.memory_nodes))
        except OSError as error:
            return None, (
                f"memory of worker {self.owner!r} is not kept on NUMA nodes "
                f"{_listed(self.memory_nodes)}: set_mempolicy({call}) failed with "
                f"{errno.errorcode.get(error.errno or 0, '?')}: {_fix(error)}"
            )
        return before, None


def _listed(numbers: Iterable[int]) -> str:
    # Every worker imports this module, and none of them the model of machines.
    from backhaul.topology._json import cpu_list

    return cpu_list(numbers)


def _fix(error: OSError) -> str:
    match error.errno:
        case errno.EPERM | errno.EACCES:
            return (
                "not permitted here; a container needs CAP_SYS_NICE or a seccomp profile that "
                "allows it, or say memory_policy='none'"
            )
        case errno.EINVAL:
            return (
                "no such node, one that the cpuset forbids, or a kernel before 5.15 asked to "
                "prefer several nodes; say memory_policy='bind', or memory_policy='none'"
            )
        case errno.ENOSYS:
            return "this kernel knows no NUMA; say memory_policy='none'"
    return f"{error.strerror}; say memory_policy='none' to do without"


class PinnedProcess(SpawnProcess):
    """A process of ``multiprocessing`` that is spawned where its `pinning` says.

    It leaves SIGINT to the process that started it: a terminal sends Control-C to both, and a
    worker that ended by itself would be started again by its nanny, or break off what it is asked
    to finish.
    """

    pinning: Pinning
    #: Why it runs without its memory policy, once started
    refusal: str | None

    def start(self) -> None:
        """Start the process; other threads of this one are left where they are.

        `ConfigError` if a CPU may not be used here; nothing is started.
        """
        # The first spawn would start it, and it would be pinned as that process is.
        resource_tracker.ensure_running()
        with self.pinning.on_this_thread() as refusal:
            self.refusal = refusal
            blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                super().start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)

    def run(self) -> None:
        """Do the work; called in the new process."""
        # Not SIG_IGN, which programs that the worker starts would inherit.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        super().run()

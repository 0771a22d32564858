"""Launch plans."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from typing import Literal, get_args

from backhaul import _native
from backhaul.topology._cached import CachesNative, native_of, with_native
from backhaul.topology._json import to_json

__all__ = ["POLICIES", "Plan", "PlannedGpu", "Policy", "WorkerPlan"]

Policy = Literal["per-gpu", "per-numa", "per-l3", "n"]
"""What to run one worker for."""

POLICIES: tuple[Policy, ...] = get_args(Policy)


@dataclass(frozen=True, slots=True)
class PlannedGpu:
    """A GPU of a worker.

    Attributes
    ----------
    index : int
        NVML's number of the GPU, or of the one that an instance (MIG) is cut from.
    uuid : str or None
        UUID of the GPU or of the instance, when known.
    """

    index: int
    uuid: str | None

    @property
    def cuda_name(self) -> str:
        """How ``CUDA_VISIBLE_DEVICES`` calls it: its UUID, else its number."""
        return self.uuid or str(self.index)


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Resources that one worker should use.

    Attributes
    ----------
    name : str
        Unique on the host: ``gpu0``, ``numa1``, ``l3-2``, ``0``.
    cpus : frozenset of int
        CPUs to run on; never empty.
    memory_nodes : tuple of int
        NUMA nodes to have memory from; empty for no memory policy.
    threads : int
        How many tasks to run at once, at least 1.
    memory_bytes : int
        How much memory to use, in bytes; 0 when not known, or when no limit was asked for.
    gpus : tuple of PlannedGpu
        Its own GPU first, then the others by nearness; empty without GPUs.
    nic : str or None
        Interface for its address; None to let Dask choose.
    rdma : str or None
        RDMA device.
    lanes : tuple of str
        Lanes that it has, best first.
    why : str
        Why, in one sentence.
    """

    name: str
    cpus: frozenset[int]
    memory_nodes: tuple[int, ...]
    threads: int
    memory_bytes: int
    gpus: tuple[PlannedGpu, ...]
    nic: str | None
    rdma: str | None
    lanes: tuple[str, ...]
    why: str

    @property
    def cuda_visible_devices(self) -> str | None:
        """Value of ``CUDA_VISIBLE_DEVICES``, or None without GPUs."""
        return ",".join(gpu.cuda_name for gpu in self.gpus) or None


@dataclass(frozen=True, slots=True)
class Plan(CachesNative):
    """Workers that a machine should run.

    Attributes
    ----------
    policy : str
        The policy that it follows, one of `POLICIES`.
    machine : str
        Name of the machine.
    workers : tuple of WorkerPlan
        In the order in which to start them.
    explanation : tuple of str
        Decisions and their reasons.
    warnings : tuple of str
        Requests that were granted only in part, and facts that are not known.
    """

    policy: Policy
    machine: str
    workers: tuple[WorkerPlan, ...]
    explanation: tuple[str, ...]
    warnings: tuple[str, ...]

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what `to_json` wrote.

        Raises
        ------
        ConfigError
            If the text is no plan.
        """
        return plan_of(_native.Plan.parse(text))

    def to_json(self, *, indent: int | None = None) -> str:
        """Write the plan as JSON; CPUs are lists like ``0-3,8``."""
        return json.dumps(to_json(self), indent=indent)

    def table(self) -> str:
        """Write the workers as a table of text, with the explanation and the warnings."""
        return native_of(self, _native.Plan).table()

    def _repr_html_(self) -> str:
        """Write that in a notebook."""
        return f"<pre>{escape(self.table())}</pre>"


def plan_of(native: _native.Plan) -> Plan:
    """Make a plan of the native one."""
    return with_native(native.record(), native)

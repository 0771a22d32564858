"""The parts of a machine, their distances, and a launch plan for it.

`discover` looks at this machine, `load` reads one that was recorded: JSON, XML of hwloc, or the
table of ``nvidia-smi topo -m``. `Machine.plan` says which workers to run on it.
"""

from __future__ import annotations

from backhaul.topology._json import cpu_list
from backhaul.topology._machine import (
    CacheDomain,
    Core,
    Disk,
    Distance,
    Gpu,
    GpuInstance,
    Machine,
    Nic,
    NumaNode,
    NvLink,
    Place,
    RdmaDevice,
    Route,
    ToldPath,
    discover,
    load,
    parse,
    route,
)
from backhaul.topology._plan import POLICIES, Plan, PlannedGpu, Policy, WorkerPlan

__all__ = [
    "POLICIES",
    "CacheDomain",
    "Core",
    "Disk",
    "Distance",
    "Gpu",
    "GpuInstance",
    "Machine",
    "Nic",
    "NumaNode",
    "NvLink",
    "Place",
    "Plan",
    "PlannedGpu",
    "Policy",
    "RdmaDevice",
    "Route",
    "ToldPath",
    "WorkerPlan",
    "cpu_list",
    "discover",
    "load",
    "parse",
    "route",
]

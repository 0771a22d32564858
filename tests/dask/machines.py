"""Machines that this one is not, to plan for."""

from __future__ import annotations

import json
import os

from backhaul.topology import Machine, discover, parse

__all__ = ["machine_with_gpus"]


def machine_with_gpus(count: int = 2) -> Machine:
    """Give this machine GPUs that it may not have, one near each of its CPUs."""
    found = json.loads(discover().to_json())
    found["gpus"] = [
        {
            "index": index, "uuid": f"GPU-{index}", "name": "recorded", "memory_bytes": 1 << 34,
            "place": {"pci_path": [], "node": None, "cpus": str(cpu)}, "instances": [],
        }
        for index, cpu in enumerate(sorted(os.sched_getaffinity(0))[:count])
    ]  # fmt: skip
    return parse(json.dumps(found))

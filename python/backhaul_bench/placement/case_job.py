"""Simulates cases that are asked for, line by line, in a process with one hash seed."""

from __future__ import annotations

import json
import sys
from typing import Any

from backhaul_bench.placement.described import load_machine
from backhaul_bench.placement.simulation_job import bound_s, simulate
from backhaul_bench.placement.workloads import workload

__all__ = ["main"]


def main() -> None:
    """Answer each line of JSON on standard input with one on standard output."""
    for line in sys.stdin:
        case = json.loads(line)
        machine = load_machine(case["machine"])
        phases = workload(case["workload"], work=machine.work, small=case["small"])
        found = simulate(machine, phases, policy=case["policy"])
        answer: dict[str, Any] = {
            "seconds": found.seconds,
            "bound_s": bound_s(machine, phases[-1]),
            "moved_bytes": found.moved_bytes,
            "crossed_bytes": found.crossed_bytes,
        }
        if case["traced"]:
            answer["trace"] = {"tasks": found.tasks, "transfers": found.transfers}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""``shortcuts``: what each shortcut of a small task is worth, on clusters that differ in it alone.

Each configuration has a cluster of its own, with the switches of the shortcuts before it on, and is
used in turn with the others. ``--switch`` compares two clusters that differ in one switch.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import click

from backhaul._machine import Machine, installed_versions
from backhaul._output import open_console, print_machine
from backhaul_bench import cases, tasks
from backhaul_bench.contenders import Configuration
from backhaul_bench.option_types import ListType
from backhaul_bench.task_tables import tasks_tables
from backhaul_bench.trace import CORE, SHORTCUTS, shortcuts

__all__ = ["main"]

#: Cases, the job of each, and how many tasks it has
_CASES = {
    "submit": ("submit", 200),
    "chain": ("benches.python.shortcuts_job:SubmitChain", 300),
    "map": ("map", 2000),
    "tree": ("tree", 1023),
}


@dataclass(frozen=True, kw_only=True)
class _Options(tasks.Options):
    """Options of the benchmark: clusters that differ in switches."""

    added: bool = True
    core: bool = False
    switch: str | None = None

    @property
    def configurations(self) -> list[Configuration]:
        if self.switch is not None:
            key = f"distributed.comm.backhaul.{self.switch}"
            return [
                Configuration("backhaul", settings=((key, str(is_on)),), settings_name=name)
                for is_on, name in ((False, f"{self.switch} off"), (True, "on"))
            ]
        if not self.added:
            found = [shortcuts((), "none"), shortcuts(SHORTCUTS, "all")]
        else:
            found = [shortcuts((), "none")]
            for count, switch in enumerate(SHORTCUTS, 1):
                name = switch.removeprefix("hot-path.").removesuffix(".enabled")
                found.append(shortcuts(SHORTCUTS[:count], f"+ {name}"))
        if self.core:
            for count, switch in enumerate(CORE, 1):
                name = switch.removeprefix("hot-path.")
                found.append(shortcuts((*SHORTCUTS, *CORE[:count]), f"+ {name}"))
        return found


@click.command("shortcuts")
@click.option("--case", "names", type=ListType(tuple(_CASES), all=tuple(_CASES)), default="all")
@click.option("--repetitions", type=click.IntRange(1), default=7, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--added/--at-once", default=True, help="Each on top of the last, or none and all.")
@click.option("--core", is_flag=True, help="Then the scheduler's core, and its engine, too.")
@click.option("--switch", metavar="NAME", help="Instead, a switch off and on: explain.enabled.")
def main(
    names: tuple[str, ...],
    repetitions: int,
    workers: int,
    added: bool,
    core: bool,
    switch: str | None,
) -> None:
    """Time small tasks with the shortcuts of the hot path added one by one."""
    options = _Options(
        cases=names,
        repetitions=repetitions,
        workers=workers,
        added=added,
        core=core,
        switch=switch,
    )
    console = open_console(wide=True)
    print_machine(console, Machine.here(), installed_versions("backhaul", "distributed"))
    chosen = [_case(name) for name in names]
    report: Any = cases.run(
        "benches.shortcuts/1",
        chosen,
        options,
        rows_of=tasks.task_rows,
        on_step=lambda _what, _left: None,
    )
    report = dataclasses.replace(report, options=options)
    console.print(tasks_tables(report))


def _case(name: str) -> cases.Case:
    job, count = _CASES[name]
    return cases.Case(name, job, {"tasks": count, "function": "module"}, label=name)

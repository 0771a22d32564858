"""The commands of ``backhaul bench``: what a user measures. Developers have ``benches`` besides."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from backhaul._brief import BriefCommand, BriefGroup
from backhaul._options import TargetType, need_dask
from backhaul_bench.command_options import (
    cluster_options,
    json_option,
    named,
    plot_option,
    profile_options,
    run_benchmark,
    saturation,
    verbose_option,
)
from backhaul_bench.memory_cases import CASES as MEMORY_CASES
from backhaul_bench.memory_cases import TRANSPOSE_SUM
from backhaul_bench.option_types import (
    ChunkType,
    ListType,
    PeersType,
    SizesType,
    SizeType,
    SvgTargetType,
)

__all__ = ["bench"]

_APIS = ("async", "blocking")
_LANES = ("auto", "shm", "ucx", "tcp", "inproc")
_CASES = ("map", "chain", "tree", "all-to-all", "submit", "submit-impure", "submit-chain")
_SESSION_CASES = ("map", "chain", "submit", "tree", "mean")
_ARCHITECTURES = ("core", "threads", "workers", "gpu", "gpus")
_AGAINST = ("one-process", "one-process-recycled", "tcp-recycled")
_MACHINES = ("dgx-1", "4-hosts", "slow-nic", "racks", "flat")
#: Known besides, but not run unless it is named
_RELAYED = "dgx-1-relays"
_WORKLOADS = (
    *("transpose", "transpose-persisted", "tree", "stencil", "tensordot", "a+b", "random"),
    "shuffle",
)
_POLICIES = ("upstream", "backhaul")

_F = TypeVar("_F", bound=Callable[..., Any])


def _array_options(*, size: int, chunks: int) -> Callable[[_F], _F]:
    """Add the options of a square array of float64, with their defaults."""
    of_size = click.option(
        "--size", type=click.IntRange(1), default=size, show_default=True, help="Rows of x."
    )
    of_chunks = click.option(
        "--chunks",
        type=ChunkType(),
        default=chunks,
        show_default=True,
        help="Rows of a chunk, or its size, such as 128MiB.",
    )
    return lambda command: of_size(of_chunks(command))


@click.command(cls=BriefCommand, short_help="Latency and bandwidth between two processes.")
@click.option(
    "--sizes",
    type=SizesType(),
    default="8,1KiB,64KiB,1MiB,16MiB",
    show_default=True,
    help="Comma-separated message sizes.",
)
@click.option(
    "--api",
    "apis",
    type=ListType(_APIS, both=_APIS),
    default="both",
    show_default=True,
    help="async, blocking or both.",
)
@click.option(
    "--lane",
    "lanes",
    type=ListType(_LANES),
    default="auto",
    show_default=True,
    help="Comma-separated: auto, shm, ucx, tcp, inproc (two threads of one process).",
)
@click.option(
    "--against",
    type=PeersType(),
    default="none",
    show_default=True,
    help="Comma-separated peers, or all.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(0.01, 60),
    default=0.3,
    show_default=True,
    help="Seconds for one contender at one size in one round.",
)
@click.option(
    "--peer-python",
    "peer_pythons",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Interpreter with peers; default: the one that `make bench` fills.",
)
@click.option(
    "--memory",
    type=click.Choice(["host", "cuda"]),
    default="host",
    show_default=True,
    help="Where messages lie at both ends. cuda: on GPUs, beside copies within one process.",
)
@click.option(
    "--devices",
    type=click.IntRange(0),
    nargs=2,
    default=(0, 0),
    show_default=True,
    help="With --memory cuda: the GPUs of the server and of the client, such as 0 1.",
)
@json_option
@plot_option
@verbose_option
def p2p(*, peer_pythons: tuple[str, ...], **chosen: Any) -> None:
    """Measure latency and bandwidth between two processes."""
    from backhaul_bench import p2p as job
    from backhaul_bench.answers import p2p_answer
    from backhaul_bench.peers import default_pythons
    from backhaul_bench.plots import draw_p2p
    from backhaul_bench.tables import p2p_tables

    if chosen["memory"] == "cuda":
        _check_gpus(chosen)
    pythons = [sys.executable, *peer_pythons] if peer_pythons else default_pythons()
    run_benchmark(job, p2p_tables, {**chosen, "pythons": pythons}, answer=p2p_answer, draw=draw_p2p)


def _check_gpus(chosen: dict[str, Any]) -> None:
    """Refuse what cannot be measured on GPUs."""
    from backhaul import CudaUnavailable, _native

    if chosen["against"]:
        raise click.UsageError("--memory cuda measures no peers: leave --against out")
    elsewhere = [lane for lane in chosen["lanes"] if lane in ("tcp", "ucx")]
    if elsewhere:
        raise click.UsageError(
            f"--memory cuda needs a lane within a host: shm, inproc or auto, got {elsewhere[0]}"
        )
    devices = chosen["devices"]
    try:
        found = _native.cuda_devices()
    except CudaUnavailable as error:
        raise click.ClickException(f"--memory cuda: {error}") from error
    if max(devices) >= len(found):
        raise click.UsageError(
            f"--devices {devices[0]} {devices[1]}: this process sees {len(found)} GPUs"
        )


@click.command(cls=BriefCommand, short_help="What a trivial Dask task costs.")
@click.option(
    "--case",
    "cases",
    type=ListType(_CASES, all=_CASES),
    default="all",
    show_default=True,
    help=f"Comma-separated: {', '.join(_CASES)}.",
)
@click.option(
    "--tasks",
    type=click.IntRange(1),
    help="Tasks of every case [default: 5000, 300, 1023, 100, 200, 200, 300].",
)
@click.option(
    "--function",
    type=click.Choice(["module", "lambda"]),
    default="module",
    show_default=True,
    help="What tasks call: a function that workers import, or one pickled by value.",
)
@click.option(
    "--trace",
    "trace_file",
    metavar="FILE",
    type=TargetType(),
    help="Instead of measuring, write the stages of a submit by process, with shortcuts and "
    "without, as a Chrome trace there and as a picture beside it (.svg).",
)
@saturation("1.1,20")
@cluster_options(repetitions=5)
@profile_options
@plot_option
@verbose_option
def tasks(*, trace_file: str | None, **chosen: Any) -> None:
    """Measure what a trivial Dask task costs: wall-clock, CPU and context switches.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    from backhaul_bench import tasks as job
    from backhaul_bench.answers import tasks_answer
    from backhaul_bench.plots import draw_tasks
    from backhaul_bench.task_tables import tasks_tables

    if trace_file is not None:
        _trace(Path(trace_file), chosen)
        return
    named(chosen, "cases", "--case")
    run_benchmark(job, tasks_tables, chosen, answer=tasks_answer, draw=draw_tasks)


@click.command(cls=BriefCommand, short_help="Small tasks in a session that holds data.")
@click.option(
    "--case",
    "cases",
    type=ListType(_SESSION_CASES, all=_SESSION_CASES),
    default="all",
    show_default=True,
    help=f"Comma-separated: {', '.join(_SESSION_CASES)}.",
)
@click.option(
    "--tasks",
    type=click.IntRange(1),
    help="Tasks of every case [default: 5000, 300, 200, 1023, 2500].",
)
@saturation("1.1")
@cluster_options(repetitions=5)
@profile_options
def session(**chosen: Any) -> None:
    """Measure small tasks in an idle session, and in one that holds data and was looked at.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    from backhaul_bench import session as job
    from backhaul_bench.session_tables import session_table

    named(chosen, "cases", "--case")
    run_benchmark(job, session_table, chosen)


def _trace(path: Path, chosen: dict[str, Any]) -> None:
    """Write a trace of submits, and say what is where."""
    from backhaul_bench import trace
    from backhaul_bench.dask_cluster import BenchmarkFailed
    from backhaul_bench.output import show_progress

    try:
        with show_progress() as on_step:
            recordings = trace.record(
                submits=chosen["tasks"] or trace.SUBMITS,
                workers=chosen["workers"],
                threads=chosen["threads"],
                on_step=on_step,
            )
        picture = trace.write_trace(path, recordings)
    except (BenchmarkFailed, OSError) as error:
        raise click.ClickException(str(error)) from error
    for recording in recordings:
        begin_ns, end_ns = recording.median
        click.echo(f"{recording.label}: {(end_ns - begin_ns) / 1e3:.0f} µs, the median, stamped")
    click.echo(f"{path}: for chrome://tracing or Perfetto\n{picture}: the median submit of each")


@click.command(
    "transpose-sum", cls=BriefCommand, short_help="A Dask array job over each protocol, compared."
)
@_array_options(size=8000, chunks=1000)
@click.option("--warmup", type=click.IntRange(0), default=1, show_default=True, help="Not counted.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the arrays.")
@click.option(
    "--against",
    type=ListType(_AGAINST, all=_AGAINST, none=()),
    default="none",
    show_default=True,
    help="Comma-separated: one-process (as many threads, nothing is moved), one-process-recycled "
    "(and glibc keeps freed memory), tcp-recycled, or all.",
)
@cluster_options(repetitions=5)
@profile_options
@plot_option
@verbose_option
def transpose_sum(**chosen: Any) -> None:
    """Sum x + x.T on Dask workers over each protocol, and compare.

    Exits with 1 if the results differ. Needs the extra `dask`.
    """
    from backhaul_bench import transpose_sum as job
    from backhaul_bench.answers import transpose_sum_answer
    from backhaul_bench.data_tables import transpose_sum_tables
    from backhaul_bench.plots import draw_transpose_sum

    report = run_benchmark(
        job, transpose_sum_tables, chosen, answer=transpose_sum_answer, draw=draw_transpose_sum
    )
    if not report.findings["equal"]:
        sys.exit(1)


@click.command(cls=BriefCommand, short_help="Memory of a whole cluster over time.")
@click.option(
    "--job",
    "jobs",
    type=ListType(tuple(MEMORY_CASES), all=tuple(MEMORY_CASES)),
    default=TRANSPOSE_SUM,
    show_default=True,
    help=f"Comma-separated, or all: {', '.join(MEMORY_CASES)}.",
)
@_array_options(size=12_000, chunks=2000)
@click.option(
    "--scale",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Share of their usual size that jobs other than transpose-sum have.",
)
@click.option(
    "--memory-limit",
    type=SizeType(),
    help="Of each worker [default: 4GB; the spill jobs have less].",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.001),
    default=0.05,
    show_default=True,
    help="Seconds between samples; more where sampling would take a tenth of a CPU.",
)
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(0),
    default=0.5,
    show_default=True,
    help="Seconds from the end of a repetition to the sample at rest.",
)
@cluster_options(repetitions=5)
@verbose_option
def memory(**chosen: Any) -> None:
    """Sample the memory of all processes of a cluster while it runs whole jobs.

    Exits with 1 if a result is wrong. Needs the extra `dask`.
    """
    from backhaul_bench import memory as job
    from backhaul_bench.answers import memory_answer
    from backhaul_bench.memory_tables import memory_tables

    named(chosen, "jobs", "--job")
    run_benchmark(job, memory_tables, chosen, answer=memory_answer)


@click.command(
    "random-array", cls=BriefCommand, short_help="Random numbers on cores, workers and GPUs."
)
@_array_options(size=10_000, chunks=1000)
@click.option(
    "--on",
    type=ListType(_ARCHITECTURES, all=_ARCHITECTURES),
    default="all",
    show_default=True,
    help=f"Comma-separated: {', '.join(_ARCHITECTURES)}.",
)
@click.option("--repetitions", type=click.IntRange(1), default=3, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the arrays.")
@json_option
@verbose_option
def random_array(**chosen: Any) -> None:
    """Sum random numbers on one core, all cores, one GPU and all GPUs.

    Exits with 1 if a result is wrong. Hardware that is missing is left out, with the reason. Needs
    the extra `dask`; GPUs need CuPy.
    """
    from backhaul_bench import random_array as job
    from backhaul_bench.answers import random_array_answer
    from backhaul_bench.data_tables import random_array_tables

    named(chosen, "on", "--on")
    need_dask()
    run_benchmark(job, random_array_tables, chosen, answer=random_array_answer)


class _MachinesType(ListType):
    """Machines by name, or files that describe one."""

    name = "machines"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        from backhaul_bench.placement.described import MachineError, load_machine

        if isinstance(value, tuple):
            return value
        if value == "all":
            return _MACHINES
        names = tuple(dict.fromkeys(filter(None, map(str.strip, value.split(",")))))
        for name in names:
            try:
                load_machine(name)
            except MachineError as error:
                self.fail(str(error), param, ctx)
        return names


@click.command(cls=BriefCommand, short_help="Simulate where Dask puts work, and what it costs.")
@click.option(
    "--machine",
    "machines",
    type=_MachinesType(_MACHINES),
    default="all",
    show_default=True,
    help=f"Comma-separated: {', '.join(_MACHINES)}, all (of these), {_RELAYED}, or files that "
    "describe one (docs/design/placement.md).",
)
@click.option(
    "--workload",
    "workloads",
    type=ListType(_WORKLOADS, all=_WORKLOADS),
    default="all",
    show_default=True,
    help=f"Comma-separated: {', '.join(_WORKLOADS)}.",
)
@click.option(
    "--policy",
    "policies",
    type=ListType(_POLICIES, all=_POLICIES),
    default="all",
    show_default=True,
    help="Comma-separated: who places tasks, upstream or backhaul.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Runs of each, with hash seeds from 0.",
)
@click.option("--small", is_flag=True, help="A few tasks of each workload.")
@click.option(
    "--plot",
    type=SvgTargetType(),
    metavar="FILE",
    help="Draw the first workload on the first machine, as .svg: workers and links over time.",
)
@json_option
@verbose_option
def placement(**chosen: Any) -> None:
    """Simulate where Dask puts work: time over what the workload takes at least.

    Nothing runs but Dask's own scheduler and state machines, in simulated time. Needs the extra
    `dask`.
    """
    from backhaul_bench import placement as job
    from backhaul_bench.answers import placement_answer
    from backhaul_bench.placement.tables import placement_tables

    for name, option in (("machines", "--machine"), ("workloads", "--workload")):
        named(chosen, name, option)
    named(chosen, "policies", "--policy")
    need_dask()
    run_benchmark(job, placement_tables, chosen, answer=placement_answer)


@click.group(cls=BriefGroup, short_help="Measure Backhaul, with its peers in the same run.")
def bench() -> None:
    """Measure Backhaul on this machine, with peers in the same run."""


for command in (p2p, tasks, session, transpose_sum, memory, random_array, placement):
    bench.add_command(command)

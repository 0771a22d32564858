"""The limit of the job that ran last, with evidence.

A scheduler keeps a record of its last runs (`backhaul.dask.scheduler.run_record`), and an account
of links and spills (`backhaul.dask.observe.account`). `explain` reads both and divides the time of
all threads by its use.
"""

from __future__ import annotations

import html
from collections.abc import Awaitable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from distributed import Client, Scheduler

from backhaul.dask.compat.operations import RUNS
from backhaul.dask.observe.account import account_of
from backhaul.dask.observe.counters import timed_bytes_min
from backhaul.dask.observe.job_runs import Run, last_job, read_runs
from backhaul.dask.observe.job_spans import export
from backhaul.dask.observe.job_trace import chrome_trace
from backhaul.dask.observe.ledger import Row
from backhaul.dask.observe.transfers import ask_workers
from backhaul.dask.observe.verdict import Evidence, Link, Site, Spilled, judge
from backhaul.errors import NotObserved

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["Explanation", "explain"]

_COLUMNS: Final = ("threads were", "seconds", "share", "detail")


@dataclass(frozen=True, repr=False)
class Explanation:
    """Limit of a job, and the evidence.

    Attributes
    ----------
    limit : str
        ``compute``, ``transfer``, ``slow-link``, ``spilling``, ``overhead``, ``small-tasks``,
        ``stragglers`` or ``few-tasks``.
    sentence : str
        The same in a sentence.
    evidence : list of Evidence
        Use of the threads' time: name, seconds, share and detail.
    start_s, stop_s : float
        Begin of the first action of the job and end of the last, in seconds since the epoch.
    runs : int
        Runs of the job that the record has.
    is_whole : bool
        The record has all runs of the job; otherwise it has dropped the oldest ones.
    """

    limit: str
    sentence: str
    evidence: list[Evidence]
    start_s: float
    stop_s: float
    runs: int
    is_whole: bool
    _trace: tuple[Sequence[Run], dict[str, Site]]

    def trace(self) -> dict[str, Any]:
        """Return the job as a trace for Perfetto, in Chrome's "Trace Event Format"."""
        return chrome_trace(*self._trace)

    def export_spans(self, tracer_provider: TracerProvider | None = None) -> int:
        """Export the job to OpenTelemetry as one trace, and return the number of its spans.

        The trace has a span for the job, below it one for each run of a task, and below these one
        for each computation, transfer, and read or write of spilled results. Their attribute
        ``backhaul.kind`` is ``task``, ``exchange``, ``compute``, ``transfer`` or ``spill``.

        Parameters
        ----------
        tracer_provider : opentelemetry.trace.TracerProvider, optional
            Provider of the tracer; the one of the process by default.

        Raises
        ------
        ModuleNotFoundError
            If the extra ``otel`` is not installed.
        """
        told = {"limit": self.limit, "sentence": self.sentence, "runs": self.runs}
        return export(*self._trace, told, tracer_provider)

    def as_json(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return {
            "schema": "backhaul.explain/1",
            "limit": self.limit,
            "sentence": self.sentence,
            "start_s": self.start_s,
            "stop_s": self.stop_s,
            "runs": self.runs,
            "is_whole": self.is_whole,
            "evidence": [row._asdict() for row in self.evidence],
        }

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """Rows of the table, as text."""
        return [
            (row.use, f"{row.seconds:.2f}", f"{row.share:.0%}", row.detail) for row in self.evidence
        ]

    def __str__(self) -> str:
        rows = [_COLUMNS, *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([self.sentence, self._extent, "", *lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        head = "".join(f"<th>{column}</th>" for column in _COLUMNS)
        said = f"<p>{html.escape(self.sentence)}<br>{html.escape(self._extent)}</p>"
        return f"{said}<table><tr>{head}</tr>{rows}</table>"

    @property
    def _extent(self) -> str:
        more = "" if self.is_whole else "; the scheduler has dropped earlier ones"
        return f"{self.runs} runs in {self.stop_s - self.start_s:.2f} s{more}"


def explain(
    client: Client, *, since: float | None = None, idle: float = 1.0
) -> Explanation | Awaitable[Explanation]:
    """Find out what limited the job that ran last.

    The job is the runs of tasks since the cluster was last idle. Failed runs do not count.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    since : float, optional
        Instead, runs that ended at or after this time, in seconds since the epoch.
    idle : float, default 1.0
        Seconds without a run that separate two jobs.

    Returns
    -------
    Explanation
        An awaitable of it if the client is asynchronous.

    Raises
    ------
    NotObserved
        If the scheduler keeps no record of runs, or no run has ended.

    Examples
    --------
    >>> found = explain(client)  # doctest: +SKIP
    >>> print(found.sentence)  # doctest: +SKIP
    """
    found: Explanation | Awaitable[Explanation] = client.sync(_explain, client, since, idle)
    return found


async def _explain(client: Client, since_s: float | None, idle_s: float) -> Explanation:
    await ask_workers(client)
    try:
        told = await client.run_on_scheduler(_told, since_s=since_s or 0.0)
    except ModuleNotFoundError:
        told = None
    if told is None:
        raise NotObserved(
            f"{_address(client)} keeps no record of runs: have the scheduler load "
            "backhaul.dask.preload (distributed.scheduler.preload), and leave "
            "distributed.comm.backhaul.explain.enabled true"
        )
    rows, dropped, sites = told
    known = read_runs(rows)
    runs = known if since_s is not None else last_job(known, idle_s)
    if not runs:
        raise NotObserved(f"no run of a task has ended on {_address(client)}")
    start_s = min(run.start_s for run in runs)
    spilled, links = await client.run_on_scheduler(_moved, start_s=start_s)
    sites = _all_sites(runs, sites)
    verdict = judge(runs, sites, Spilled(*spilled), [Link(*link) for link in links])
    return Explanation(
        verdict.limit,
        verdict.sentence,
        verdict.evidence,
        start_s,
        max(run.stop_s for run in runs),
        len(runs),
        not dropped or len(runs) < len(known),
        (runs, sites),
    )


def _address(client: Client) -> str:
    return f"the scheduler {client.scheduler.address}" if client.scheduler else "the scheduler"


def _all_sites(runs: Sequence[Run], known: dict[str, tuple[str, int]]) -> dict[str, Site]:
    """Return name and threads of each worker, those that left included."""
    sites = {address: Site(*site) for address, site in known.items()}
    for address in {run.worker for run in runs} - sites.keys():
        threads = {run.thread for run in runs if run.worker == address}
        sites[address] = Site(address, len(threads))
    return sites


def _told(
    dask_scheduler: Scheduler, since_s: float
) -> tuple[list[Any], int, dict[str, tuple[str, int]]] | None:
    """Return runs, dropped runs and workers; runs on the scheduler."""
    handler: Any = dask_scheduler.handlers.get(RUNS)
    if handler is None:
        return None
    runs, dropped = handler(since_s)
    workers = dask_scheduler.workers.items()
    return runs, dropped, {address: (str(ws.name), ws.nthreads) for address, ws in workers}


def _moved(
    dask_scheduler: Scheduler, start_s: float
) -> tuple[tuple[float, ...], list[tuple[Any, ...]]]:
    """Return spills since a time, and links between workers; runs on the scheduler."""
    account = account_of(dask_scheduler)
    if account is None:
        return (0.0, 0.0, 0.0), []
    metrics = dask_scheduler.cumulative_worker_metrics
    names = {account.current().name_of(address) for address in dask_scheduler.workers}
    rows = account.current().rows()
    return tuple(account.spills.between(start_s, metrics)), _links(rows, names, start_s)


def _links(rows: Iterable[Row], names: Collection[str], start_s: float) -> list[tuple[Any, ...]]:
    """Return sender, receiver and timed messages of the links that were used since a time."""
    links: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        is_timed = row.bytes_min >= timed_bytes_min and row.last_s >= start_s
        if is_timed and row.receiver in names and row.sender in names:
            counts = row.counts
            link = links.setdefault((row.sender, row.receiver), [0.0, 0.0, 0.0])
            for at, amount in enumerate((counts.nbytes, counts.seconds, counts.lent_bytes)):
                link[at] += amount
    return [(*pair, *amounts) for pair, amounts in links.items()]

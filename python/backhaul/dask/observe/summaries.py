"""Summaries of frames of links: a table with one row for each pair of hosts and lane.

`transfers` and `links` return a frame with a row for each link and class of message sizes, which is
more than a person reads. The frame shows its summary instead, as text and in a notebook; all other
methods, and their results, are those of pandas.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from distributed import Scheduler

from backhaul.dask.observe.account import account_of
from backhaul.dask.observe.ledger import LENT_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

__all__ = ["Processes", "link_table", "process_names", "summarized", "transfer_table"]

#: Host and names of the workers of each process, by its name in a frame
Processes: TypeAlias = Mapping[str, tuple[str, list[str]]]

#: Most names of workers that a cell lists
_NAMES_MAX: Final = 4
#: Most rows that the representation of a frame has
_ROWS_MAX: Final = 20
#: Names that the ledger gives to processes without workers
_UNNAMED: Final = re.compile(r"(?:a )?(?P<process>process(?: \d+)?) on (?P<host>.+)")
_NONE: Final = "–"


def process_names(dask_scheduler: Scheduler) -> dict[str, tuple[str, list[str]]]:
    """Return host and names of workers of each process; runs on the scheduler."""
    account = account_of(dask_scheduler)
    if account is None:
        return {}
    ledger = account.current()
    own = ledger.name_of(account.address)
    entries = [
        (ledger.name_of(address), worker.host, str(worker.name))
        for address, worker in dask_scheduler.workers.items()
    ]
    entries.append((own, _process_of(own, {})[0], "scheduler"))
    found: dict[str, tuple[str, list[str]]] = {}
    for name, group in itertools.groupby(sorted(entries), key=operator.itemgetter(0)):
        (_, host, first), *others = group
        found |= {name: (host, [first, *(worker for _, _, worker in others)])}
    return found


def transfer_table(frame: pd.DataFrame, processes: Processes) -> pd.DataFrame:
    """Return the transfers between each two hosts over each lane, those of most bytes first.

    ``GB/s`` is that of the bytes that moved. It is ``lent`` where none did.
    """
    rows = []
    for sender, receiver, lane, link in _by_hosts(frame, processes, ["lane"]):
        timed = link[link["seconds"].notna()]
        nbytes, lent, seconds = (
            float(timed[column].sum()) for column in ("bytes", "lent_bytes", "seconds")
        )
        if nbytes and lent >= LENT_SHARE * nbytes:
            rate = "lent"
        else:
            rate = f"{(nbytes - lent) / seconds / 1e9:.2f}" if seconds else _NONE
        came = int(link["bytes"].sum())
        shown = (_gib(came), _gib(int(link["lent_bytes"].sum())), rate)
        rows.append((came, (sender, receiver, lane, int(link["messages"].sum()), *shown)))
    rows.sort(key=lambda row: -row[0])
    columns = ("from", "to", "lane", "messages", "GiB", "lent GiB", "GB/s")
    return _table([row for _, row in rows], columns)


def link_table(frame: pd.DataFrame, processes: Processes) -> pd.DataFrame:
    """Return the expected speed between each two hosts over each lane, the slowest first.

    Each pair counts with its longest messages. ``GB/s`` and ``µs`` are from the least to the most
    of all pairs; ``lent`` stands for messages that do not move.
    """
    rows = []
    for sender, receiver, lane, link in _by_hosts(frame, processes, ["lane", "memory"]):
        longest = link.sort_values("size_class").drop_duplicates(
            ["receiver", "sender"], keep="last"
        )
        speeds = longest["bandwidth"]
        shown = (
            _range(_gb_per_s(speeds.min()), _gb_per_s(speeds.max())),
            _range(_us(link["latency"].min()), _us(link["latency"].max())),
            int(link["samples"].sum()),
            ", ".join(sorted(set(link["origin"].astype(str)))),
        )
        rows.append((float(speeds.min()), (sender, receiver, lane, len(longest), *shown)))
    rows.sort(key=lambda row: row[0])
    columns = ("from", "to", "lane", "pairs", "GB/s", "µs", "messages", "origin")
    return _table([row for _, row in rows], columns)


def summarized(
    frame: pd.DataFrame,
    table_of: Callable[[pd.DataFrame, Processes], pd.DataFrame],
    processes: Processes,
) -> pd.DataFrame:
    """Return a frame that shows its summary, made by `transfer_table` or `link_table`.

    It has the same rows in a subclass with the method ``summary``. Copies, results of methods and
    unpickled frames are of pandas' own class.
    """
    shown = _summarized_frame()(frame)
    shown.summarize_by(lambda rows: table_of(rows, processes))
    return shown


@functools.cache
def _summarized_frame() -> Any:
    """Make the class of frames with a summary, because pandas is loaded only where it is used."""
    import pandas as pd

    class SummarizedFrame(pd.DataFrame):  # type: ignore[misc]
        """Frame of links that shows one row for each pair of hosts and lane."""

        _metadata = ("_table_of", "_columns_shown")

        def summarize_by(self, table_of: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
            """Set the function that makes the table of the columns that there are now."""
            self._table_of = table_of
            self._columns_shown = tuple(self.columns)

        def summary(self) -> str:
            """Return the table of all pairs of hosts and lanes as text."""
            return _text(self._table_of(self))

        def __repr__(self) -> str:
            if tuple(self.columns) != self._columns_shown:
                return str(super().__repr__())
            table = self._table_of(self)
            return f"{_text(table.head(_ROWS_MAX))}\n{self._rest(table)}"

        def _repr_html_(self) -> str:
            if tuple(self.columns) != self._columns_shown:
                return str(super()._repr_html_())
            table = self._table_of(self)
            return f"{table.head(_ROWS_MAX).to_html(index=False)}<p>{self._rest(table)}</p>"

        def _rest(self, table: Any) -> str:
            left_out = max(0, len(table) - _ROWS_MAX)
            more = f"{left_out} more in summary(); " if left_out else ""
            rows = f"{len(self)} row{'s' * (len(self) != 1)}"
            return f"[{more}{rows} with the columns {', '.join(self.columns)}]"

        def __reduce__(self) -> tuple[Any, ...]:
            return pd.DataFrame, (pd.DataFrame(self),)

    return SummarizedFrame


def _by_hosts(
    frame: pd.DataFrame, processes: Processes, by: list[str]
) -> Iterator[tuple[str, str, str, pd.DataFrame]]:
    """Yield sender, receiver, lane and rows of each pair of hosts."""
    sides = {
        side: frame[side].map(lambda name: _process_of(name, processes)[0])
        for side in ("sender", "receiver")
    }
    lanes, *memory = (frame[each].astype(object).where(frame[each].notna(), _NONE) for each in by)
    ways = [_with_lanes_of_hosts(lanes, *sides.values()), *memory]
    for (_, _, lane, *memory), link in frame.groupby([*sides.values(), *ways], sort=False):
        names = (_side(link[side].unique(), processes) for side in sides)
        is_device = memory == ["device"]
        yield (*names, f"{lane}, device" if is_device else lane, link)


def _with_lanes_of_hosts(lanes: pd.Series, senders: pd.Series, receivers: pd.Series) -> pd.Series:
    """Give a pair that has not met the lane of its hosts, if all others of these have one lane."""
    pairs = list(zip(senders, receivers, strict=True))
    known: dict[tuple[str, str], set[str]] = {}
    for pair, lane in zip(pairs, lanes, strict=True):
        if lane != _NONE:
            known.setdefault(pair, set()).add(lane)
    only = {pair: next(iter(found)) for pair, found in known.items() if len(found) == 1}
    filled = [
        only.get(pair, lane) if lane == _NONE else lane
        for pair, lane in zip(pairs, lanes, strict=True)
    ]
    return type(lanes)(filled, index=lanes.index, dtype=object)


def _side(names: Iterable[str], processes: Processes) -> str:
    """Write the host of some processes with the names of their workers."""
    found = [_process_of(name, processes) for name in names]
    workers = [worker for _, each in found for worker in each]
    if not workers:
        return found[0][0]
    more = f" +{len(workers) - _NAMES_MAX}" if len(workers) > _NAMES_MAX else ""
    return f"{found[0][0]} ({', '.join(workers[:_NAMES_MAX])}{more})"


def _process_of(name: str, processes: Processes) -> tuple[str, list[str]]:
    """Return host and workers of a process; one that left has its address for a name."""
    if (known := processes.get(name)) is not None:
        return known
    if (unnamed := _UNNAMED.fullmatch(name)) is not None:
        return unnamed["host"], [unnamed["process"]]
    address = name.partition(" ")[0]
    host = urlsplit(address).hostname if "://" in address else None
    return (name, []) if host is None else (host, [name])


def _table(rows: list[tuple[Any, ...]], columns: tuple[str, ...]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))


def _text(table: pd.DataFrame) -> str:
    """Write a table with columns that begin two blanks apart, numbers as well as words."""
    if not len(table):
        return "no links"
    rows = [list(table.columns), *([str(cell) for cell in row] for row in table.to_numpy())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(map(str.rstrip, lines))


def _gib(nbytes: int) -> str:
    return "<0.001" if 0 < nbytes < 2**30 / 1000 else f"{nbytes / 2**30:.3f}"


def _gb_per_s(bandwidth: float) -> str:
    return "lent" if math.isinf(bandwidth) else f"{bandwidth / 1e9:.2f}"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.0f}" if seconds >= 1e-5 else f"{1e6 * seconds:.1f}"


def _range(least: str, most: str) -> str:
    return least if least == most else f"{least} – {most}"

"""Received data, exchanges and memory in Dask's metrics for Prometheus: ``/metrics``.

Workers and the scheduler each tell what they received themselves, so a sum over all targets counts
each message once. Labels are the host of the sender, the lane and the class of message sizes. The
sender itself is none: with a thousand workers that would be millions of series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import dask
from backhaul.dask.comm.native_context import memory_watch
from backhaul.dask.observe.counters import (
    OTHERS,
    Flow,
    Sizes,
    add_sizes,
    process_flows,
    size_class_name,
    timed_bytes_min,
)
from backhaul.dask.observe.exchange_counters import exchange_counters

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

__all__ = ["ExchangeCollector", "FlowCollector", "MemoryCollector", "install"]

#: Hosts with a label of their own: the first that sent anything. With four lanes and six classes
#: that is at most 1560 series of each kind, and usually a few dozen.
HOSTS_MAX = 64

_LABELS = ("peer_host", "lane", "size_class")

_is_installed = False


class _Collector:
    """Collector of ``prometheus_client`` that gives nothing when it is registered."""

    def describe(self) -> list[Metric]:
        """Describe no metric, so that nothing is collected."""
        return []


class FlowCollector(_Collector):
    """Gives the counters of this process to ``prometheus_client``."""

    def __init__(self) -> None:
        self._hosts: set[str] = set()

    def collect(self) -> Iterator[Metric]:
        """Read all counters."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def family(name: str, text: str) -> CounterMetricFamily:
            return CounterMetricFamily(_full_name(name), text, labels=_LABELS)

        messages = family("received_messages", "Messages received over Backhaul")
        nbytes = family("received_bytes", "Bytes of messages received over Backhaul")
        lent_bytes = family(
            "received_lent_bytes", "Those bytes that were read where they lay at the sender"
        )
        seconds = family(
            "receiving_seconds",
            "Time in which messages of at least 64 KiB were on their way, overlaps counted once",
        )
        text = "Open connections over Backhaul"
        connections = GaugeMetricFamily(_full_name("connections"), text, labels=("lane",))
        flows = process_flows()
        opened: Counter[str] = Counter()
        for flow in flows:
            opened[flow.lane] += flow.connections
        for lane, count in opened.items():
            connections.add_metric((lane,), count)
        for (host, lane), sizes in self._by_host(flows).items():
            for bytes_min, counts in sizes.items():
                labels = (host, lane, size_class_name(bytes_min))
                messages.add_metric(labels, counts.messages)
                nbytes.add_metric(labels, counts.nbytes)
                lent_bytes.add_metric(labels, counts.lent_bytes)
                if bytes_min >= timed_bytes_min:
                    seconds.add_metric(labels, counts.seconds)
        yield from (messages, nbytes, lent_bytes, seconds, connections)

    def _by_host(self, flows: Iterable[Flow]) -> dict[tuple[str, str], Sizes]:
        found: dict[tuple[str, str], Sizes] = {}
        for flow in flows:
            if len(self._hosts) < HOSTS_MAX:
                self._hosts.add(flow.host)
            host = flow.host if flow.host in self._hosts else OTHERS
            add_sizes(found.setdefault((host, flow.lane), {}), flow.sizes)
        return found


class ExchangeCollector(_Collector):
    """Gives the counters of exchanges of this process to ``prometheus_client``."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Read all counters."""
        from prometheus_client.core import CounterMetricFamily

        total = exchange_counters.total()
        for name, text, in_memory, in_file in (
            ("exchange_blocks", "Blocks of exchanges", total.blocks, total.file_blocks),
            (
                "exchange_block_bytes",
                "Bytes of blocks of exchanges",
                total.block_bytes,
                total.file_bytes,
            ),
        ):
            family = CounterMetricFamily(_full_name(name), text, labels=("place",))
            family.add_metric(("memory",), in_memory)
            family.add_metric(("file",), in_file)
            yield family
        for name, text, count in (
            ("exchange_outputs", "Output partitions of exchanges", total.outputs),
            ("exchange_output_rows", "Rows of those output partitions", total.output_rows),
            ("exchange_chunks", "Chunks of arrays assembled by exchanges", total.chunks),
            ("exchange_chunk_bytes", "Bytes of those chunks", total.chunk_bytes),
            ("exchange_received_blocks", "Blocks from other hosts", total.received),
            ("exchange_received_bytes", "Bytes of those blocks", total.received_bytes),
        ):
            yield CounterMetricFamily(_full_name(name), text, value=count)


class MemoryCollector(_Collector):
    """Gives the memory of this process by its use to ``prometheus_client``."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Measure, where the process has an arena."""
        from prometheus_client.core import GaugeMetricFamily

        watch = memory_watch()
        if watch is None:
            return
        text = "Memory of the process by its use"
        family = GaugeMetricFamily(_full_name("memory_bytes"), text, labels=("kind",))
        for name, nbytes in watch.account().items():
            family.add_metric((name.removesuffix("_bytes"),), nbytes)
        yield family


def _full_name(name: str) -> str:
    namespace = dask.config.get("distributed.dashboard.prometheus.namespace")
    return "_".join(filter(None, (namespace, "backhaul", name)))


def install() -> None:
    """Add Backhaul to ``/metrics`` of this process; again costs nothing.

    Does nothing without ``prometheus_client``, as Dask's own metrics do.
    """
    global _is_installed
    if _is_installed:
        return
    try:
        import prometheus_client
    except ModuleNotFoundError:
        return
    for collector in (FlowCollector(), MemoryCollector(), ExchangeCollector()):
        prometheus_client.REGISTRY.register(collector)
    _is_installed = True

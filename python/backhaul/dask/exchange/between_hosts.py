"""Tasks of an exchange between hosts.

*Transfer* makes one block for each host. *Split* picks the block of one host. *Receive* runs on
that host, so that the block crosses a link, and the host keeps it in memory or in a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from backhaul.dask.exchange.blocks import AnyBlock, Block, HostBlocks, SentBlock, TableBlock
from backhaul.dask.exchange.placing import host_name
from backhaul.dask.exchange.plans import FramePlan, SharedPlan
from backhaul.dask.exchange.transfers import SlotRange, blocks_of, stored
from backhaul.dask.observe.exchange_counters import exchange_counters

__all__ = ["HostsPlan", "receive", "split", "transfer_to_hosts"]


@dataclass(frozen=True, eq=False)
class HostsPlan(SharedPlan):
    """How the rows of one frame are divided between hosts.

    Parameters
    ----------
    frame : FramePlan
        How they are exchanged.
    ranges : tuple of (str, int, int)
        For each host, its name, its first slot, and the one after its last.
    """

    frame: FramePlan
    ranges: tuple[tuple[str, int, int], ...]


def transfer_to_hosts(frame: Any, plan: HostsPlan) -> HostBlocks:
    """Group the rows of an input partition by output partition, in a block for each host.

    Parameters
    ----------
    frame : pandas.DataFrame
        The input partition.
    plan : HostsPlan
        How.

    Raises
    ------
    RuntimeError
        If the partition cannot be exchanged, as upstream's P2P raises it.
    """
    here = host_name()
    ranges = [SlotRange(start, stop, host == here) for host, start, stop in plan.ranges]
    found = blocks_of(frame, plan.frame, ranges)
    return HostBlocks(
        [
            SentBlock(block)
            if isinstance(block, Block | TableBlock) and not slots.stays_here
            else block
            for block, slots in zip(found, ranges, strict=True)
        ]
    )


def split(blocks: HostBlocks, place: int) -> AnyBlock | SentBlock | None:
    """Pick the block for one host."""
    return blocks.blocks[place]


def receive(block: AnyBlock | SentBlock | None, plan: FramePlan) -> AnyBlock | None:
    """Keep a block on the host that needs it; one that was made on this host is there already."""
    if not isinstance(block, SentBlock):
        return block
    arrived = block.arrived()
    exchange_counters.note_received(plan.token, arrived.data_bytes)
    return stored(arrived, plan)

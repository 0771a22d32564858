"""Workers that know one address of a scheduler find the one to speak to."""

from __future__ import annotations

from typing import Any

from distributed import Scheduler
from distributed.security import Security
from distributed.utils_test import gen_test

from backhaul.dask.launch.announce import addresses_of, preferred_address

BOTH: dict[str, Any] = {
    "protocol": ["tcp", "backhaul"], "port": [0, 0], "host": "127.0.0.1", "dashboard": False,
}  # fmt: skip


async def preferred(address: str) -> str:
    """Ask for a Backhaul address, given another one."""
    return await preferred_address(address, protocol="backhaul", security=Security(), timeout_s=30)


@gen_test()
async def test_a_scheduler_that_announces_itself_is_found_by_any_address() -> None:
    async with Scheduler(**BOTH, preload=["backhaul.dask.launch.announce"]) as scheduler:
        by_tcp, by_backhaul = addresses_of(scheduler)
        assert await preferred(by_tcp) == by_backhaul
        assert await preferred(by_backhaul) == by_backhaul
        # Names of the host that was given are kept: the scheduler may know itself by another.
        port = by_tcp.rpartition(":")[2]
        assert (await preferred(f"tcp://localhost:{port}")).startswith("backhaul://localhost:")
        await scheduler.restart(stimulus_id="test")
        assert await preferred(by_tcp) == by_backhaul


@gen_test()
async def test_a_scheduler_that_does_not_is_spoken_to_as_it_was_named() -> None:
    async with Scheduler(**BOTH) as scheduler:
        by_tcp = addresses_of(scheduler)[0]
        assert await preferred(by_tcp) == by_tcp
    async with Scheduler(
        protocol="tcp", host="127.0.0.1", dashboard=False, port=0,
        preload=["backhaul.dask.launch.announce"],
    ) as scheduler:  # fmt: skip
        assert await preferred(scheduler.address) == scheduler.address


@gen_test()
async def test_a_scheduler_that_is_not_there_is_left_to_be_waited_for() -> None:
    assert (
        await preferred_address(
            "tcp://127.0.0.1:1", protocol="backhaul", security=Security(), timeout_s=0.2
        )
        == "tcp://127.0.0.1:1"
    )

"""The codec under a live cluster: every message is written by both, and read by either."""

from __future__ import annotations

from collections import Counter
from itertools import cycle
from typing import Any

import dask.array as da
import distributed
import numpy as np
import pytest
from distributed.protocol import core
from distributed.utils_test import gen_test

import dask
from backhaul.dask.serialize import codec

TASK = b"backhaul.dask.serialize.codec"


class Watch:
    """Stands in for Dask's codec, and checks ours against it."""

    def __init__(self) -> None:
        self.ops: Counter[str] = Counter()
        self.tasks = 0
        self.turn = cycle([True, False])

    def dumps(self, msg: Any, **options: Any) -> list[Any]:
        theirs = core.dumps(msg, **options)
        encoded = codec.encode(msg, **options)
        assert encoded is not None
        ours = encoded.frames
        assert encoded.message_bytes == sum(len(bytes(frame)) for frame in ours)
        assert len(ours) == len(theirs)
        for our, their in zip(map(bytes, ours), map(bytes, theirs), strict=True):
            if our == their:
                continue
            # Only tasks are pickled in another way.
            assert TASK in our
            self.tasks += 1
            frames = [b"\x81\xab__Pickled__\x01"]
            found = codec.loads([*frames, our])
            assert type(found) is type(core.loads([*frames, their]))
            assert found.key == core.loads([*frames, our]).key
        for part in msg if isinstance(msg, (list, tuple)) else [msg]:
            if isinstance(part, dict):
                self.ops[part.get("op") or part.get("status") or "result"] += 1
        return ours if next(self.turn) else theirs

    def loads(self, frames: list[Any], **options: Any) -> Any:
        return codec.loads(frames, **options) if next(self.turn) else core.loads(frames, **options)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    monkeypatch.setattr(distributed.protocol, "dumps", watch.dumps)
    monkeypatch.setattr(distributed.protocol, "loads", watch.loads)
    return watch


@gen_test()
async def test_a_cluster_runs_on_both_codecs_at_once(watch: Watch) -> None:
    async with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            asynchronous=True,
            dashboard_address=":0",
        ) as cluster,
        distributed.Client(cluster, asynchronous=True) as client,
    ):
        assert await client.gather(client.map(lambda x: x + 1, range(50))) == [*range(1, 51)]
        scattered = await client.scatter(np.arange(1000), broadcast=True)
        assert await client.submit(np.sum, scattered) == 499500
        with pytest.raises(ZeroDivisionError):
            await client.submit(lambda: 1 / 0)
        x = da.ones((200, 200), chunks=(50, 50))
        assert await client.compute((x + x.T).sum()) == 80_000.0
        with dask.config.set({"array.rechunk.method": "p2p"}):
            assert await client.compute(x.rechunk((200, 20)).sum()) == 40_000.0
        await client.run(lambda: {1, 2})
        stuck = client.map(lambda i: i, range(20), workers=[cluster.workers[0].address])
        await client.gather(stuck)
        await client.who_has()
    assert watch.ops["compute-task"] >= 80
    assert watch.ops["task-finished"] >= 80
    assert watch.ops["task-erred"] >= 1
    assert watch.tasks >= 50

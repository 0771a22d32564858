"""`benches.python.codec`: it runs, and measures what it says."""

from __future__ import annotations

from benches.python import codec


def test_every_message_is_measured_alone_and_in_a_batch() -> None:
    rows = codec.run(rounds=2, round_messages=1)
    assert [row.batch for row in rows] == [1, 100] * 3
    for row in rows:
        for found in (row.dask_write_us, row.dask_read_us, row.our_write_us, row.our_read_us):
            assert 0 < found.minimum <= found.median <= found.maximum
        assert row.speedup > 0

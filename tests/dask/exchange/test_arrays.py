"""Chunks of a rechunked array equal those of upstream's P2P, and are assembled by one task each."""

from __future__ import annotations

import itertools
import logging
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dask
from backhaul.dask.exchange import arrays
from backhaul.dask.exchange.chunk_parts import cut, part_of
from tests.dask.exchange.conftest import SWITCH

da = pytest.importorskip("dask.array")


def chunks_of(array: Any) -> list[Any]:
    """Compute the chunks of an array, in C order of their places."""
    delayed = array.to_delayed(optimize_graph=False)
    return list(dask.compute(*delayed.ravel().tolist()))


def persisted(client: Client, make: Callable[[], Any], *, by_exchange: bool) -> list[Any]:
    """Compute the chunks of a persisted array by the exchange or by P2P."""
    with dask.config.set({SWITCH: "auto" if by_exchange else "off"}):
        return chunks_of(client.persist(make()))


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note for each layer that rechunks whether its chunks are assembled without P2P."""
    seen: list[bool] = []
    original = arrays.direct_graph

    def direct_graph(layer: Any, cluster: Any) -> Any:
        graph = original(layer, cluster)
        seen.append(graph is not None)
        return graph

    monkeypatch.setattr(arrays, "direct_graph", direct_graph)
    return seen


def source(shape: tuple[int, ...], chunks: Any, dtype: Any = "f8") -> Any:
    """Make an array whose elements are all different, under a new name."""
    values = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    return da.from_array(values, chunks=chunks, name=False)


def rechunked(array: Any, chunks: Any) -> Any:
    return array.rechunk(chunks, method="p2p")


def objects() -> Any:
    values = np.empty((6, 6), dtype=object)
    for place in np.ndindex(6, 6):
        values[place] = [place]
    return da.from_array(values, chunks=(2, 6), name=False)


def masked() -> Any:
    values = np.ma.masked_greater(np.arange(36.0).reshape(6, 6), 20)
    return da.from_array(values, chunks=(2, 6), name=False)


def structured() -> Any:
    values = np.zeros(24, dtype=[("a", "i2"), ("b", "f8")])
    values["a"] = np.arange(24)
    return da.from_array(values, chunks=5, name=False)


CASES: dict[str, Callable[[], Any]] = {
    "rows to columns": lambda: rechunked(source((40, 30), (7, 30)), (40, 4)),
    "three axes": lambda: rechunked(source((8, 9, 10), (2, 9, 3)), (8, 2, 10)),
    "parts that are independent": lambda: rechunked(source((40, 30), (4, 30)), (20, 15)),
    "chunks of many sizes": lambda: rechunked(
        source((30,), ((1, 9, 0, 13, 7),)), ((12, 0, 3, 15),)
    ),
    "one output chunk": lambda: rechunked(source((9, 9), (3, 3)), (9, 9)),
    "some output chunks": lambda: rechunked(source((40, 30), (7, 30)), (40, 4))[:, 5:14],
    "a part of a chunk": lambda: rechunked(source((12,), (6,)), (4,))[:4],
    "transposed": lambda: rechunked(source((40, 30), (7, 30)).T, (4, 40)),
    "other bytes first": lambda: rechunked(source((20, 20), (5, 20), ">i4"), (20, 5)),
    "complex": lambda: rechunked(source((20, 20), (5, 20), "c16"), (20, 5)),
    "structured": lambda: rechunked(structured(), 7),
    "times": lambda: rechunked(source((20, 20), (5, 20), "M8[s]"), (20, 5)),
    "text": lambda: rechunked(source((20, 20), (5, 20), "U5"), (20, 5)),
    "objects": lambda: rechunked(objects(), (6, 2)),
    "masked": lambda: rechunked(masked(), (6, 2)),
    "Fortran's order": lambda: rechunked(
        source((40, 30), (7, 30)).map_blocks(np.asfortranarray), (40, 4)
    ),
    "read-only": lambda: rechunked(
        source((40, 30), (7, 30)).map_blocks(lambda x: np.broadcast_to(x[:1], x.shape)), (40, 4)
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_chunks_are_equal(client: Client, direct: list[bool], case: str) -> None:
    expected = persisted(client, CASES[case], by_exchange=False)
    assert not direct
    found = persisted(client, CASES[case], by_exchange=True)
    assert direct
    assert all(direct)
    assert len(found) == len(expected)
    for ours, upstreams in zip(found, expected, strict=True):
        assert type(ours) is type(upstreams)
        # P2P loses the order of bytes when it pickles, and then has not the type of the metadata.
        assert ours.dtype in (upstreams.dtype, upstreams.dtype.newbyteorder())
        assert ours.dtype == CASES[case]().dtype
        assert ours.flags.writeable
        np.testing.assert_array_equal(ours, upstreams)
        if isinstance(ours, np.ma.MaskedArray):
            np.testing.assert_array_equal(ours.mask, upstreams.mask)


def ones(block: Any) -> Any:
    return np.ones((3, 4))


def test_a_chunk_of_another_shape_than_its_metadata_says_is_as_with_p2p(client: Client) -> None:
    def make() -> Any:
        return rechunked(source((6, 6), (3, 6)).map_blocks(ones), (6, 3))

    outcomes = []
    for by_exchange in (False, True):
        try:
            outcomes.append(
                [x.tolist() for x in persisted(client, make, by_exchange=by_exchange)[0]]
            )
        except ValueError as error:
            outcomes.append([type(error)])
    assert outcomes[0] == outcomes[1]


def add_in_place(chunk: Any) -> Any:
    chunk += 100
    return chunk


def test_an_output_chunk_is_private_and_writable(client: Client, direct: list[bool]) -> None:
    chunks = (50_000, 50_000)
    whole = client.persist(da.arange(100_000, chunks=(chunks,), dtype="f8"))
    # The first chunk of the output is the first of the input.
    parts = client.persist(rechunked(whole, ((50_000, 10_000, 40_000),)))
    changed = client.persist(parts.map_blocks(add_in_place, dtype="f8"))
    np.testing.assert_array_equal(changed.compute(), np.arange(100_000.0) + 100)
    np.testing.assert_array_equal(whole.compute(), np.arange(100_000.0))
    assert direct == [True]


def test_a_rechunk_by_the_exchange_is_logged(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "backhaul.dask.exchange.arrays"):
        persisted(client, lambda: rechunked(source((40, 30), (7, 30)), {1: 4}), by_exchange=True)
    assert "The exchange makes rechunk-p2p-" in caplog.text


def test_an_array_of_unknown_sizes_is_left_to_p2p(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> Any:
        array = source((40, 30), (7, 30))
        return rechunked(array[array[:, 0] >= 0], {1: 4})

    def sizes(client: Client, by_exchange: bool) -> list[Any]:
        with caplog.at_level(logging.INFO, "backhaul.dask.exchange.arrays"):
            return persisted(client, make, by_exchange=by_exchange)

    for ours, upstreams in zip(sizes(client, True), sizes(client, False), strict=True):
        np.testing.assert_array_equal(ours, upstreams)
    assert "the size of a chunk is unknown" in caplog.text


def test_an_error_of_ours_leaves_the_layer_to_p2p(
    client: Client,
    direct: list[bool],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(layer: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(arrays, "_graph", fail)
    with caplog.at_level(logging.INFO, "backhaul.dask.exchange.arrays"):
        found = persisted(client, CASES["rows to columns"], by_exchange=True)
    assert "ZeroDivisionError('on purpose')" in caplog.text
    assert direct == [False]
    expected = np.arange(1200.0).reshape(40, 30)
    np.testing.assert_array_equal(np.concatenate(found, axis=1), expected)


@pytest.mark.parametrize(
    ("limit", "value", "reason"),
    [
        ("_EDGES_MAX", 2, "pairs of chunks overlap, more than 2"),
        ("_ELEMENT_BYTES", math.inf, "GB"),
    ],
)
def test_what_is_too_large_is_left_to_p2p(
    client: Client,
    direct: list[bool],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: float,
    reason: str,
) -> None:
    monkeypatch.setattr(arrays, limit, value)
    if limit == "_ELEMENT_BYTES":
        original = arrays._refusal
        monkeypatch.setattr(
            arrays,
            "_refusal",
            lambda layer, cluster: original(layer, type(cluster)(4, 1e9, 0, None)),
        )
    with caplog.at_level(logging.INFO, "backhaul.dask.exchange.arrays"):
        found = persisted(client, CASES["rows to columns"], by_exchange=True)
    assert reason in caplog.text
    assert direct == [False]
    expected = np.arange(1200.0).reshape(40, 30)
    np.testing.assert_array_equal(np.concatenate(found, axis=1), expected)


HALVES = [((0, 6), (0, 2)), ((0, 6), (2, 3))]
CHUNKS: dict[str, Callable[[], Any]] = {
    "rows": lambda: np.arange(36.0).reshape(6, 6),
    "columns": lambda: np.arange(36.0).reshape(6, 6, order="F"),
    "times": lambda: np.arange(36).reshape(6, 6).astype("M8[s]"),
    "without bytes": lambda: np.empty((6, 6), "U0"),
    "masked": lambda: np.ma.masked_greater(np.arange(36.0).reshape(6, 6), 20),
    "objects": lambda: objects().compute(scheduler="sync"),
}


@pytest.mark.parametrize("kind", CHUNKS)
@pytest.mark.parametrize("bounds", [HALVES, [((0, 6), (0, 6))]])
def test_parts_for_another_host_have_no_more_of_the_chunk(kind: str, bounds: Any) -> None:
    chunk = CHUNKS[kind]()
    found = cut(chunk, "another", bounds)
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(found, protocol=5, buffer_callback=buffers.append)
    sent = sum(buffer.raw().nbytes for buffer in buffers)
    found = pickle.loads(pickled, buffers=buffers)
    expected = [part_of(chunk, each) for each in bounds]
    for place, (part, each) in enumerate(zip(expected, bounds, strict=True)):
        part_found = found.part(place, each)
        assert type(part_found) is type(chunk)
        assert part_found.dtype == chunk.dtype
        np.testing.assert_array_equal(part_found, part)
    assert sent <= sum(part.nbytes for part in expected)
    if type(chunk) is np.ndarray and not chunk.dtype.hasobject:
        assert found.data_bytes == sum(part.nbytes for part in expected)


def cuts(random: np.random.Generator, size: int) -> tuple[int, ...]:
    """Cut an axis at random places, some of them twice."""
    places = sorted(random.integers(0, size + 1, random.integers(0, 6)).tolist())
    return tuple(stop - start for start, stop in itertools.pairwise([0, *places, size]))


@pytest.mark.once(reason="sizes, which no release of Dask decides")
def test_random_rechunks_are_equal(client: Client, direct: list[bool]) -> None:
    random = np.random.default_rng(46)
    for _ in range(10):
        shape = tuple(random.integers(1, 20, random.integers(1, 5)).tolist())
        values = random.random(shape)
        chunks = [tuple(cuts(random, size) for size in shape) for _ in range(3)]
        part = tuple(slice(int(random.integers(0, size)), None) for size in shape)
        for wanted in (part, (slice(None),) * len(shape)):
            # Under a name that no other graph has: Dask fuses its tasks differently.
            array = da.from_array(values, chunks=chunks[0], name=False)
            result = rechunked(rechunked(array, chunks[1]), chunks[2])
            np.testing.assert_array_equal(result[wanted].compute(), values[wanted])
    assert len(direct) > 10
    assert all(direct)

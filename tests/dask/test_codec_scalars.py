"""Numbers and short text that are serialized, which the codec writes without Dask's machinery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import pytest
from distributed.metrics import context_meter
from distributed.protocol import core
from distributed.protocol.serialize import Serialize, Serialized, dask_serialize

from backhaul.dask.serialize import codec

SCALARS = [0, -1, 2**100, 2**10_000, 1.5, float("inf"), True, None, "", "text", "ä€\0"]
#: Objects that are no scalars, or scalars without a known header
OTHERS = [b"", b"x", 1j, ..., "x" * 1000, "x" * 100_000, "x__main__", (1,), [2], {"a": 3}, int]


class Odd(int):
    pass


def plain(frames: list[Any]) -> list[bytes]:
    return [bytes(frame) for frame in frames]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"context": {}},
        {"context": {"compression": "zlib", "pickle-protocol": 4}},
        {"context": {"compression": None, "pickle-protocol": None}},
        {"frame_split_size": 500},
        {"serializers": ["pickle"]},
        {"serializers": ["msgpack", "pickle"]},
        {"serializers": ("dask", "pickle")},
    ],
    ids=repr,
)
def test_scalars_are_written_and_read_as_dask_does(options: dict[str, Any]) -> None:
    message = {"data": {i: Serialize(x) for i, x in enumerate([*SCALARS, *OTHERS, Odd(5)])}}
    frames = codec.dumps(message, **options)
    assert plain(frames) == plain(core.dumps(message, **options))
    received: list[Any] = [memoryview(bytearray(frame)) for frame in frames]
    found = codec.loads(received)
    assert repr(found) == repr(core.loads(frames))
    kept = codec.loads(received, deserialize=False)
    theirs = core.loads(frames, deserialize=False)
    for key, part in kept["data"].items():
        assert type(part) is Serialized
        assert part.header == theirs["data"][key].header
        assert plain(part.frames) == plain(theirs["data"][key].frames)
    # As a scheduler passes them on.
    assert plain(codec.dumps(kept)) == plain(frames)


def test_serialized_scalars_have_nothing_in_common() -> None:
    frames = codec.dumps([Serialize(1), Serialize(2)])
    one, other = codec.loads(frames, deserialize=False)
    one.header["mine"] = True
    one.frames.append(b"")
    assert "mine" not in other.header
    assert len(other.frames) == 1
    assert codec.loads(frames) == (1, 2)


@pytest.fixture
def registered() -> Iterator[None]:
    dask_serialize.register(int, lambda number: ({}, [b"%d" % number]))
    yield
    del dask_serialize._lookup[int]


@pytest.mark.usefixtures("registered")
def test_a_registered_serializer_is_used() -> None:
    message = [Serialize(5), Serialize("text")]
    frames = codec.dumps(message)
    assert frames[2] == b"5"
    assert plain(frames) == plain(core.dumps(message))


@pytest.mark.parametrize("allowed", [["dask"], ["pickle"], ("dask", "pickle"), []], ids=repr)
def test_families_are_respected(allowed: Any) -> None:
    frames = codec.dumps([Serialize(5)])
    if "pickle" in allowed:
        assert codec.loads(frames, deserializers=allowed) == (5,)
    else:
        with pytest.raises(TypeError, match="only able to deserialize"):
            codec.loads(frames, deserializers=allowed)
    (kept,) = codec.loads(frames, deserialize=False, deserializers=allowed)
    assert kept.header["serializer"] == "pickle"


@pytest.mark.parametrize("deserialize", [True, False])
@pytest.mark.parametrize(
    "damage",
    [lambda frames: frames[:2], lambda frames: frames[:1], lambda frames: [*frames[:2], b"\x80"]],
    ids=["no pickle", "no header", "half a pickle"],
)
def test_damaged_scalars_are_refused_as_dask_does(
    deserialize: bool, damage: Callable[[list[Any]], list[Any]]
) -> None:
    frames = damage(codec.dumps([Serialize(5)]))
    outcomes = []
    for loads in (codec.loads, core.loads):
        try:
            outcomes.append(repr(loads(frames, deserialize)[0].frames))
        except Exception as error:
            outcomes.append(f"{type(error).__name__}: {error}")
    assert outcomes[0] == outcomes[1]


def measured(work: Callable[[], object]) -> dict[tuple[Hashable, str], float]:
    """Sum up what is measured meanwhile, by label and unit."""
    found: Counter[tuple[Hashable, str]] = Counter()

    def add(label: Hashable, value: float, unit: str) -> None:
        found[label, unit] += value  # type: ignore[assignment]

    with context_meter.add_callback(add):
        work()
    return dict(found)


def test_measurements_have_the_same_labels() -> None:
    message = [Serialize(i) for i in range(100)]
    frames = codec.dumps(message)
    written = measured(lambda: codec.dumps(message))
    assert written.keys() == measured(lambda: core.dumps(message)).keys()
    assert written["serialize", "seconds"] > 0
    read = measured(lambda: codec.loads(frames))
    assert read.keys() == measured(lambda: core.loads(frames)).keys()
    assert read["deserialize", "seconds"] > 0
    assert not measured(lambda: codec.loads(codec.dumps([1, "a"])))


def test_many_scalars_are_weighed() -> None:
    message = {i: Serialize(i) for i in range(1000)}
    assert codec.encode(message, inline_bytes_max=10_000) is None
    full = codec.encode(message, inline_bytes_max=1_000_000)
    assert full is not None
    assert full.message_bytes == sum(map(len, plain(full.frames)))

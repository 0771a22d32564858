"""A worker's store is the same whether the short ways are taken or not."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backhaul.dask.compat import activation
from backhaul.dask.compat.names import SpillBuffer, WorkerStateMachine, context_meter
from backhaul.dask.worker.lazy_collections import data_of
from backhaul.dask.worker.spill_buffer import (
    QuickSpillBuffer,
    install_for_worker,
    read_all,
    share_lock,
)

TARGET_BYTES = 4_000


class Unpicklable:
    """Cannot be spilled."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __sizeof__(self) -> int:
        return self._size

    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


@pytest.fixture(autouse=True)
def dasks_own() -> Any:
    """Remove all patches of Dask meanwhile."""
    were_installed = bool(activation.installed())
    activation.uninstall()
    yield
    if were_installed:
        activation.install()


def state_of(store: SpillBuffer) -> dict[str, Any]:
    fast: Any = store.fast
    slow: Any = store.slow
    return {
        "fast": dict(fast.d),
        "order": list(fast.order),
        "heavy": list(fast.heavy),
        "weights": dict(fast.weights),
        "total": fast.total_weight,
        "cancelled": (dict(store._cancel_restore), dict(fast._cancel_evict)),
        "slow": sorted(slow.data),
        "updated": dict(slow._last_updated),
        "errors": set(store.logged_pickle_errors),
        "length": len(store),
    }


def outcome(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def read_one_by_one(store: SpillBuffer, keys: list[str]) -> dict[str, Any]:
    return {key: store[key] for key in keys}


def metered(read: Any, store: SpillBuffer, keys: list[str]) -> Any:
    """Read, and add up what was measured of memory."""
    totals: Counter[Any] = Counter()

    def measured(label: Any, value: float, unit: str) -> None:
        if unit != "seconds":
            totals[label, unit] += value  # type: ignore[assignment]

    with context_meter.add_callback(measured):
        found = outcome(read, store, keys)
    in_store = {name: value for name, value in store.cumulative_metrics.items() if value}
    return found, (totals, {n: v for n, v in in_store.items() if n[1] != "seconds"})


@pytest.mark.parametrize("seed", range(30))
def test_every_step_leaves_the_store_that_dask_leaves(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    ours = QuickSpillBuffer(str(tmp_path / "ours"), target=TARGET_BYTES)
    share_lock(ours)
    theirs = SpillBuffer(str(tmp_path / "theirs"), target=TARGET_BYTES)
    values: list[Any] = [b"x" * 10, b"y" * 900, b"z" * (TARGET_BYTES + 1), 1, Unpicklable(700)]
    for _ in range(400):
        key = f"key-{chance.randrange(12)}"
        step = chance.random()
        if step < 0.5:
            value = chance.choice(values)
            assert outcome(ours.__setitem__, key, value) == outcome(theirs.__setitem__, key, value)
        elif step < 0.75:
            assert outcome(ours.__delitem__, key) == outcome(theirs.__delitem__, key)
        elif step < 0.9:
            assert outcome(ours.__getitem__, key) == outcome(theirs.__getitem__, key)
        elif step < 0.93:
            keys = [f"key-{number}" for number in chance.sample(range(12), chance.randint(1, 4))]
            if (chance.random() < 0.9) and theirs.fast.d:
                keys = [key for key in keys if key in theirs.fast]
            assert metered(read_all, ours, keys) == metered(read_one_by_one, theirs, keys)
        elif step < 0.96:
            assert ours.evict() == theirs.evict() if theirs.fast.d else True
        else:
            ours.offset = theirs.offset = chance.choice((0, 0, TARGET_BYTES // 2))
        assert (key in ours) == (key in theirs)
        assert state_of(ours) == state_of(theirs)


def test_a_store_of_another_class_is_its_own(tmp_path: Path) -> None:
    class Counting(SpillBuffer):
        """Has its own way to evict."""

    worker: Any = SimpleNamespace(state=WorkerStateMachine(data=Counting(str(tmp_path), 1)))
    install_for_worker(worker)
    assert type(data_of(worker)) is Counting

"""A worker's store is the same whether the short ways are taken or not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from backhaul.dask import activation
from backhaul.dask.private import SpillBuffer
from backhaul.dask.spill_paths import quick_contains, quick_delitem, quick_setitem

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
    """Have nothing of Dask's replaced meanwhile."""
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


@pytest.mark.parametrize("seed", range(30))
def test_every_step_leaves_the_store_that_dask_leaves(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    ours = SpillBuffer(str(tmp_path / "ours"), target=TARGET_BYTES)
    theirs = SpillBuffer(str(tmp_path / "theirs"), target=TARGET_BYTES)
    store = quick_setitem(SpillBuffer.__setitem__)
    let_go = quick_delitem(SpillBuffer.__delitem__)
    has = quick_contains(SpillBuffer.__contains__)
    values: list[Any] = [b"x" * 10, b"y" * 900, b"z" * (TARGET_BYTES + 1), 1, Unpicklable(700)]
    for _ in range(400):
        key = f"key-{chance.randrange(12)}"
        step = chance.random()
        if step < 0.5:
            value = chance.choice(values)
            assert outcome(store, ours, key, value) == outcome(theirs.__setitem__, key, value)
        elif step < 0.75:
            assert outcome(let_go, ours, key) == outcome(theirs.__delitem__, key)
        elif step < 0.9:
            assert outcome(ours.__getitem__, key) == outcome(theirs.__getitem__, key)
        elif step < 0.95:
            assert ours.evict() == theirs.evict() if theirs.fast.d else True
        else:
            ours.offset = theirs.offset = chance.choice((0, 0, TARGET_BYTES // 2))
        assert has(ours, key) == (key in theirs)
        assert state_of(ours) == state_of(theirs)


def test_a_store_of_another_class_is_its_own(tmp_path: Path) -> None:
    class Counting(SpillBuffer):
        """Has a way of its own to let go."""

    counting = Counting(str(tmp_path), target=TARGET_BYTES)
    calls: list[Any] = []
    quick_setitem(lambda _, key, value: calls.append((key, value)))(counting, "x", 1)
    quick_delitem(lambda _, key: calls.append(key))(counting, "x")
    assert calls == [("x", 1), "x"]

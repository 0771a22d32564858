"""Collections: Delayed, bags, arrays, dataframes; shuffles, rechunks, `compute`, `persist`."""

from __future__ import annotations

import operator
from typing import Any

import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import futures_of, wait

import dask
from tests.dask.like_tcp.kit import Observation, Run, outcome, program


def add(x: Any, y: Any = 1) -> Any:
    return x + y


def raised(function: Any) -> Any:
    """Returns the type of the exception that a call raises, of which several may come first."""
    return outcome(function).text["raised"]


def frame(rows: int = 2000) -> pd.DataFrame:
    generator = np.random.default_rng(5)
    return pd.DataFrame({
        "key": generator.integers(0, 50, rows), "value": generator.random(rows).round(6),
        "text": generator.integers(0, 9, rows).astype(str),
    })  # fmt: skip


@program()
def delayed(run: Run) -> Observation:
    """Delayed calls, attributes, methods, several outputs, names and nested arguments."""
    one = dask.delayed(add)(1, 2)
    pair = dask.delayed(divmod, nout=2)(7, 3)
    text = dask.delayed("a,b").split(",")
    nested = dask.delayed(sum)([one, [one, 2][0], {"x": one}["x"]])
    named = dask.delayed(add, name="named", pure=True)(5, dask_key_name="the-key")
    found = [dask.compute(one, *pair, text, nested, named), named.key]
    found.append((one * 2 + pair[0]).compute())
    persisted = nested.persist()
    found += [persisted.compute(), [each.status for each in futures_of(persisted)]]
    found.append(outcome(dask.delayed(operator.truediv)(1, 0).compute))
    found.append(run.client.compute({"a": one, "b": [pair[1]]}, traverse=True))
    found[-1] = run.client.gather(found[-1])
    return found


@program()
def bags(run: Run) -> Observation:
    """Bags that map, filter, fold, group and take."""
    bag = db.from_sequence(range(100), npartitions=5)
    return [
        bag.map(add, 1).filter(lambda x: x % 3 == 0).sum().compute(),
        bag.fold(operator.add).compute(),
        sorted(bag.groupby(lambda x: x % 3).map(lambda kv: (kv[0], sum(kv[1]))).compute()),
        bag.take(3), bag.topk(2).compute(), bag.frequencies().count().compute(),
        bag.map_partitions(lambda part: [len(list(part))]).compute(),
        raised(bag.map(lambda x: 1 // (x - 50)).compute),
        dask.compute(bag.min(), bag.max(), bag.mean()),
    ]  # fmt: skip


@program(logs=False)
def arrays(run: Run) -> Observation:
    """Arrays: sums, transposes, products, slices, rechunks, overlap and persisted ones."""
    x = da.arange(240_000, chunks=20_000).reshape((400, 600)).rechunk((100, 200)).astype(float)
    y = x.persist()
    wait(y)
    return [
        x.sum().compute(), (y + 1).mean(axis=0).compute(),
        (y[:400, :400] + y[:400, :400].T).compute(),
        y.rechunk((400, 50)).compute(), y.rechunk((40, 600)).T.compute(), y[::7, 3].compute(),
        da.dot(y, y.T).compute(), y.map_blocks(lambda b: b[::-1]).compute(),
        da.overlap.overlap(y, depth=1, boundary="none").sum().compute(),
        da.histogram(y, bins=5, range=(0, 240_000))[0].compute(), y.std().compute(),
        raised(y.map_blocks(lambda b: b.no_such, dtype=float).compute),
    ]  # fmt: skip


@program()
def shuffles(run: Run) -> Observation:
    """Shuffles, joins, groups and sorts of dataframes, by tasks and by P2P."""
    data = dd.from_pandas(frame(), npartitions=6)
    found: list[Any] = []
    for method in ("tasks", "p2p"):
        with dask.config.set({"dataframe.shuffle.method": method}):
            shuffled = data.shuffle("key").compute()
            found.append(shuffled.sort_values(["key", "value"]).reset_index(drop=True))
            joined = data.merge(data[["key", "value"]].rename(columns={"value": "v"}), on="key")
            found.append(joined.groupby("key").v.count().compute().sort_index())
            found.append(data.set_index("value").compute().index)
            found.append(
                data.groupby("text")
                .agg({"value": ["sum", "min"]}, split_out=2)
                .compute()
                .sort_index()
                .round(6)
            )
            found.append(data.sort_values("value").head(5))
    return found


@program()
def frames(run: Run) -> Observation:
    """Dataframes: maps, selections, categories, persisted ones, errors, metadata."""
    data = dd.from_pandas(frame(), npartitions=4)
    kept = data.persist()
    wait(kept)
    return [
        kept.value.sum().compute().round(6), kept[kept.key > 40].compute(), len(kept),
        kept.text.astype("category").cat.as_known().compute().value_counts().sort_index(),
        kept.map_partitions(lambda part: part.assign(n=len(part))).tail(3),
        kept.describe().compute(),
        # One of them: which of several fails first, and is logged, differs from run to run.
        raised(kept.partitions[0].map_partitions(lambda x: x.no_such, meta=data._meta).compute),
        kept.repartition(npartitions=2).compute().shape, kept.nlargest(3, "value").compute(),
        dask.compute(kept.key.max(), kept.key.nunique(), kept.value.mean().round(3)),
    ]  # fmt: skip


@program()
def normalized(run: Run) -> Observation:
    """Futures within collections, tokens of futures, collections within tasks."""
    future = run.client.submit(add, 1, 2, key="token")
    value = dask.delayed(add)(future, dask.delayed(add)(future))
    table = run.client.scatter(frame(100), hash=True)
    lazy = dd.from_delayed([dask.delayed(table), dask.delayed(table)], meta=frame(1))
    return [
        value.compute(), lazy.key.sum().compute(),
        run.client.submit(lambda f: f.key.sum(), table, key="sum").result(),
        dask.base.tokenize(future) == dask.base.tokenize(run.client.submit(add, 1, 2, key="token")),
        run.client.get_executor().submit(add, 5).result(),
        list(run.client.get_executor(pure=False).map(add, [1, 2])),
    ]  # fmt: skip

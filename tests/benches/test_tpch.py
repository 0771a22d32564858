"""Answers of TPC-H over Backhaul, at a hundredth of the smallest scale of the specification."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from distributed import Client, LocalCluster

import dask
from backhaul_bench.dask_cluster import BenchmarkFailed
from benches.python.tpch.bench import Options, make_data
from benches.python.tpch.query_job import Query
from tests.dask.conftest import FORKED

#: Merges by exchange on one key and on two, inner, left and semi, and aggregations of them
QUERIES = (3, 4, 9, 18, 21)
OPTIONS = Options(queries=QUERIES, scale=0.01, parts=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make the tables, and DuckDB's answers."""
    made = str(tmp_path_factory.mktemp("tpch"))
    make_data(made, OPTIONS)
    return made


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Connect to two workers."""
    with (
        dask.config.set(FORKED),
        LocalCluster(
            protocol="backhaul", n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def prepared(client: Client, folder: str, number: int) -> Any:
    query: Any = Query(folder=folder, scale=OPTIONS.scale, number=number)
    query.prepare(client)
    assert query.input_bytes > 0
    return query


@pytest.mark.parametrize("number", QUERIES)
def test_answers_are_those_of_duckdb(client: Client, folder: str, number: int) -> None:
    query = prepared(client, folder, number)
    query.run(client)
    assert len(query.result) > 0
    query.check(client)


def test_a_changed_answer_is_found(client: Client, folder: str) -> None:
    query = prepared(client, folder, 4)
    query.run(client)
    query.result.loc[0, "order_count"] += 1
    with pytest.raises(ValueError, match="wrong answer of query 4"):
        query.check(client)


def test_a_query_that_does_not_exist_is_named(tmp_path: Any) -> None:
    with pytest.raises(BenchmarkFailed, match="queries 1 to 22"):
        make_data(str(tmp_path), Options(queries=(1, 23)))

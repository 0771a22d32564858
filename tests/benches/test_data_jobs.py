"""Jobs that move data: wrong results are found, and small runs of each command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from distributed import Client

from backhaul_bench.jobs import Job, make_job
from benches.python import out_of_core
from benches.python.__main__ import main
from benches.python.shuffle_job import OPERATIONS

if TYPE_CHECKING:
    from tests.benches.conftest import RunJson

# Chunks that do not divide their array, partitions with fewer rows than there are keys
RECHUNK = "benches.python.rechunk_job:Rechunk"
SHUFFLE = "benches.python.shuffle_job:Shuffle"
GRIDS = "backhaul_bench.grid_job"
BROADCAST = "benches.python.broadcast_job:Broadcast"
MERGE = "benches.python.merge_job:Merge"
_DATA = {"method": "p2p", "partitions": 3, "rows": 50, "columns": 2}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "rechunk by p2p": (RECHUNK, {"method": "p2p", "size": 50, "chunks": 20}),
    "transpose": (RECHUNK, {"method": "p2p", "size": 50, "chunks": 20, "transpose": True}),
    "rechunk by tasks": (RECHUNK, {"method": "tasks", "size": 50, "chunks": 20}),
    "shuffle by p2p": (SHUFFLE, _DATA),
    "shuffle by tasks": (SHUFFLE, {"method": "tasks", "partitions": 3, "rows": 50, "columns": 1}),
    **{
        operation: (SHUFFLE, {"operation": operation, "text": True, **_DATA})
        for operation in OPERATIONS
    },
    "merge by pandas": (MERGE, {"shuffle": "p2p", "pandas": True, "partitions": 3, "rows": 50}),
    "scatter": (BROADCAST, {"way": "scatter", "nbytes": 1_000_000}),
    "replicate": (BROADCAST, {"way": "replicate", "nbytes": 1_000_000}),
    "fetch": (BROADCAST, {"way": "fetch", "nbytes": 1_000_000}),
    "anomaly": (f"{GRIDS}:Anomaly", {"nbytes": 1}),
    "vorticity": (f"{GRIDS}:Vorticity", {"nbytes": 1}),
    "quadratic means": (f"{GRIDS}:QuadraticMeans", {"nbytes": 1}),
    "transpose-sum": ("transpose-sum", {"size": 50, "chunks": 20}),
}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client(
        processes=False, n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as client:
        yield client


def prepared(name: str, client: Client) -> Job:
    job, parameters = JOBS[name]
    made = make_job(job, **parameters, seed=3)
    made.prepare(client)
    return made


@pytest.mark.parametrize("name", JOBS)
def test_a_right_result_passes(name: str, client: Client) -> None:
    job = prepared(name, client)
    assert job.input_bytes > 0
    job.run(client)
    job.check(client)


@pytest.mark.parametrize("name", ["rechunk by tasks", "transpose-sum"])
def test_a_changed_element_is_found(name: str, client: Client) -> None:
    job = prepared(name, client)
    job.run(client)
    job.result = job.result + 1
    with pytest.raises(ValueError, match="wrong result"):
        job.check(client)


def test_a_changed_mean_is_found(client: Client) -> None:
    job = prepared("quadratic means", client)
    job.run(client)
    assert job.facts(client) == {"restarted": 0}
    job.result[2] += 0.01
    with pytest.raises(ValueError, match="wrong result"):
        job.check(client)


def test_the_inputs_of_grids_are_multiples_of_the_memory() -> None:
    options = out_of_core.Options(
        jobs=("transpose", "anomaly", "vorticity", "quadratic-means"), memory_limit="1GB", times=3.0
    )
    for name in options.jobs:
        case = out_of_core._case(name, options)
        nbytes = make_job(case.job, **case.parameters, seed=0).input_bytes
        wanted = 8 * options.size**2 if name == "transpose" else 6e9
        assert nbytes == pytest.approx(wanted, rel=0.01)


def test_an_array_that_kept_its_chunks_is_found(client: Client) -> None:
    job: Any = prepared("rechunk by tasks", client)
    job.result = job._array
    with pytest.raises(ValueError, match=r"\(3, 1\) chunks"):
        job.check(client)


def test_a_dataframe_that_was_not_shuffled_is_found(client: Client) -> None:
    # More rows than keys, so that a key is in several partitions
    job: Any = make_job(SHUFFLE, method="tasks", partitions=3, rows=9_000, columns=1, seed=3)
    job.prepare(client)
    job.result = job._frame
    with pytest.raises(ValueError, match="keys in each partition"):
        job.check(client)


def test_a_dataframe_in_another_order_is_found(client: Client) -> None:
    job = prepared("sort_values", client)
    job.run(client)
    job.result = job.result.map_partitions(lambda part: part[::-1])
    with pytest.raises(ValueError, match="another order"):
        job.check(client)


def test_an_array_that_one_worker_lacks_is_found(client: Client) -> None:
    with pytest.raises(ValueError, match="1 of 2 have it"):
        prepared("replicate", client).check(client)


def test_an_array_that_arrived_changed_is_found(client: Client) -> None:
    job: Any = prepared("replicate", client)
    job.run(client)
    job._seed += 1
    with pytest.raises(ValueError, match="checksums"):
        job.check(client)


def check_rows(report: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert [(row["case"], row["configuration"]) for row in report["rows"]] == expected
    for row in report["rows"]:
        assert 0 < row["seconds_min"] <= row["seconds_median"] <= row["seconds_max"]
        assert row["input_bytes_per_s"] == pytest.approx(row["input_bytes"] / row["seconds_median"])
        assert set(row["cpu_seconds"]) == {"client", "scheduler", "workers"}
        assert row["page_faults"]["workers"][0] >= 0


def test_the_rows_of_a_dataframe_are_shuffled(run_json: RunJson) -> None:
    report = run_json(
        *("shuffle", "--chunks", "2", "--rows-per-worker", "1000"),
        *("--repetitions", "1", "--protocol", "backhaul"),
    )
    assert report["schema"] == "backhaul.benches.shuffle/1"
    check_rows(report, [("p2p, 2", "backhaul")])
    assert report["rows"][0]["input_bytes"] == 2000 * 40
    assert report["lanes"] == {"backhaul": ["shm"]}


def test_an_array_is_rechunked_both_ways(run_json: RunJson) -> None:
    report = run_json(
        *("rechunk", "--size", "200", "--chunks", "90", "--repetitions", "1"),
        *("--protocol", "backhaul"),
    )
    assert report["schema"] == "backhaul.benches.rechunk/1"
    contenders = [("p2p, 90", "backhaul"), ("tasks, 90", "backhaul"), ("tasks, 90", "memcpy")]
    check_rows(report, contenders)


def test_copies_of_an_array_are_counted(run_json: RunJson) -> None:
    report = run_json(
        *("broadcast", "--size", "64MiB", "--workers", "2", "--repetitions", "1"),
        *("--protocol", "tcp", "--way", "scatter,replicate"),
    )
    assert report["schema"] == "backhaul.benches.broadcast/1"
    check_rows(report, [("scatter", "tcp"), ("replicate", "tcp")])
    scatter, replicate = (row["copies"] for row in report["rows"])
    # Two workers and, scattering, the client have one each; the rest is what allocators keep.
    assert 2.5 < scatter[0] < 5
    assert 1.5 < replicate[0] < 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shuffle", "--method", "disk"], "'disk' is not one of: p2p, tasks"),
        (["shuffle", "--operation", "set"], "'set' is not one of: shuffle, set_index"),
        (["rechunk", "--method", ","], "name at least one"),
        (["rechunk", "--size", "0"], "0 is not in the range"),
        (["rechunk", "--chunks", "0"], "0 is not above 0"),
        (["broadcast", "--way", "shout"], "'shout' is not one of: scatter, replicate, fetch"),
        (["broadcast", "--size", "4"], "4 is less than 8 bytes"),
        (["alloc", "--allocator", "magic"], "'magic' is not one of: stock, recycled"),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())

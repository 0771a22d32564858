"""Spans for OpenTelemetry of jobs that ran, in the SDK's exporter to memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, wait
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import dask
from backhaul.dask import explain

MIB = 1 << 20


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Start two workers in processes of their own, which spill results beyond 120 MiB."""
    config = {
        "distributed.worker.memory.target": 0.3,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.terminate": False,
    }
    with (
        dask.config.set(config),
        LocalCluster(
            protocol="backhaul",
            n_workers=2,
            threads_per_worker=1,
            memory_limit="400 MiB",
            dashboard_address=None,
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        yield client


def spans_of(client: Client, start_s: float) -> tuple[Any, list[ReadableSpan]]:
    """Explain the runs since a time, and export them to memory."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    found: Any = explain(client, since=start_s)
    count = found.export_spans(provider)
    spans = list(exporter.get_finished_spans())
    assert count == len(spans)
    return found, spans


def kinds(spans: list[ReadableSpan]) -> Counter[Any]:
    return Counter((span.attributes or {}).get("backhaul.kind") for span in spans)


def test_job_is_one_trace_with_a_span_for_each_task_and_action(client: Client) -> None:
    start_s = time.time()
    here, there = client.scheduler_info()["workers"]
    made = client.map(np.full, [2 * MIB] * 3, [1, 2, 3], workers=[here])
    wait(client.map(np.sum, made, workers=[there]))
    found, spans = spans_of(client, start_s)
    by_id = {span.context.span_id: span for span in spans}
    assert len({span.context.trace_id for span in spans}) == 1
    (job,) = (span for span in spans if span.parent is None)
    assert job.name == "job"
    assert dict(job.attributes or {})["backhaul.limit"] == found.limit
    assert (job.start_time, job.end_time) == (int(found.start_s * 1e9), int(found.stop_s * 1e9))
    tasks = [span for span in spans if span.parent and by_id[span.parent.span_id] is job]
    assert Counter(span.name for span in tasks) == {"full": 3, "sum": 3}
    assert {(span.attributes or {})["dask.worker"] for span in tasks} == {here, there}
    actions = [span for span in spans if span is not job and span not in tasks]
    assert Counter(span.name for span in actions)["compute"] == 6
    assert kinds(spans)["transfer"] >= 1
    for span in actions:
        parent = by_id[span.parent.span_id]  # type: ignore[union-attr]
        assert parent.start_time <= span.start_time <= span.end_time <= parent.end_time  # type: ignore[operator]


def test_exchanges_and_spills_have_spans(client: Client) -> None:
    start_s = time.time()
    rows = pd.DataFrame({"key": range(2000), "value": range(2000)})
    frame = dd.from_pandas(rows, npartitions=4)
    assert len(frame.shuffle("key").compute()) == 2000
    _, spans = spans_of(client, start_s)
    assert kinds(spans)["exchange"] >= 1
    start_s = time.time()
    kept = client.map(np.ones, [5 * MIB + number for number in range(8)])
    wait(kept)
    assert sum(client.gather(client.map(len, kept))) == 8 * 5 * MIB + 28
    _, spans = spans_of(client, start_s)
    assert kinds(spans)["spill"] >= 1


def test_missing_sdk_is_named_with_the_extra(client: Client) -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from backhaul.dask.observe.job_spans import export\n"
        "export([], {}, {}, None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: traces for OpenTelemetry need its SDK, which is not installed: "
        "pip install 'backhaul[otel]'"
    )

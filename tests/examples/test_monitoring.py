"""The board for Grafana and the alert rules use metrics and labels that a cluster has."""

from __future__ import annotations

import importlib
import json
import re
import sys
import urllib.request
from typing import Any

import numpy as np
import pytest
import yaml
from distributed import Client, LocalCluster, Worker, wait

import dask
from tests.documents.written import ROOT

FOLDER = ROOT / "examples" / "monitoring"
METRIC = re.compile(r"\bdask_\w+")
SELECTED = re.compile(r"(dask_\w+)\{([^}]*)\}")
#: Labels of Prometheus' own
OF_TARGETS = {"instance", "job"}


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
    return found


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> dict[str, str]:
    """Return the queries of panels and rules, by title."""
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in board()["panels"]
        for target in panel["targets"]
    }
    return {**found, **{rule["alert"]: rule["expr"] for rule in rules()}}


def evict(dask_worker: Worker) -> None:
    store: Any = dask_worker.data
    while store.fast:
        store.evict()


@pytest.fixture(scope="module")
def metrics() -> dict[str, list[dict[str, str]]]:
    """Return the labels of the samples of each metric of a worker that has received data."""
    with (
        # It would drop the copy that is spilled below.
        dask.config.set({"distributed.scheduler.active-memory-manager.start": False}),
        LocalCluster(
            protocol="backhaul", n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        workers: Any = client.scheduler_info(n_workers=-1)["workers"]
        here, there = workers
        made = client.submit(np.ones, 1 << 20, workers=[here])
        total = client.submit(np.sum, made, workers=[there])
        wait(total)
        # Spills the copy there, and reads it back.
        cloudpickle = importlib.import_module("cloudpickle")
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        client.run(evict, workers=[there])
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
        assert client.submit(len, made, workers=[there]).result() == 1 << 20
        url = f"http://{workers[there]['host']}:{workers[there]['services']['dashboard']}/metrics"
        with urllib.request.urlopen(url, timeout=300) as answer:
            lines = answer.read().decode().splitlines()
    found: dict[str, list[dict[str, str]]] = {}
    for line in lines:
        if line.startswith("# TYPE "):
            found.setdefault(line.split()[2], [])
        elif (sample := re.match(r"(\w+)(?:\{(.*)\})? ", line)) is not None:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', sample[2] or ""))
            found.setdefault(sample[1], []).append(labels)
    return found


@pytest.mark.parametrize("title", expressions())
def test_queries_name_metrics_and_labels_that_exist(
    title: str, metrics: dict[str, list[dict[str, str]]]
) -> None:
    query = expressions()[title]
    names = METRIC.findall(query)
    assert names
    assert not [name for name in names if name not in metrics]
    for name, selected in SELECTED.findall(query):
        labels = set(re.findall(r'(\w+)[=!]~?"', selected)) - OF_TARGETS
        assert all(labels <= sample.keys() for sample in metrics[name]), labels
        for label, value in re.findall(r'(\w+)=~?"([^"$]*)"', selected):
            values = {sample[label] for sample in metrics[name]}
            assert set(value.split("|")) <= values, (label, value)
    grouped = re.findall(r"by \(([\w, ]+)\)", query)
    labels = {label.strip() for group in grouped for label in group.split(",")} - OF_TARGETS
    assert all(labels <= sample.keys() for name in names for sample in metrics[name])
    assert query.count("(") == query.count(")")


def test_connections_are_counted_by_lane(metrics: dict[str, list[dict[str, str]]]) -> None:
    assert {sample["lane"] for sample in metrics["dask_backhaul_connections"]} >= {"shm"}


def test_rules_say_what_to_do() -> None:
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert set(rule["annotations"]) == {"summary", "description"}
        assert rule["labels"]["severity"] in {"info", "warning"}


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells

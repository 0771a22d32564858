"""The resource for the operator of dask-kubernetes, and values for Dask's Helm chart."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml
from distributed import Client

from backhaul.dask.launch.command import main as dask_backhaul
from tests.dask.conftest import Program
from tests.documents.written import ROOT

FILE = ROOT / "examples" / "kubernetes" / "daskcluster.yaml"
#: Variables that the operator sets for a worker; the host is one that can be found here
VARIABLES = {
    "$(DASK_SCHEDULER_ADDRESS)": "tcp://localhost:8786",
    "$(DASK_WORKER_NAME)": "backhaul-default-worker-0123456789",
}


def spec() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))["spec"]
    return found


def parsed(part: str) -> dict[str, Any]:
    """Read the arguments of a container as the command does."""
    (container,) = spec()[part]["spec"]["containers"]
    dask, group, name, *arguments = container["args"]
    assert (dask, group, name) == ("dask", "backhaul", part)
    given = [VARIABLES.get(argument, argument) for argument in arguments]
    assert not [argument for argument in given if "$(" in argument]
    return dask_backhaul.commands[name].make_context(name, given).params


def test_worker_has_the_address_and_the_name_of_the_operator() -> None:
    found = parsed("worker")
    assert found["scheduler"] == VARIABLES["$(DASK_SCHEDULER_ADDRESS)"]
    assert found["name"] == VARIABLES["$(DASK_WORKER_NAME)"]


def test_service_has_the_ports_of_the_scheduler() -> None:
    assert parsed("scheduler")["port"] is None
    help_of_port = dask_backhaul.commands["scheduler"].get_help(
        click.Context(dask_backhaul.commands["scheduler"], terminal_width=200)
    )
    (defaults,) = re.findall(r"--port TEXT +Serving port +\[default: ([\d,]+)\]", help_of_port)
    ports = [int(port) for port in defaults.split(",")]
    scheduler = spec()["scheduler"]
    (container,) = scheduler["spec"]["containers"]
    opened = {port["name"]: port["containerPort"] for port in container["ports"]}
    served = {port["targetPort"]: port["port"] for port in scheduler["service"]["ports"]}
    assert opened == served
    assert sorted([*ports, 8787]) == sorted(opened.values())


def strict(schema: Any) -> None:
    """Refuse fields that a schema does not have, which the API server would drop in silence."""
    if isinstance(schema, dict):
        if schema.get("x-kubernetes-int-or-string"):
            schema.pop("type", None)
        if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema.setdefault("additionalProperties", False)
    for each in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(each, dict | list):
            strict(each)


def test_resource_fits_the_schema_of_the_operator() -> None:
    reason = "needs the package dask-kubernetes, whose dependencies no other test has"
    pytest.importorskip("dask_kubernetes", reason=reason)
    jsonschema = pytest.importorskip("jsonschema")
    chart = files("dask_kubernetes") / "operator/deployment/helm/dask-kubernetes-operator"
    crd = yaml.safe_load((chart / "crds" / "daskcluster.yaml").read_text(encoding="utf-8"))
    controller = files("dask_kubernetes") / "operator/controller/controller.py"
    sets = re.findall(r'"name": "(DASK_\w+)"', controller.read_text(encoding="utf-8"))
    assert {f"$({name})" for name in sets} == set(VARIABLES)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    strict(schema["properties"]["spec"])
    jsonschema.validate(yaml.safe_load(FILE.read_text(encoding="utf-8")), schema)
    wrong = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    wrong["spec"]["worker"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    with pytest.raises(jsonschema.ValidationError, match="imagePolicy"):
        jsonschema.validate(wrong, schema)


#: Keys of the chart's own values, of 2026-06-12: it drops others in silence
KEYS: Final = {
    "scheduler": "enabled env extraArgs image livenessProbe readinessProbe replicas resources",
    "worker": "env extraArgs image livenessProbe readinessProbe replicas resources",
    "jupyter": "enabled env",
    "image": "repository tag pullPolicy pullSecrets",
}
VALUES: dict[str, Any] = yaml.safe_load((FILE.parent / "values.yaml").read_text(encoding="utf-8"))


def test_values_are_keys_of_the_chart() -> None:
    assert VALUES["jupyter"] == {"enabled": False}
    for part in VALUES:
        assert set(VALUES[part]) <= set(KEYS[part].split())
        assert set(VALUES[part].get("image", {})) <= set(KEYS["image"].split())


def test_chart_renders_the_values() -> None:
    """Needs a checkout of github.com/dask/helm-chart, and Helm's engine (helm-python-sdk)."""
    chart = os.environ.get("BACKHAUL_HELM_CHART")
    if chart is None:
        pytest.skip("BACKHAUL_HELM_CHART names no folder with Dask's chart")
    rendered = (
        pytest.importorskip("helm_python.chart")
        .Chart.load(chart)
        .render(values=VALUES, name="fast")
    )
    containers = {}
    for part in ("scheduler", "worker"):
        deployment = yaml.safe_load(rendered[f"dask/templates/dask-{part}-deployment.yaml"])
        assert deployment["spec"]["replicas"] == VALUES[part].get("replicas", 1)
        (containers[part],) = deployment["spec"]["template"]["spec"]["containers"]
        assert containers[part]["image"] == "IMAGE:latest"
    limits = VALUES["worker"]["resources"]["limits"]
    assert containers["scheduler"]["args"] == [
        *("dask-scheduler", "--port=8786", "--dashboard-address=:8787"),
        *VALUES["scheduler"]["extraArgs"],
    ]
    assert containers["scheduler"]["livenessProbe"] == VALUES["scheduler"]["livenessProbe"]
    assert containers["worker"]["args"] == [
        *("dask-worker", "fast-dask-scheduler:8786"),
        *("--nthreads", str(limits["cpu"]), "--memory-limit", limits["memory"]),
        *("--no-dashboard", "--dashboard-address", "8790"),
    ]
    assert containers["worker"]["env"] == VALUES["worker"]["env"]
    assert containers["worker"]["resources"] == VALUES["worker"]["resources"]
    assert not any("jupyter" in name and text.strip() for name, text in rendered.items())


def program_of_the_chart(name: str, *arguments: str) -> Program:
    """Start a container of the chart with its values; the image has Dask's old command names."""
    part = name.removeprefix("dask-")
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (names,) = re.findall(r"for part in ([\w ]+); do", image)
    assert part in names.split()
    assert "exec dask %s" in image
    values = VALUES[part]
    env = {each["name"]: each["value"] for each in values.get("env", ())}
    return Program("-m", "dask", part, *arguments, *values.get("extraArgs", ()), env=env)


def test_cluster_of_the_chart_speaks_backhaul() -> None:
    """The arguments are those of the templates, but for ports of this test."""
    limits = VALUES["worker"]["resources"]["limits"]
    programs = [program_of_the_chart("dask-scheduler", "--port=0", "--dashboard-address=:0")]
    try:
        address = programs[0].wait_for(r"Scheduler at: +(backhaul://\S+)")
        worker = [address.removeprefix("backhaul://"), "--nthreads", str(limits["cpu"])]
        worker += ["--memory-limit", limits["memory"], "--no-dashboard"]
        programs.append(program_of_the_chart("dask-worker", *worker, "--dashboard-address", "0"))
        with Client(address) as client:
            client.wait_for_workers(1)
            assert client.submit(sum, [1, 2]).result() == 3
            ((worker_address, found),) = client.scheduler_info()["workers"].items()
        assert worker_address.startswith("backhaul://")
        assert found["nthreads"] == limits["cpu"]
    finally:
        for program in programs:
            program.kill()


def test_image_has_the_commands_of_the_chart(tmp_path: Path) -> None:
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (loop,) = re.findall(r"(for part in .*?done)", image.replace("\\\n", ""), re.DOTALL)
    subprocess.run(["sh", "-ec", loop.replace("/opt/backhaul/bin", str(tmp_path))], check=True)
    dask = shutil.which("dask", path=str(Path(sys.executable).parent))
    assert dask is not None
    for part in ("scheduler", "worker"):
        done = subprocess.run(
            [tmp_path / f"dask-{part}", "--help"],
            env={"PATH": f"{Path(dask).parent}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"dask {part} [OPTIONS]" in done.stdout

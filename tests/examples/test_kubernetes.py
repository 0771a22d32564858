"""The resource for the operator of dask-kubernetes: its commands, ports and schema."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import click
import pytest
import yaml

from backhaul.dask.launch.command import main as dask_backhaul
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
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    strict(schema["properties"]["spec"])
    jsonschema.validate(yaml.safe_load(FILE.read_text(encoding="utf-8")), schema)
    wrong = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    wrong["spec"]["worker"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    with pytest.raises(jsonschema.ValidationError, match="imagePolicy"):
        jsonschema.validate(wrong, schema)

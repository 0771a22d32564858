"""The pages of the reference that are made of the source say what it says.

``BACKHAUL_WRITE_DOCS=1 python -m pytest tests/documents`` writes them anew.
"""

from __future__ import annotations

import ast
import re

import yaml

import backhaul.dask
import backhaul.errors
import backhaul.topology
from tests.documents import commands, configuration, errors, variables
from tests.documents.written import ROOT, assert_said


def test_every_key_of_the_configuration_is_in_its_reference() -> None:
    page = configuration.page()
    tree = yaml.safe_load(configuration.DEFAULTS.read_text(encoding="utf-8"))
    listed = [key for key, is_section in configuration.entries() if not is_section]
    assert sorted(key.name for key in listed) == sorted(configuration.flat(tree))
    assert len(listed) > 40
    assert not [key.name for key in listed if not key.meaning]
    assert_said("docs/reference/configuration.md", page)


def test_every_command_and_option_is_in_its_reference() -> None:
    page = commands.page()
    assert page.count("\n## ") >= 15
    assert_said("docs/reference/commands.md", page)


def test_every_error_is_in_its_reference() -> None:
    assert_said("docs/reference/errors.md", errors.page())


def test_every_variable_that_is_read_is_in_its_reference_and_no_other() -> None:
    text = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^\| `([A-Z_]+)`", text, re.MULTILINE))
    read = variables.read_by_the_source()
    assert len(read) > 8
    assert read <= told, read - told
    assert told <= read | variables.READ_BY_OTHERS, told - read


def test_every_counter_for_prometheus_is_in_its_reference() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    source = (ROOT / "python" / "backhaul" / "dask" / "observe" / "prometheus.py").read_text(
        encoding="utf-8"
    )
    names = {
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"(dask_)?backhaul_\w+|receiv\w+_\w+|exchange_\w+", node.value)
    }
    assert names
    assert not [name for name in names if name not in text]


#: Names that users do not call: Dask does, by the entry points
FOR_DASK = {"BackhaulBackend", "BackhaulComm", "BackhaulConnector", "BackhaulListener", "backend"}


def test_every_public_name_of_the_api_is_in_its_reference() -> None:
    folder = ROOT / "docs" / "reference"
    pages = "\n".join(page.read_text(encoding="utf-8") for page in folder.glob("api*.md"))
    told = set(re.findall(r"^::: \S+\.(\w+)$", pages, re.MULTILINE))
    named = {*backhaul.__all__, *backhaul.dask.__all__, *backhaul.topology.__all__}
    elsewhere = {*backhaul.errors.__all__, *FOR_DASK, "Settings", "__version__"}
    assert not named - told - elsewhere

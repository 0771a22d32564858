"""The notebook runs from top to bottom, in a kernel of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "first-steps.ipynb"

#: Of a machine that is busy with other things
WATCHDOG_S = 300


@pytest.mark.timeout(WATCHDOG_S + 30)
def test_the_notebook_runs_and_is_kept_without_results(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)

    client = nbclient.NotebookClient(
        notebook,
        timeout=WATCHDOG_S,
        kernel_name="python3",
        resources={"metadata": {"path": tmp_path}},
    )
    with client.setup_kernel():
        # Its kernel is this interpreter, not whatever is called python on the path.
        assert client.km.kernel_spec.argv[0] == sys.executable or sys.prefix in str(
            client.km.kernel_spec.resource_dir
        )
        for index, cell in enumerate(notebook.cells):
            client.execute_cell(cell, index)
    texts = "".join(str(output) for cell in cells for output in cell.outputs)
    assert all(word in texts for word in ("'inproc'", "'shm'", "8000000.0"))

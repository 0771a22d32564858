"""Development benchmarks: ``python -m benches.python COMMAND``, in a checkout.

Benchmarks for users are in the wheel: ``backhaul bench``. These answer questions of those who
change Backhaul.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from benches.python import (
    codec,
    idle,
    imports,
    links,
    looks,
    order,
    overproduction,
    page,
    placement,
    shortcuts,
    slots,
    store,
    tls,
    versus,
)
from benches.python.commands import COMMANDS

__all__ = ["main"]

_CHECKOUT = Path(__file__).parents[2]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Measure parts of Backhaul, and what Dask does with it."""
    # The processes of a cluster import the jobs from here.
    paths = [str(_CHECKOUT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


for command in (
    *COMMANDS,
    codec.main,
    idle.main,
    imports.main,
    links.main,
    looks.main,
    order.main,
    overproduction.main,
    page.main,
    placement.main,
    shortcuts.main,
    slots.main,
    store.main,
    tls.main,
    versus.main,
):
    main.add_command(command)


if __name__ == "__main__":
    main(prog_name="python -m benches.python")

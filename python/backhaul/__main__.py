"""``python -m backhaul``: the ``backhaul`` command."""

from __future__ import annotations

from backhaul.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main(prog_name="python -m backhaul")

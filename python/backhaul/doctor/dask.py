"""Dask: whether it is there in a release that was read, and which accelerations fit."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator

from backhaul.doctor.findings import Finding, State

__all__ = ["examine"]


def examine() -> Iterator[Finding]:
    """Look at Dask, if it is installed, without changing it."""
    missing = [name for name in ("dask", "distributed") if importlib.util.find_spec(name) is None]
    if missing:
        said = f"{', '.join(missing)} is not installed"
        yield Finding("dask", "distributed", State.ABSENT, said, "pip install 'backhaul[dask]'")
        return
    yield _lanes()
    from backhaul.dask.activation import SUPPORTED
    from backhaul.dask.config import is_choice, switched_on
    from backhaul.dask.patches import PATCHES

    version = importlib.metadata.version("distributed")
    oldest, newest = (_release(each) for each in SUPPORTED.split(" to "))
    if oldest <= _release(version) <= newest:
        yield Finding("dask", "distributed", State.WORKS, f"{version}, of {SUPPORTED}")
    else:
        advice = f"pip install 'backhaul[dask]' brings one of {SUPPORTED}; what was not read of"
        advice += " another release runs as Dask has it"
        yield Finding("dask", "distributed", State.LIMITED, f"{version}, not {SUPPORTED}", advice)
    yield _extras()
    on, off, refused = [], set(), {}
    for patch in PATCHES:
        if not switched_on(patch.switch):
            if is_choice(patch.switch):
                off.add(patch.switch)
        elif (refusal := patch.refusal()) is not None:
            refused[str(patch)] = refusal
        else:
            on.append(patch)
    # Accelerations that are switched off are not counted, because they are not installed.
    said = f"{len(on)} of {len(on) + len(refused)} accelerations fit this release"
    if not refused:
        yield Finding("dask", "accelerations", State.WORKS, said)
    else:
        first, why = next(iter(refused.items()))
        advice = (
            f"these parts run as Dask has them; distributed {SUPPORTED} has them as we know them"
        )
        said = f"{said}; not {', '.join(refused)} (of {first}: {why})"
        yield Finding("dask", "accelerations", State.LIMITED, said, advice)
    if off:
        said = f"switched off: {', '.join(sorted(off))}"
        yield Finding("dask", "switches", State.LIMITED, said, "distributed.comm.backhaul has them")


#: Modules that parts of Dask and of Backhaul need, and what those are
_EXTRAS = {
    "bokeh": "the dashboard and its page /backhaul",
    "prometheus_client": "/metrics",
    "pandas": "transfers(client) and dataframes",
    "numpy": "arrays",
    "cryptography": "Security.temporary()",
}


def _extras() -> Finding:
    """Say what is not installed, and what is missing without it."""
    missing = [name for name in _EXTRAS if importlib.util.find_spec(name) is None]
    if not missing:
        return Finding("dask", "extras", State.WORKS, ", ".join(_EXTRAS))
    said = "; ".join(f"without {name} no {_EXTRAS[name]}" for name in missing)
    return Finding("dask", "extras", State.LIMITED, said, "pip install 'backhaul[complete]'")


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())


def _lanes() -> Finding:
    """Say which lanes comms may use, as Dask is configured here."""
    from backhaul.dask.config import Settings

    try:
        settings = Settings.current()
    except ValueError as error:
        return Finding("dask", "configuration", State.BROKEN, str(error))
    lanes = dict(settings.native).get("lanes")
    said = "all lanes" if lanes is None else f"lanes {', '.join(lanes)}"
    said += "".join(f", {name}={value}" for name, value in settings.ucx)
    # Which of the two is right depends on who reaches this host.
    said += "; a secret" if settings.secret else "; no secret: whoever connects is a peer"
    return Finding("dask", "configuration", State.WORKS, said)

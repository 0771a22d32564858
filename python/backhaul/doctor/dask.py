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
    yield from _lanes()
    try:
        yield from _accelerations()
    except ImportError as error:
        yield Finding("dask", "backhaul.dask", State.BROKEN, str(error))


def _accelerations() -> Iterator[Finding]:
    """List what is put in the place of functions of Dask, and what is not, with the reason."""
    from backhaul.dask.compat.activation import SUPPORTED
    from backhaul.dask.compat.features import missing_features
    from backhaul.dask.compat.instance_patches import INSTANCE_PATCHES, REQUIREMENTS
    from backhaul.dask.compat.process_patches import PATCHES
    from backhaul.dask.config.settings import is_choice, switched_on

    version = importlib.metadata.version("distributed")
    oldest, newest = (_release(each) for each in SUPPORTED.split(" to "))
    if oldest <= _release(version) <= newest:
        yield Finding("dask", "distributed", State.WORKS, f"{version}, of {SUPPORTED}")
    else:
        age = "older" if _release(version) < oldest else "newer"
        said = f"{version}, {age} than {SUPPORTED}, whose sources were read"
        advice = "what was not read of another release runs as Dask has it, which is slower"
        yield Finding("dask", "distributed", State.LIMITED, said, advice)
    yield _extras()
    on: dict[str, list[str]] = {}
    refused: dict[str, tuple[str, str]] = {}
    # Patches that are switched off are not counted, because they are not installed.
    chosen = [patch for patch in PATCHES if switched_on(patch.switch)]
    fit = 0
    for patch in chosen:
        if (refusal := patch.refusal()) is None:
            fit += 1
            on.setdefault(patch.switch, []).append(str(patch))
            continue
        for function in patch.functions:
            refused[str(function)] = (str(refusal), f"it runs as Dask has it, {patch.without}")
    single = 0
    for each in (*INSTANCE_PATCHES, *REQUIREMENTS):
        if (refusal := each.refusal()) is None:
            single += each in INSTANCE_PATCHES
        else:
            refused[str(each)] = (str(refusal), each.without)
    for module, reason in missing_features().items():
        refused[f"module {module}"] = (reason, "this part is left out")
    state = State.LIMITED if refused else State.WORKS
    said = f"{fit} of {len(chosen)} accelerations fit this release"
    yield Finding("dask", "accelerations", state, said)
    for switch, names in on.items():
        yield Finding("dask", f"on: {switch}", State.WORKS, ", ".join(names))
    said = f"{single} of {len(INSTANCE_PATCHES)} replacements fit"
    yield Finding("dask", "on: one scheduler, worker or stream", State.WORKS, said)
    for subject, (reason, advice) in refused.items():
        yield Finding("dask", f"off: {subject}", State.LIMITED, reason, advice)
    choices = {patch.switch for patch in PATCHES if is_choice(patch.switch)}
    if off := sorted(switch for switch in choices if not switched_on(switch)):
        said = f"switched off: {', '.join(off)}"
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


def _lanes() -> Iterator[Finding]:
    """Say which lanes comms may use, as Dask is configured here."""
    try:
        from backhaul.dask.config.settings import Settings
    except ImportError:
        # A Dask that is too old, which is reported with the accelerations
        return
    try:
        settings = Settings.current()
    except ValueError as error:
        yield Finding("dask", "configuration", State.BROKEN, str(error))
        return
    lanes = dict(settings.native).get("lanes")
    said = "all lanes" if lanes is None else f"lanes {', '.join(lanes)}"
    said += "".join(f", {name}={value}" for name, value in settings.ucx)
    # Which of the two is right depends on who reaches this host.
    said += "; a secret" if settings.secret else "; no secret: any process that connects is a peer"
    yield Finding("dask", "configuration", State.WORKS, said)

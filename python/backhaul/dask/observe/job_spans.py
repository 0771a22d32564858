"""Spans of a job for OpenTelemetry: one trace, with a span for each task, transfer and spill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from backhaul.dask.observe.job_runs import DISK, Run
from backhaul.dask.observe.verdict import Site

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer, TracerProvider

__all__ = ["export"]

#: Name of the instrumentation, under which a provider finds the spans
_SCOPE: Final = "backhaul.dask"
#: Beginning of the prefixes of tasks that exchange dataframes or arrays
_EXCHANGE: Final = "exchange-"
#: Kind of each action of a run
_KINDS: Final = {**dict.fromkeys(DISK, "spill"), "transfer": "transfer"}


def export(
    runs: Sequence[Run],
    sites: Mapping[str, Site],
    attributes: Mapping[str, Any],
    provider: TracerProvider | None,
) -> int:
    """Write the spans of a job of at least one run, and return how many there are.

    The workers are by address; the attributes are those of the span of the job. Without a provider
    of the tracer, it is the one of the process.

    Raises
    ------
    ModuleNotFoundError
        If OpenTelemetry is not installed.
    """
    try:
        import opentelemetry.sdk.trace  # noqa: F401
        from opentelemetry import trace
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "traces for OpenTelemetry need its SDK, which is not installed: "
            "pip install 'backhaul[otel]'",
            name=error.name,
        ) from error
    tracer = trace.get_tracer(_SCOPE, tracer_provider=provider)
    job = tracer.start_span(
        "job",
        start_time=_ns(min(run.start_s for run in runs)),
        attributes={f"backhaul.{name}": value for name, value in attributes.items()},
    )
    around = trace.set_span_in_context(job)
    count = 1
    for run in runs:
        kind = "exchange" if run.prefix.startswith(_EXCHANGE) else "task"
        span = tracer.start_span(
            run.prefix,
            context=around,
            start_time=_ns(run.start_s),
            attributes={
                "backhaul.kind": kind,
                "dask.key": run.key,
                "dask.nbytes": run.nbytes,
                "dask.worker": run.worker,
                "dask.worker.name": sites[run.worker].name,
                "thread.id": run.thread or 0,
            },
        )
        count += 1 + _export_actions(run, tracer, trace.set_span_in_context(span))
        span.end(_ns(run.stop_s))
    job.end(_ns(max(run.stop_s for run in runs)))
    return count


def _export_actions(run: Run, tracer: Tracer, around: Any) -> int:
    """Write a span for each action of a run, and return how many there are."""
    for name, start_s, stop_s in run.actions:
        kind = _KINDS.get(name, name)
        attributes = {"backhaul.kind": kind}
        span = tracer.start_span(
            name, context=around, start_time=_ns(start_s), attributes=attributes
        )
        span.end(_ns(stop_s))
    return len(run.actions)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)

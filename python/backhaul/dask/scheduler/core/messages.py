"""Messages of a core in the form in which Dask sends them to workers and clients."""

from __future__ import annotations

from typing import Any

from backhaul.dask.compat.names import ToPickle, time
from backhaul.dask.scheduler.core.failures import found_failure
from backhaul.dask.scheduler.core.task_payloads import submitted_task

__all__ = ["send_messages"]


def send_messages(live: Any, messages: list[tuple[str, str | None, dict[str, Any]]]) -> None:
    """Send messages of `SchedulerCore.take_messages` as Dask sends them."""
    scheduler = live.scheduler
    to_workers: dict[str, list[dict[str, Any]]] = {}
    to_clients: dict[str, list[dict[str, Any]]] = {}
    for kind, whom, message in messages:
        _translate(live, message)
        if kind == "worker":
            assert whom is not None
            _add(to_workers.setdefault(whom, []), message)
        elif whom is not None:
            to_clients.setdefault(whom, []).append(message)
        else:
            for client in scheduler.client_comms:
                to_clients.setdefault(client, []).append(message)
    if to_workers or to_clients:
        scheduler.send_all(to_clients, to_workers)


def _translate(live: Any, message: dict[str, Any]) -> None:
    """Bring a message of the core to the form that Dask sends."""
    texts = live.texts
    if message["op"] == "compute-task":
        found = live.specs.get(message["key"])
        if found is None:
            found = submitted_task(texts.key(message["key"]), message["run_spec"])
        spec, span_id = found
        message["run_spec"] = ToPickle(spec)
        message["stimulus_id"] = f"compute-task-{time()}"
        annotations = message["annotations"]
        message["annotations"] = {} if annotations is None else live.annotations[annotations]
        message["span_id"] = span_id
        message["resource_restrictions"] = message["resource_restrictions"] or {}
    elif message["op"] == "task-erred":
        exception, traceback = message["exception"], message["traceback"]
        if isinstance(exception, tuple):
            text = message["key"]
            # It is of the task that failed, for those that wait for that, too.
            if live.core.has_task(text):
                text = live.core.task_value(text, "exception_blame") or text
            key = texts.translated(text)
            departed = live.membership.departed
            exception = found_failure(
                *exception, key=key, scheduler=live.scheduler, departed=departed
            )
        elif exception is not None:
            exception = live.raised.get(exception)
        message["exception"] = exception
        message["traceback"] = None if traceback is None else live.raised.get(traceback)
    if not texts.are_keys:
        for name in ("key", "keys", "who_has", "nbytes"):
            if name in message:
                message[name] = texts.translated(message[name])


def _add(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Add a message for a worker; keys that one stimulus frees, to those it freed before."""
    last = messages[-1] if messages else message
    if (
        last["op"] == message["op"] == "free-keys"
        and last is not message
        and last["stimulus_id"] == message["stimulus_id"]
    ):
        last["keys"] = [*last["keys"], *message["keys"]]
    else:
        messages.append(message)

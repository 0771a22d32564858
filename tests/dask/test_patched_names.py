"""Only what `compat.process_patches` lists assigns to anything of Dask's: read in the sources.

The reader knows names, not types. So every assignment to an attribute or item of something that is
not the object itself has to be known here, either as one of our own or as state that Dask's own
function would write at the same place. A new one fails until a developer has checked it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import backhaul.dask

ROOM = Path(backhaul.dask.__file__).parent

#: Does what the list says.
MECHANISM = {"compat/patching.py"}

#: Stands for Dask's own state while that is in the core: what they are for
WRITES_STATE = {
    "scheduler/core/guarded_classes.py",
    "scheduler/core/loop_thread.py",
    "scheduler/core/replicas.py",
    "scheduler/core/spans.py",
    "scheduler/core/task_views.py",
    "scheduler/core/group_views.py",
    "scheduler/core/plugin_bridge.py",
    "worker/core/state_transfer.py",
    "worker/core/task_view.py",
}

#: Ours, or an object of a library that we made: the name that the target begins with.
OURS = {
    "compat/activation.py": {"INSTALLED"},
    # Hashes of files
    "compat/normalized_source.py": {"_hashes"},
    # Tasks that threads may take
    "worker/get_data.py": {"local_queue"},
    "comm/backend.py": {"comm"},
    "serialize/codec.py": {"compression", "frames", "header"},
    "comm/comm.py": {"ours", "self._finalizer"},
    "client/as_completed.py": {"watched"},
    # A message of this package, and its fields of a task
    "client/graph.py": {"message"},
    "client/map.py": {"message"},
    "client/submit.py": {"annotations", "message", "ours", "said"},
    # The environment, while UCX reads it
    "comm/native_context.py": {"_contexts", "os.environ"},
    "serialize/device_arrays.py": {"header"},
    "comm/device_frames.py": {"frames", "host"},
    # Bokeh's, of a page that we made, and a cell of our matrix
    "observe/dashboard.py": {"cell", "doc", "page", "view"},
    "observe/exchange_counters.py": {"of_workers"},
    "observe/exchange_view.py": {"self"},
    "observe/history_view.py": {"data", "plot", "self"},
    "observe/matrix_view.py": {"grid", "hosts", "plot", "self"},
    "observe/transfer_history.py": {"found", "kind", "rates"},
    "resource_pools/request_index.py": {"restrictions"},
    "resource_pools/declarations.py": {"counted", "found", "parts"},
    "comm/tls.py": {"_made", "_wanted"},
    "comm/exposed_ports.py": {"_reported"},
    "worker/execution.py": {"_current", "ours", "stream"},
    # A task as a core takes it, and what a core has bytes for
    "scheduler/core/adopted_tasks.py": {"asks", "said"},
    "scheduler/core/import_state.py": {"said"},
    "scheduler/core/messages.py": {"last", "message", "to_clients", "to_workers"},
    "scheduler/core/payloads.py": {"self._live.annotations", "self._live.specs"},
    "scheduler/fire_and_forget.py": {"client_desires_keys"},
    "worker/finished_message.py": {"_described"},
    # A function and plans of this package, tasks, arrays and a frame that it made
    "exchange/cluster.py": {"by_host", "found.pins", "noted", "self.pins", "tasks"},
    "exchange/block_files.py": {"_files"},
    "exchange/arrays.py": {"graph", "needed", "parts", "result", "self._pins"},
    "exchange/chunk_parts.py": {"data"},
    "exchange/columns.py": {"_kept_by_arrow", "frame"},
    "exchange/graphs.py": {"graph", "pins"},
    "exchange/hashing.py": {"floats", "integers", "times"},
    "exchange/placing.py": {"by_host", "choices", "found", "threads"},
    "exchange/plans.py": {"vars(plan)"},
    "exchange/transfers.py": {"keys", "of_partition", "slots"},
    # A lease, and a queue of the gate
    "local/resource_gate.py": {"by_type", "declared", "found", "inputs", "lease", "needs", "queue"},
    # The table of classes, and a handler
    "client/result_cache.py": {"_classes", "ours"},
    # A task of a class of this package, and tables of tasks
    # A class of this package, whose methods are alike
    "worker/lazy_collections.py": {"kind"},
    "serialize/pickled_task.py": {"order", "self", "spec", "task", "tasks"},
    # A message and an event that we made
    "worker/early_execution.py": {"_running", "event", "message", "stimulus_id"},
    "observe/counters.py": {"found", "names", "reported", "total"},
    # A worker's report of one comm
    "observe/lanes.py": {"found"},
    # The local queue of a worker
    "worker/memory_guard.py": {"local_queue"},
    # Copies of options of `dask worker`
    "launch/option_checks.py": {"found"},
    "launch/cluster.py": {"kwargs"},
    "launch/command.py": {"described", "parameters"},
    "launch/device_pools.py": {"flags", "read"},
    # As a mapping that a worker is given
    "launch/device_spill.py": {"self"},
    "launch/gpu_options.py": {"flags", "left", "options", "pools"},
    # Of a class of this package, or a process whose class was replaced in the line before
    "launch/nanny.py": {"process", "spawned", "vars(self)"},
    "launch/supervisor.py": {"nannies"},
    "launch/worker.py": {"found", "spec"},
    "launch/worker_specs.py": {"arguments", "ours", "own", "resources"},
    # A lease
    "resource_pools/leases.py": {"lease"},
    "placement/link_model.py": {"nics"},
    "comm/buffer_sharing.py": {"frames"},
    "observe/summaries.py": {"known"},
    "observe/ledger.py": {"link", "process", "listed", "rest"},
    # A pandas frame
    "observe/link_table.py": {"frame"},
    "resource_pools/machine_pools.py": {"by_name", "coupled", "found", "island", "near"},
    # Counts of mapped and stored pages, by inode
    "worker/memory.py": {"mapped", "stored"},
    # A result in our file, and buffers
    "worker/spill_file.py": {"found", "spilled", "left"},
    "observe/matrix.py": {"by_name", "cell", "found", "receiver", "sender", "total"},
    # Futures that we make, as the patch of `Client.map` has read that Dask does
    "client/futures.py": {"future", "known", "refcount", "state"},
    # An event that we made
    "worker/event_makers.py": {"event"},
    # The environment of processes that are started, as dask.multiprocessing.get sets it
    "compat/names.py": {"globals()[name]"},
    "local/processes.py": {"os.environ", "packed"},
    "observe/prometheus.py": {"found", "opened"},
    "client/keys.py": {"_known"},
    "resource_pools/worker_inventory.py": {"declared"},
    # The report
    "observe/explain.py": {"link", "links", "sites"},
    "observe/heartbeat.py": {"report"},
    "observe/job_trace.py": {"rows"},
    "observe/thread_time.py": {"cluster", "now", "spent", "worker"},
    "observe/verdict.py": {"spent"},
    # The function of a user's that is decorated
    "resource_pools/requests.py": {"amounts", "function"},
    # An item of this package
    "worker/local_queue.py": {"item"},
    # The window is ours, of in_flight.py
    # A message of a class of this package
    "worker/inline_results.py": {"_asked", "carried"},
    "resource_pools/scheduler_slots.py": {"ours", "found"},
    "scheduler/core/export_state.py": {"suppliers", "writer"},
    # Requests of annotations
    "scheduler/core/graph_import.py": {
        "asks",
        "found",
        "groups",
        "hosts",
        "number",
        "own",
        "workers",
    },
    # A handler of the scheduler's, while the core has its state: see `GRAPH_STATE`
    "scheduler/core/handlers.py": {"live.specs", "message", "parts", "place", "run"},
    "scheduler/core/handler_overrides.py": {"super()"},
    "scheduler/core/stealing.py": {"to_departed"},
    # A function that takes the place of one
    # Replies about tasks
    "scheduler/core/requests.py": {"added", "sizes"},
    # Messages of the core
    "scheduler/core/live_core.py": {
        "watched.core",
        "counts",
        "found",
        "live",
    },
    "scheduler/core/engine_streams.py": {"message"},
    # Slots
    "resource_pools/worker_state.py": {"ours"},
    "local/sync.py": {"declared", "lease"},
    # A pandas frame
    "observe/transfers.py": {"frame"},
    # Sums of this package
    "worker/metrics.py": {"found"},
    # Messages that arrive, and a task of this package
    "worker/thread_events.py": {"item", "message"},
    # Messages that arrive, of a class of this package, and its attribute of a client
    "client/reader_thread.py": {"arguments", "attributes"},
    # The argument of dask.config.set
    "comm/ucx_scheme.py": {"chosen"},
    "config/ucx_options.py": {"found", "variables"},
    # Messages that arrive
    "worker/early_reader.py": {"inbox", "found", "messages", "self._idle"},
    "worker/transitions.py": {"state"},
    # A queue of a class of this package
    "worker/work_queue.py": {"ours", "work_queue"},
    # An instruction for one worker, which has no other owner
    "comm/already_sent.py": {"message"},
    # A class that is made, what the log has of a message, what we made, and what is of our classes
    "worker/core/guarded_state.py": {"members"},
    "worker/core/events.py": {"message"},
    "worker/core/ownership.py": {"kept"},
    "worker/core/dask_instructions.py": {"ended"},
    # A lease
    "resource_pools/worker_slots.py": {"amounts", "inputs", "lease", "recs"},
}

#: Of Dask's, and state: what stands there is what Dask would have written.
STATE = {
    # Annotations of an expression, until Dask reads them
    "exchange/placing.py": {"vars(expr)['__dask_annotations__']"},
    # As Worker.get_data
    "worker/get_data.py": {
        "worker.transfer_outgoing_bytes",
        "worker.transfer_outgoing_bytes_total",
        "worker.transfer_outgoing_count",
        "worker.transfer_outgoing_count_total",
    },
    # As distributed.threadpoolexecutor.secede
    "resource_pools/overflow_pool.py": {"pool_thread_state.proceed"},
    # As Worker.execute, _run_task and GraphNode.is_coro
    "worker/execution.py": {
        "self.task_state.start_time",
        "thread_state.execution_state",
        "thread_state.key",
        "thread_state.start_time",
        "worker.active_threads[thread]",
        "worker.threads[self._key]",
    },
    # As Worker.execute
    "worker/early_execution.py": {"task_state.start_time"},
    # As Task.is_coro of dask._task_spec
    "worker/eligibility.py": {"run_spec._is_coro"},
    # As LRU.__getitem__ of zict; the bound of the results in memory, which zict leaves to its users
    "worker/spill_buffer.py": {"order[key]", "fast.offset"},
    # As Scheduler._task_to_msg: an executor, as a user may name one
    "resource_pools/lease_context.py": {"task_state.annotations"},
    # As _worker of distributed.threadpoolexecutor: true in another way
    "worker/local_queue.py": {"pool_thread_state.proceed"},
    # As Worker.execute
    "worker/thread_events.py": {"threads[key]"},
    # A name of this package in the attributes of a client, that Dask does not have
    "client/outgoing_queue.py": {"attributes"},
    # As as_completed._track_future
    "client/as_completed.py": {"completed.futures[future]"},
    "client/result_cache.py": {"attributes[_ATTRIBUTE]", "state.type"},
    # As Scheduler._apply_annotations
    "resource_pools/request_index.py": {"ts.annotations", "ts.resource_restrictions"},
    # As Scheduler.check_idle
    "scheduler/core/timers.py": {"self._live.scheduler.idle_since"},
    # An assignment by another program
    "scheduler/core/live_core.py": {"self.scheduler"},
    # As FutureState.retry, of which it is a part
    "client/request_order.py": {"state.status"},
    # Its tasks and logs, before there are any
    "worker/lazy_collections.py": {"state", "state.tasks"},
    # An attribute that is set while Rust has the state is set once Python has it
    "worker/core/guarded_state.py": {"object"},
    # Its class while Rust has the state
    "worker/core/ownership.py": {"self._state.__class__"},
    # As Server.digest_metric
    "worker/metrics.py": {
        "counts['memory-read', 'bytes']",
        "counts['memory-read', 'count']",
        "greatest[label]",
        "maxima[label]",
        "since_heartbeat[label]",
        "totals[label]",
    },
    # As SchedulerState.acquire_resources
    "resource_pools/scheduler_slots.py": {"ws.used_resources[name]"},
    # As Worker.set_resources and WorkerState._handle_compute_task
    "resource_pools/worker_state.py": {
        "state.available_resources",
        "state.total_resources[name]",
        "ts.resource_restrictions",
    },
    # All of a scheduler's state, in the place of a core's: what its own code would have come to
    "scheduler/core/import_state.py": {"runs._run_id_iterator"},
    "scheduler/core/export_state.py": {
        "collection",
        "group.dependencies",
        "group.last_worker",
        "group.last_worker_tasks_left",
        "group.prefix",
        "ours._run_id_iterator",
        "prefix._groups[group]",
        "prefix.duration_average",
        "prefix.max_exec_time",
        "prefix.suspicious",
        "read(collection, 'states')",
        "scheduler._last_time",
        "scheduler._network_occ_global",
        "scheduler._no_workers_since",
        "scheduler.bandwidth",
        "scheduler.generation",
        "scheduler.n_tasks",
        "scheduler.task_groups[name]",
        "scheduler.task_prefixes[name]",
        "scheduler.transition_counter",
        "self.scheduler.clients[name]",
        "self.scheduler.tasks[ts.key]",
        "ts",
        "ts._hash",
        "ts._queueable",
        "ts.annotations",
        "ts.exception",
        "ts.exception_blame",
        "ts.key",
        "ts.priority",
        "ts.processing_on",
        "ts.resource_restrictions",
        "ts.traceback",
        "ts.who_has",
        "ts.who_wants",
        "ws._network_occ",
        "ws._occupancy_cache",
        "ws.executing",
        "ws.nbytes",
        "ws.status",
    },
    "scheduler/core/heap.py": {"queue._data", "queue._inc", "queue._sorted"},
    # As Scheduler.remove_worker: an event, and what the core knows of a worker that it is about
    "scheduler/core/workers.py": {"msg", "ws._occupancy_cache"},
    # As WorkStealing, of what is in flight and may be stolen
    "scheduler/core/stealing.py": {
        "extension._request_counter",
        "extension.count",
        "extension.in_flight[task(text)]",
        "extension.key_stealable[task(text)]",
        "extension.metrics['request_cost_total'][level]",
        "extension.metrics['request_count_total'][level]",
        "extension.unknown_durations[prefix]",
        "own",
        "vars(self.extension)['stealable'][worker]",
    },
    # As Scheduler.update_graph
    "scheduler/submissions.py": {"metrics", "scheduler._active_graph_updates"},
    # The registry of comms, as distributed.comm.ucx and distributed-ucxx at their import
    "comm/ucx_scheme.py": {"backends[scheme]"},
}

#: Methods that change what they are called on.
CHANGING = {
    *("__delattr__", "__delitem__", "__setattr__", "__setitem__"),
    *("add_handlers", "insert", "setdefault", "update"),
}


def is_own(target: ast.expr) -> bool:
    """Tell whether a target is an attribute of `self`, or an item of one."""
    while isinstance(target, ast.Subscript):
        target = target.value
    return (
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id in ("self", "cls")
    )


def flat(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from flat(element)
    elif isinstance(target, ast.Starred):
        yield from flat(target.value)
    else:
        yield target


def targets(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Assign(targets=found) | ast.Delete(targets=found):
            yield from found
        case ast.AugAssign(target=one) | ast.AnnAssign(target=one):
            yield one
        case ast.For(target=one) | ast.AsyncFor(target=one) | ast.comprehension(target=one):
            yield one
        case ast.withitem(optional_vars=ast.expr() as one):
            yield one


def changes(source: str) -> Iterator[str]:
    """List what a module assigns to that is not an attribute of an object by its own method."""
    for node in ast.walk(ast.parse(source)):
        for target in targets(node):
            for each in flat(target):
                if isinstance(each, (ast.Attribute, ast.Subscript)) and not is_own(each):
                    yield ast.unparse(each)
        match node:
            case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[changed, *_]):
                yield ast.unparse(changed)
            case ast.Call(func=ast.Attribute(value=changed, attr=name)) if (
                name in CHANGING and not is_own(changed)
            ):
                yield ast.unparse(changed)


def is_known(changed: str, file: str) -> bool:
    if changed in STATE.get(file, ()):
        return True
    return any(
        changed == name or changed.startswith((f"{name}.", f"{name}["))
        for name in OURS.get(file, ())
    )


FILES = sorted(str(path.relative_to(ROOM)) for path in ROOM.rglob("*.py"))


@pytest.mark.parametrize("file", [file for file in FILES if file not in MECHANISM | WRITES_STATE])
def test_only_the_list_changes_what_is_dasks(file: str) -> None:
    unknown = {each for each in changes((ROOM / file).read_text()) if not is_known(each, file)}
    assert unknown == set(), "put it into backhaul.dask.compat.process_patches"


def test_what_is_known_is_there() -> None:
    for known in (OURS, STATE):
        for file, names in known.items():
            found = list(changes((ROOM / file).read_text()))
            for name in names:
                assert any(each.startswith(name) for each in found), f"{file}: {name}"


@pytest.mark.parametrize(
    "source",
    [
        "scheduler.handlers['heartbeat_worker'] = ours",
        "self.scheduler.stream_handlers[OP] = ours",
        "handlers = scheduler.handlers\nhandlers[OP] = ours",
        "setattr(scheduler, NAME, ours)",
        "del Worker.execute",
        "worker.monitor.get_process_memory, other = ours",
        "stream.__class__ = Ours",
        "vars(worker).update(execute=ours)",
        "worker.__dict__['execute'] = ours",
        "with opened() as worker.data: pass",
        "pages.insert(0, ours)",
        "object.__setattr__(state, '_event', ours)",
    ],
)
def test_a_new_place_is_found(source: str) -> None:
    assert not all(is_known(each, "new.py") for each in changes(source))
    assert list(changes(source))

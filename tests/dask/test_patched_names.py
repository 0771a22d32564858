"""Only what `backhaul.dask.patches` lists assigns to anything of Dask's: read in the sources.

The reader knows names, not types. So every assignment to an attribute or item of something that is
not the object itself has to be known here, either as one of our own or as state that Dask's own
function would write at the same place. A new one fails until somebody has looked at it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import backhaul.dask

ROOM = Path(backhaul.dask.__file__).parent

#: Does what the list says.
MECHANISM = {"patching.py"}

#: Stands for Dask's own state while that is in the core: what they are for
WRITES_STATE = {
    "scheduler_core/guards.py",
    "scheduler_core/home.py",
    "scheduler_core/replicas.py",
    "scheduler_core/spans.py",
    "scheduler_core/task_views.py",
    "scheduler_core/views.py",
    "scheduler_core/watchers.py",
    "worker_core/handing_over.py",
    "worker_core/views.py",
}

#: Ours, or an object of a library that we made: the name that the target begins with.
OURS = {
    "activation.py": {"_installed"},
    # Tasks that threads may take
    "asked_data.py": {"line"},
    # What is noted, and the class that is made
    "backlog.py": {
        "closed",
        "dependency",
        "each",
        "freed",
        "known",
        "lived",
        "members",
        "noted",
        "self._tasks",
        "tasks",
    },
    "backend.py": {"comm"},
    "codec.py": {"compression", "frames", "header"},
    "comm.py": {"ours", "self._finalizer"},
    "completions.py": {"watched"},
    # A message of ours, and what it says of a task
    "compact_graph.py": {"message"},
    "compact_map.py": {"message"},
    "compact_submit.py": {"annotations", "message", "ours", "said"},
    # The environment, while UCX reads it
    "context.py": {"_contexts", "os.environ"},
    "device_arrays.py": {"header"},
    "device_frames.py": {"frames", "host"},
    # Bokeh's, of a page that we made, and a cell of our matrix
    "dashboard.py": {"cell", "doc", "grid", "hosts", "page", "plot", "self"},
    "asked.py": {"restrictions"},
    "declared.py": {"counted", "found", "parts"},
    "encryption.py": {"_made", "_wanted"},
    "exposure.py": {"_reported"},
    "execution.py": {"_current", "line", "ours", "stream"},
    "fire_and_forget.py": {"client_desires_keys"},
    "fast_paths.py": {"_described", "_slots_of", "copied", "handlers", "message"},
    # A lease, and a queue of the gate
    "gate.py": {"by_type", "declared", "found", "inputs", "lease", "needs", "queue"},
    # What is held, and what handles it
    "held_results.py": {"_classes", "ours"},
    # A task of a class of ours, and tables of tasks
    # A class of ours, whose methods are alike
    "kept_tasks.py": {"kind"},
    "kept_specs.py": {"order", "self", "spec", "task", "tasks"},
    # A message and an event that we made
    "foretold.py": {"_running", "event", "message", "stimulus_id"},
    "flows.py": {"found", "names", "reported", "total"},
    # What a worker says of one comm
    "lane_map.py": {"found"},
    # Copies of options of `dask worker`
    "launch/checks.py": {"found"},
    "launch/cluster.py": {"kwargs"},
    "launch/command.py": {"described", "parameters"},
    "launch/device_pools.py": {"flags", "read"},
    # As a mapping that a worker is given
    "launch/device_spill.py": {"self"},
    "launch/gpu_options.py": {"flags", "left", "options", "pools"},
    # Of a class of ours, or a process whose class is ours since the line before
    "launch/nanny.py": {"process", "spawned", "vars(self)"},
    "launch/run.py": {"nannies"},
    "launch/worker.py": {"found", "spec"},
    "launch/worker_specs.py": {"arguments", "ours", "own", "resources"},
    # A lease
    "leases.py": {"lease"},
    "learned_links.py": {"nics"},
    "lending.py": {"frames"},
    "ledger.py": {"link", "process", "listed", "rest"},
    "link_news.py": {"classes"},
    # A pandas frame
    "link_table.py": {"frame"},
    "machine_pools.py": {"by_name", "coupled", "found", "island", "near"},
    # Counts of mapped and stored pages, by inode
    "memory.py": {"mapped", "stored"},
    "matrix.py": {"by_name", "cell", "found", "total"},
    # Futures that we make, as the patch of `Client.map` has read that Dask does
    "many_futures.py": {"future", "known", "refcount", "state"},
    # An event that we made, and the copy of one
    "plain_events.py": {"event", "initial", "logged"},
    "plain_inputs.py": {"recommendations"},
    "plain_steps.py": {"fetched", "forgotten", "found", "initial", "recommendations"},
    # The environment of processes that are started, as dask.multiprocessing.get sets it
    "private.py": {"globals()[name]"},
    "processes.py": {"os.environ", "packed"},
    "prometheus.py": {"found"},
    "quick_tokens.py": {"_known"},
    "reported.py": {"declared"},
    # What we made
    "reports.py": {"report"},
    # The function of a user's that is decorated
    "requests.py": {"amounts", "function"},
    # An item of ours
    "runs.py": {"item"},
    # The window is ours, of in_flight.py
    "roots.py": {"prefixes", "rootish", "self._window"},
    "sources.py": {"_links"},
    # A message of a class of ours
    "small_results.py": {"_asked", "carried"},
    "scheduler_slots.py": {"found"},
    "scheduler_core/escape.py": {"suppliers", "writer"},
    # What annotations ask for
    "scheduler_core/graphs.py": {"asks", "found", "groups", "hosts", "number", "own", "workers"},
    # The plan of roots
    "scheduler_core/placing.py": {"roots"},
    # A handler of the scheduler's, while the core has its state: see `GRAPH_STATE`
    "scheduler_core/handlers.py": {"live.specs", "message", "parts", "place", "run"},
    "scheduler_core/programs.py": {"super()"},
    "scheduler_core/stealing.py": {"to_departed"},
    # A function that takes the place of one
    "spill_paths.py": {"__getitem__"},
    # What is told of tasks
    "scheduler_core/answers.py": {"added", "sizes"},
    # What the core has to say
    "scheduler_core/live.py": {
        "watched.on_change",
        "counts",
        "found",
        "last",
        "live",
        "message",
        "to_clients",
        "to_workers",
    },
    "scheduler_core/streams.py": {"message"},
    # Slots
    "slotted_worker.py": {"slots"},
    "sync.py": {"declared", "lease"},
    # A pandas frame
    "transfer_table.py": {"frame"},
    # Sums of ours
    "task_metrics.py": {"found"},
    # What arrives, and a task of ours
    "thread_events.py": {"item", "message"},
    # What arrives, of a class of ours, and our attribute of a client
    "thread_reports.py": {"arguments", "arrivals", "attributes"},
    # The argument of dask.config.set
    "ucx_scheme.py": {"chosen"},
    "ucx_keys.py": {"found", "variables"},
    # A step of ours, and a future of asyncio's that a coroutine gave us to wait for
    "waiting.py": {"_current", "awaited", "step"},
    # What arrives
    "streams.py": {"arrivals"},
    # A line, and what arrives
    "work_ahead.py": {"arrivals", "found", "line"},
    # A queue of a class of ours
    "work_queue.py": {"work_queue"},
    # An instruction for one worker, which nobody else has
    "told.py": {"message"},
    # A class that is made, what the log has of a message, what we made, and what is of our classes
    "worker_core/behind.py": {"members"},
    "worker_core/events.py": {"message"},
    "worker_core/keeper.py": {"kept"},
    "worker_core/wanted.py": {"ended"},
    # A lease
    "worker_slots.py": {"amounts", "inputs", "lease", "recs"},
}

#: Of Dask's, and state: what stands there is what Dask would have written.
STATE = {
    # As Worker.get_data
    "asked_data.py": {
        "worker.transfer_outgoing_bytes",
        "worker.transfer_outgoing_bytes_total",
        "worker.transfer_outgoing_count",
        "worker.transfer_outgoing_count_total",
    },
    # As distributed.threadpoolexecutor.secede
    "beside.py": {"pool_thread_state.proceed"},
    # As Worker.execute, _run_task and GraphNode.is_coro
    "execution.py": {
        "self.task_state.start_time",
        "thread_state.execution_state",
        "thread_state.key",
        "thread_state.start_time",
        "worker.active_threads[thread]",
        "worker.threads[self._key]",
    },
    # As Worker.execute
    "foretold.py": {"task_state.start_time", "worker.threads[key]"},
    # As Task.is_coro of dask._task_spec
    "ordinary_tasks.py": {"run_spec._is_coro"},
    # As SpillBuffer.__getitem__, and LRU.__getitem__, LRU.set_noevict and LRU.__delitem__ of zict
    "spill_paths.py": {
        "order[key]",
        "totals['memory-read', 'bytes']",
        "totals['memory-read', 'count']",
        "fast.d[key]",
        "fast.order._d[key]",
        "fast.total_weight",
        "fast.weights[key]",
    },
    # As Scheduler._task_to_msg: an executor, as a user may name one
    "holding.py": {"task_state.annotations"},
    # As _worker of distributed.threadpoolexecutor: true in another way
    "runs.py": {"pool_thread_state.proceed"},
    # As Worker.execute
    "thread_events.py": {"threads[key]"},
    # As WorkerState._select_workers_for_gather
    "sources.py": {"needed[address]"},
    # A name of ours in the attributes of a client, that Dask does not have
    "outbox.py": {"attributes"},
    # As as_completed._track_future
    "completions.py": {"completed.futures[future]"},
    "held_results.py": {"attributes[_ATTRIBUTE]", "state.type"},
    # As Scheduler._apply_annotations
    "asked.py": {"ts.annotations", "ts.resource_restrictions"},
    # As Scheduler.check_idle
    "scheduler_core/timers.py": {"self._live.scheduler.idle_since"},
    # What somebody else assigns
    "scheduler_core/live.py": {"self.scheduler"},
    # As TaskCounter.transitions, and `counts`, a dict of our own
    "task_counts.py": {
        "counts",
        "counts[name]",
        "counter._cumulative_elapsed[prefix, 'executing']",
        "counter._previous_ts",
        "cumulative[name]",
        "current[name]",
    },
    # As WorkerState.handle_stimulus and the functions that handle three events
    "plain_events.py": {
        "state.executed_count",
        "state.generation",
        "state.tasks[key]",
        "stim.handled",
        "ts.annotations",
        "ts.done",
        "ts.nbytes",
        "ts.priority",
        "ts.resource_restrictions",
        "ts.run_id",
        "ts.run_spec",
        "ts.span_id",
        "ts.type",
    },
    # As the transitions of WorkerState and its _purge_state
    "plain_steps.py": {
        "state.data[key]",
        "state.nbytes",
        "state.transition_counter",
        "ts.coming_from",
        "ts.done",
        "ts.exception",
        "ts.nbytes",
        "ts.next",
        "ts.previous",
        "ts.state",
        "ts.traceback",
        "ts.traceback_text",
    },
    # As WorkerState._ensure_task_exists, _update_who_has and what calls them
    "plain_inputs.py": {
        "each.priority",
        "state.fetch_count",
        "state.transition_counter",
        "tasks[key]",
        "ts.done",
        "ts.nbytes",
        "ts.state",
        "ts.who_has",
    },
    # As all of them, one after the other
    "whole_tasks.py": {
        "state.executed_count",
        "state.generation",
        "state.ready._inc",
        "state.tasks[key]",
        "state.transition_counter",
        "ts.annotations",
        "ts.done",
        "ts.nbytes",
        "ts.priority",
        "ts.resource_restrictions",
        "ts.run_id",
        "ts.run_spec",
        "ts.span_id",
        "ts.start_time",
        "ts.state",
        "ts.type",
    },
    # What the state machine keeps up at once of what it goes through later
    "backlog.py": {
        "data[key]",
        "self._state.__class__",
        "self._state.data[key]",
        "state.executed_count",
        "state.generation",
        "state.nbytes",
        "state.ready._inc",
        "state.threads[lived.key]",
        "state.transition_counter",
    },
    # As FutureState.retry, of which it is a part
    "request_order.py": {"state.status"},
    # Its tasks and logs, before there are any
    "kept_tasks.py": {"state", "state.tasks"},
    # Who sets an attribute while Rust has the state sets it when Python has
    "worker_core/behind.py": {"object"},
    # Its class while Rust has the state
    "worker_core/keeper.py": {"self._state.__class__"},
    # And what is put aside while it does
    "gone_through.py": {
        "event.handled",
        "state",
        "state.data",
        "state.generation",
        "state.log",
        "state.ready._inc",
        "state.stimulus_log",
        "state.task_counter",
        "state.tasks[self.key].type",
        "uncounted._current_count",
    },
    # As Server.digest_metric
    "task_metrics.py": {
        "counts['memory-read', 'bytes']",
        "counts['memory-read', 'count']",
        "greatest[label]",
        "maxima[label]",
        "since_heartbeat[label]",
        "totals[label]",
    },
    # As SchedulerState.acquire_resources
    "scheduler_slots.py": {"ws.used_resources[name]"},
    # As Worker.set_resources and WorkerState._handle_compute_task
    "slotted_worker.py": {
        "state.available_resources",
        "state.total_resources[name]",
        "ts.resource_restrictions",
    },
    # All of a scheduler's state, in the place of a core's: what its own code would have come to
    "scheduler_core/adopt.py": {"runs._run_id_iterator"},
    "scheduler_core/escape.py": {
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
    "scheduler_core/heap.py": {"queue._data", "queue._inc", "queue._sorted"},
    # As Scheduler.remove_worker: an event, and what the core knows of a worker that it is about
    "scheduler_core/membership.py": {"msg", "ws._occupancy_cache"},
    # As WorkStealing, of what is in flight and may be stolen
    "scheduler_core/stealing.py": {
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
    "submissions.py": {"metrics", "scheduler._active_graph_updates"},
    # The registry of comms, as distributed.comm.ucx and distributed-ucxx at their import
    "ucx_scheme.py": {"backends[scheme]"},
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
    assert unknown == set(), "put it into backhaul.dask.patches"


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

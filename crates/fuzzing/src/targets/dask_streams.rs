//! Messages of clients and workers to a scheduler: graphs as one message, maps, and the messages
//! that are handled on the engine's thread.

use std::sync::Arc;

use backhaul_dask::codec::calls::Calls;
use backhaul_dask::codec::graph::{Tasks, flag, write_head, write_numbers, write_task};
use backhaul_dask::hot::{
    CallGraph, HotCore, HotSettings, PeerKind, depend_on_what_is_known, graph_of_tasks,
    graphs_of_calls, groups_of_calls, groups_of_tasks, keys_are_texts, needs_are_known,
};
use backhaul_dask::msgpack::{Reader, TooLong, Writer};
use backhaul_dask::scheduler::{
    Config, Graph, GraphOutcome, SchedulerCore, WorkerJoins, WorkerStatus,
};

use crate::Input;

/// Calls are refused, or each is a task of its own, which a scheduler takes
pub(super) fn calls(data: &[u8]) {
    let Some(calls) = Calls::read(data) else {
        return;
    };
    assert_eq!(calls.iter().count(), calls.len());
    for call in calls.iter() {
        if let Some(pickle) = calls.pickle(&call) {
            assert!(pickle.len() <= data.len() + OPCODES_MAX);
        }
    }
    let mut core = core();
    let is_known = depend_on_what_is_known(&calls, &core);
    let Some(groups) = groups_of_calls(&calls) else {
        return;
    };
    let spans: Vec<_> = groups.into_iter().map(|(name, _)| (name, None)).collect();
    let of = of();
    let graphs = graphs_of_calls(&calls, &spans, &of).expect("no span is too long");
    let mut new = 0;
    for graph in graphs {
        new += new_tasks(&mut core, &graph).unwrap_or(0);
    }
    if is_known {
        assert!(new <= calls.len());
    }
}

/// A graph is refused, or has a task for each of its first keys, which a scheduler takes
pub(super) fn tasks(data: &[u8]) {
    let Some(tasks) = Tasks::read(data) else {
        return;
    };
    assert_eq!(tasks.iter().count(), tasks.len());
    assert!(tasks.len() <= tasks.keys().len());
    let _ = keys_are_texts(&tasks);
    let mut core = core();
    let Some(groups) = groups_of_tasks(&tasks) else {
        return;
    };
    if !needs_are_known(&tasks, &core) {
        return;
    }
    let spans: Vec<_> = groups
        .into_iter()
        .map(|(name, ..)| (name, Some("span".to_owned())))
        .collect();
    let Some(graph) = graph_of_tasks(&tasks, &spans, &of()) else {
        return;
    };
    if let Some(new) = new_tasks(&mut core, &graph) {
        assert!(new <= tasks.len());
        assert!(core.task_count() <= KEYS.len() + new);
    }
}

/// Messages are handled or left; what is sent then is whole messages, and none after a failure
pub(super) fn streams(data: &[u8]) {
    let mut input = Input::new(data);
    let mut hot = HotCore::new(core());
    hot.begin(HotSettings {
        result_bytes_max: 100,
        window: None,
        fifo_timeout_s: 0.0,
    });
    let peers = [
        hot.add_peer(PeerKind::Worker, WORKERS[0]),
        hot.add_peer(PeerKind::Worker, WORKERS[1]),
        hot.add_peer(PeerKind::Client, CLIENT),
    ];
    hot.set_keepers(&[CLIENT.to_owned()]);
    hot.set_span("task", Some("span"));
    hot.collect(2.0);
    let mut now_s = 2.0;
    while !input.is_empty() {
        let peer = input.choose(&peers);
        let bytes = usize::from(input.short());
        now_s += 0.25;
        let had_failed = hot.failure().is_some();
        let is_handled = hot.handle(peer, input.take(bytes), now_s);
        assert!(!(had_failed && is_handled));
        while let Some(to) = hot.next_outgoing(0) {
            for frames in hot.take_outgoing(to) {
                let mut reader = Reader::new(&frames[0]);
                assert!(reader.item(NESTING_MAX).is_some());
                assert!(reader.rest().is_empty());
            }
        }
        if input.flag() {
            hot.take_notes();
        }
    }
}

const WORKERS: [&str; 2] = ["tcp://a:1", "tcp://b:1"];
const CLIENT: &str = "client";
const KEYS: [&str; 3] = ["task-0", "task-1", "task-2"];

/// A scheduler with two workers and a client, who wants the last of three tasks
fn core() -> SchedulerCore {
    let mut core = SchedulerCore::new(Config::default());
    let stimulus = Arc::from("begin");
    for address in WORKERS {
        let joins = WorkerJoins {
            address: Arc::from(address),
            name: Arc::from(address),
            host: Arc::from("host"),
            nthreads: 1,
            memory_limit: 0,
            status: WorkerStatus::Running,
            resources: Vec::new(),
            bandwidth_bytes_per_s: 1e8,
        };
        core.handle_worker_added(&joins, &stimulus, 1.0)
            .expect("its name is its own");
    }
    core.handle_client_added(CLIENT);
    let bytes = graph_bytes().expect("it is short");
    let tasks = Tasks::read(&bytes).expect("it is whole");
    let spans = [("task".to_owned(), Some("span".to_owned()))];
    let graph = graph_of_tasks(&tasks, &spans, &of()).expect("it is short");
    assert_eq!(new_tasks(&mut core, &graph), Some(3));
    core
}

fn graph_bytes() -> Result<Vec<u8>, TooLong> {
    let (mut keys, mut wanted) = (Writer::default(), Writer::default());
    keys.array(KEYS.len())?;
    for key in KEYS {
        keys.str(key)?;
    }
    write_numbers(&mut wanted, &[2])?;
    let mut writer = Writer::default();
    let prefix = b"\x80\x05prefix";
    write_head(&mut writer, prefix, keys.as_bytes(), wanted.as_bytes(), 3)?;
    write_task(&mut writer, 0, flag::IS_CALL, &[], b"own")?;
    write_task(&mut writer, 1, flag::IS_CALL, &[], b"own")?;
    write_task(&mut writer, 2, flag::IS_CALL, &[0, 1], b"own")?;
    Ok(writer.into_bytes())
}

fn of() -> CallGraph {
    CallGraph {
        client: Arc::from(CLIENT),
        submitting_task: None,
        fifo_timeout_s: 0.0,
    }
}

/// How many tasks came to be; `None` if what the graph needs is gone, or it is refused
fn new_tasks(core: &mut SchedulerCore, graph: &Graph) -> Option<usize> {
    match core.handle_graph(graph, &Arc::from("graph"), 2.0) {
        Ok(GraphOutcome::Accepted { new_tasks, .. }) => Some(new_tasks),
        Ok(GraphOutcome::LostDependencies) => None,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// More than the opcodes around what a pickle is made of
const OPCODES_MAX: usize = 64;

/// As deep as messages may be nested
const NESTING_MAX: u32 = 64;

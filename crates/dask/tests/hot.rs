//! What a core says of hot messages, beside the messages that it answers with.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use backhaul_dask::codec::graph::{Tasks, flag, write_head, write_numbers, write_task};
use backhaul_dask::hot::{CallGraph, HotCore, HotSettings, PeerKind, graph_of_tasks};
use backhaul_dask::msgpack::Writer;
use backhaul_dask::scheduler::{Config, GraphOutcome, SchedulerCore, WorkerJoins, WorkerStatus};

const WORKER: &str = "tcp://a:1";
const CLIENT: &str = "client";
const KEYS: [&str; 2] = ["task-0", "task-1"];

/// A scheduler with a worker, and a client who wants the second of two tasks, which needs the first
fn core() -> SchedulerCore {
    let mut core = SchedulerCore::new(Config::default());
    let stimulus = Arc::from("begin");
    let joins = WorkerJoins {
        address: Arc::from(WORKER),
        name: Arc::from(WORKER),
        host: Arc::from("host"),
        nthreads: 1,
        memory_limit: 0,
        status: WorkerStatus::Running,
        resources: Vec::new(),
        bandwidth_bytes_per_s: 1e8,
    };
    core.handle_worker_added(&joins, &stimulus, 1.0).unwrap();
    core.handle_client_added(CLIENT);
    let (mut keys, mut wanted) = (Writer::default(), Writer::default());
    keys.array(KEYS.len()).unwrap();
    for key in KEYS {
        keys.str(key).unwrap();
    }
    write_numbers(&mut wanted, &[1]).unwrap();
    let mut writer = Writer::default();
    let prefix = b"\x80\x05prefix";
    write_head(&mut writer, prefix, keys.as_bytes(), wanted.as_bytes(), 2).unwrap();
    write_task(&mut writer, 0, flag::IS_CALL, &[], b"own").unwrap();
    write_task(&mut writer, 1, flag::IS_CALL, &[0], b"own").unwrap();
    let bytes = writer.into_bytes();
    let of = CallGraph {
        client: Arc::from(CLIENT),
        submitting_task: None,
        fifo_timeout_s: 0.0,
    };
    let spans = [("task".to_owned(), None)];
    let graph = graph_of_tasks(&Tasks::read(&bytes).unwrap(), &spans, &of).unwrap();
    let outcome = core.handle_graph(&graph, &stimulus, 2.0).unwrap();
    assert!(matches!(
        outcome,
        GraphOutcome::Accepted { new_tasks: 2, .. }
    ));
    core
}

/// A batch by which a worker says that a task has finished
fn finished(key: &str, run_id: u64) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.array(1).unwrap();
    writer.map(7).unwrap();
    for (name, value) in [
        ("op", "task-finished"),
        ("key", key),
        ("stimulus_id", "because"),
        ("typename", "int"),
    ] {
        writer.str(name).unwrap();
        writer.str(value).unwrap();
    }
    writer.str("run_id").unwrap();
    writer.uint(run_id);
    writer.str("type").unwrap();
    writer.bin(b"int").unwrap();
    writer.str("startstops").unwrap();
    writer.array(0).unwrap();
    writer.into_bytes()
}

/// A batch by which a client lets go of a task
fn released(key: &str) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.array(1).unwrap();
    writer.map(3).unwrap();
    writer.str("op").unwrap();
    writer.str("client-releases-keys").unwrap();
    writer.str("keys").unwrap();
    writer.array(1).unwrap();
    writer.str(key).unwrap();
    writer.str("client").unwrap();
    writer.str(CLIENT).unwrap();
    writer.into_bytes()
}

#[test]
fn it_says_once_that_the_last_task_has_finished() {
    let mut hot = HotCore::new(core());
    assert!(!hot.ended_the_last(), "no streams are handled");
    hot.begin(HotSettings::default());
    let worker = hot.add_peer(PeerKind::Worker, WORKER);
    let client = hot.add_peer(PeerKind::Client, CLIENT);
    hot.collect(2.0);
    assert!(!hot.ended_the_last(), "nothing has finished");

    assert!(hot.handle(worker, &finished(KEYS[0], 0), 2.5));
    assert!(hot.core.has_work());
    assert!(!hot.ended_the_last(), "what needed it is under way");
    assert!(hot.handle(worker, &finished(KEYS[1], 1), 3.0));
    assert!(!hot.core.has_work());
    assert!(hot.ended_the_last());
    assert!(!hot.ended_the_last(), "that is known");

    // To let go of a result is no end of a task.
    assert!(hot.handle(client, &released(KEYS[1]), 3.5));
    assert_eq!(hot.core.task_count(), 0);
    assert!(!hot.ended_the_last());
}

//! Streams of workers that come and go while a core has the state, and what it says of tasks.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::sync::Arc;

use backhaul_dask::hot::{HotCore, HotSettings, PeerKind};
use backhaul_dask::msgpack::Writer;
use backhaul_dask::scheduler::{
    Config, Graph, GraphTask, Key, SchedulerCore, Spec, WorkerJoins, WorkerStatus,
};

const WORKER: &str = "tcp://10.0.0.1:1";
const CLIENT: &str = "client";
/// As `hot/specs.rs` has it: no span, no keys that it depends on, and a pickle of one byte
const SPEC: &[u8] = b"\x93\xc0\xc0\xc4\x01x";

/// A client's task, and the place of one that it needs
fn task(key: u32, dependencies: Vec<u32>) -> GraphTask {
    GraphTask {
        key,
        group: Arc::from("one"),
        prefix: Arc::from("one"),
        spec: Spec::from(SPEC),
        dependencies,
        order: 0.0,
        user_priority: None,
        requirements: None,
        data_producer: false,
    }
}

/// A core with a worker that has no stream yet, and a client who wants the last of some tasks, each
/// of which needs the one before
fn hot(keys: &[&[u8]], status: WorkerStatus) -> HotCore {
    let mut core = SchedulerCore::new(Config::default());
    core.handle_client_added(CLIENT);
    let last = u32::try_from(keys.len()).unwrap() - 1;
    let graph = Graph {
        keys: keys.iter().map(|&key| Key::from(key)).collect(),
        tasks: (0..=last)
            .map(|place| task(place, place.checked_sub(1).into_iter().collect()))
            .collect(),
        wanted: vec![last],
        client: Arc::from(CLIENT),
        ..Graph::default()
    };
    core.handle_graph(&graph, &Arc::from("graph"), 1.0).unwrap();
    let joins = WorkerJoins {
        address: Arc::from(WORKER),
        name: Arc::from(WORKER),
        host: Arc::from("host"),
        nthreads: 1,
        memory_limit: 0,
        status,
        resources: Vec::new(),
        bandwidth_bytes_per_s: 1e8,
    };
    core.handle_worker_added(&joins, &Arc::from("worker"), 1.0)
        .unwrap();
    let mut hot = HotCore::new(core);
    hot.begin(HotSettings::default());
    hot
}

/// Has the core make messages for the worker; counts those that are left to the event loop
fn unsaid_of(hot: &mut HotCore) -> usize {
    let keys = [Key::from(&b"one"[..])];
    hot.core
        .handle_request_refresh_who_has(&keys, &Arc::from(WORKER), &Arc::from("refresh"), 2.0)
        .unwrap();
    hot.collect(2.0);
    hot.take_notes().unsaid.len()
}

#[test]
fn messages_from_before_the_stream_come_first() {
    let mut hot = hot(&[b"one"], WorkerStatus::Paused);
    let keys = [Key::from(&b"one"[..])];
    hot.core
        .handle_request_refresh_who_has(&keys, &Arc::from(WORKER), &Arc::from("refresh"), 2.0)
        .unwrap();
    hot.collect(2.0);
    let peer = hot.add_peer(PeerKind::Worker, WORKER);
    // The first has yet to be taken, and so has this one.
    assert_eq!(unsaid_of(&mut hot), 2);
    assert!(hot.take_outgoing(peer).is_empty());
    assert_eq!(unsaid_of(&mut hot), 0);
    assert_eq!(hot.take_outgoing(peer).len(), 1);
}

#[test]
fn a_worker_at_the_address_of_one_that_left_has_a_stream_of_its_own() {
    let mut hot = hot(&[b"one"], WorkerStatus::Paused);
    let gone = hot.add_peer(PeerKind::Worker, WORKER);
    assert_eq!(unsaid_of(&mut hot), 0);
    hot.remove_peer(gone);
    // The caller that removes a peer gets the batches gathered for it before; the event loop sends
    // the rest.
    assert!(hot.take_outgoing(gone).is_empty());
    assert_eq!(unsaid_of(&mut hot), 1);
    assert!(hot.next_outgoing(0).is_none());
    // Its later messages are for the event loop, too: here a batch of no messages.
    assert!(!hot.handle(gone, &[0x90], 3.0));

    let again = hot.add_peer(PeerKind::Worker, WORKER);
    assert_ne!(gone, again);
    assert_eq!(unsaid_of(&mut hot), 0);
    assert_eq!(hot.next_outgoing(0), Some(again));
    assert_eq!(hot.take_outgoing(again).len(), 1);
    assert!(!hot.handle(gone, &[0x90], 3.0));
    assert!(hot.handle(again, &[0x90], 3.0));
    // To remove the first once more takes nothing from the second.
    hot.remove_peer(gone);
    assert_eq!(unsaid_of(&mut hot), 0);
}

/// A batch by which a worker says that a task has finished
fn finished(key: &str, run_id: u64) -> Vec<u8> {
    finished_in(key, run_id, None)
}

/// The same of a task that took so many seconds
fn finished_in(key: &str, run_id: u64, seconds: Option<f64>) -> Vec<u8> {
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
    writer.array(usize::from(seconds.is_some())).unwrap();
    if let Some(seconds) = seconds {
        writer.map(3).unwrap();
        writer.str("action").unwrap();
        writer.str("compute").unwrap();
        writer.str("start").unwrap();
        writer.float(2.0);
        writer.str("stop").unwrap();
        writer.float(2.0 + seconds);
    }
    writer.into_bytes()
}

/// A batch by which a client releases a task
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
    let mut hot = hot(&[b"one", b"two"], WorkerStatus::Running);
    let worker = hot.add_peer(PeerKind::Worker, WORKER);
    let client = hot.add_peer(PeerKind::Client, CLIENT);
    hot.collect(2.0);
    assert!(!hot.expects_more(), "nothing has finished");

    assert!(hot.handle(worker, &finished("one", 0), 2.5));
    assert!(hot.core.has_work());
    assert!(!hot.expects_more(), "what needed it is under way");
    assert!(hot.handle(worker, &finished("two", 1), 3.0));
    assert!(!hot.core.has_work());
    assert!(hot.expects_more());
    assert!(!hot.expects_more(), "that is known");

    // A release of a result is no end of a task.
    assert!(hot.handle(client, &released("two"), 3.5));
    assert_eq!(hot.core.task_count(), 0);
    assert!(!hot.expects_more());
    hot.end();
    assert!(!hot.expects_more(), "no streams are handled");
}

#[test]
fn it_expects_more_while_one_short_task_alone_is_under_way() {
    let keys: &[&[u8]] = &[b"one", b"two", b"three", b"four"];
    let mut hot = hot(keys, WorkerStatus::Running);
    let worker = hot.add_peer(PeerKind::Worker, WORKER);
    let _client = hot.add_peer(PeerKind::Client, CLIENT);
    hot.collect(2.0);
    assert!(!hot.expects_more(), "nobody knows how long it takes");
    assert!(hot.handle(worker, &finished_in("one", 0, Some(1e-4)), 2.5));
    assert!(hot.expects_more());
    assert!(hot.expects_more(), "as long as it is under way");

    let graph = Graph {
        keys: vec![Key::from(&b"beside"[..])],
        tasks: vec![task(0, Vec::new())],
        wanted: vec![0],
        client: Arc::from(CLIENT),
        ..Graph::default()
    };
    hot.core
        .handle_graph(&graph, &Arc::from("graph"), 2.6)
        .unwrap();
    assert!(!hot.expects_more(), "another one is under way");
    assert!(hot.handle(worker, &finished_in("beside", 2, Some(1e-4)), 2.7));
    assert!(hot.expects_more());

    assert!(hot.handle(worker, &finished_in("two", 1, Some(1.0)), 4.0));
    assert!(hot.core.has_work());
    assert!(!hot.expects_more(), "they take long");
}

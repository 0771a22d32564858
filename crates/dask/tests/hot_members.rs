//! Streams of workers that come and go while a core has the state.

use std::sync::Arc;

use backhaul_dask::hot::{HotCore, HotSettings, PeerKind};
use backhaul_dask::scheduler::{
    Config, Graph, GraphTask, Key, SchedulerCore, Spec, WorkerJoins, WorkerStatus,
};

const WORKER: &str = "tcp://10.0.0.1:1";

/// A core with a worker that has no stream yet, and a task that waits for another worker
fn hot() -> HotCore {
    let mut core = SchedulerCore::new(Config::default());
    core.handle_client_added("client");
    let graph = Graph {
        keys: vec![Key::from(&b"one"[..])],
        tasks: vec![GraphTask {
            key: 0,
            group: Arc::from("one"),
            prefix: Arc::from("one"),
            spec: Spec::from(&b"spec"[..]),
            dependencies: Vec::new(),
            order: 0.0,
            user_priority: None,
            requirements: None,
            data_producer: false,
        }],
        wanted: vec![0],
        client: Arc::from("client"),
        ..Graph::default()
    };
    core.handle_graph(&graph, &Arc::from("graph"), 1.0)
        .expect("plain tasks");
    let joins = WorkerJoins {
        address: Arc::from(WORKER),
        name: Arc::from(WORKER),
        host: Arc::from("host"),
        nthreads: 1,
        memory_limit: 0,
        status: WorkerStatus::Paused,
        resources: Vec::new(),
        bandwidth_bytes_per_s: 1e8,
    };
    core.handle_worker_added(&joins, &Arc::from("worker"), 1.0)
        .expect("its name is its own");
    let mut hot = HotCore::new(core);
    hot.begin(HotSettings::default());
    hot
}

/// Has the core say something to the worker; counts what of it is left to somebody else
fn unsaid_of(hot: &mut HotCore) -> usize {
    let keys = [Key::from(&b"one"[..])];
    hot.core
        .handle_request_refresh_who_has(&keys, &Arc::from(WORKER), &Arc::from("refresh"), 2.0)
        .expect("the worker is known");
    hot.collect(2.0);
    hot.take_notes().unsaid.len()
}

#[test]
fn what_was_said_before_there_was_a_stream_comes_first() {
    let mut hot = hot();
    let keys = [Key::from(&b"one"[..])];
    hot.core
        .handle_request_refresh_who_has(&keys, &Arc::from(WORKER), &Arc::from("refresh"), 2.0)
        .expect("the worker is known");
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
    let mut hot = hot();
    let gone = hot.add_peer(PeerKind::Worker, WORKER);
    assert_eq!(unsaid_of(&mut hot), 0);
    hot.remove_peer(gone);
    // What gathered goes to whoever removes it, before; the rest is for somebody else to send.
    assert!(hot.take_outgoing(gone).is_empty());
    assert_eq!(unsaid_of(&mut hot), 1);
    assert!(hot.next_outgoing(0).is_none());
    // What it still says is for somebody else, too: here a batch of no messages.
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

//! Tasks that ask for resources, in the scheduler core from outside. That Dask's scheduler with
//! `backhaul.dask.resource_pools.scheduler_slots` decides alike is tested by
//! `python -m tests.dask.scheduler_core --ask`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use backhaul_dask::scheduler::{
    Config, Graph, GraphTask, Key, Message, Payload, Requirements, SchedulerCore, Spec,
    TaskFinished, TaskState, WorkerJoins, WorkerMessage, WorkerStatus,
};
use backhaul_placement::resources::{Declaration, Indexed};

fn stimulus() -> Arc<str> {
    Arc::from("stimulus")
}

fn core() -> SchedulerCore {
    let mut core = SchedulerCore::new(Config {
        beside_tasks_max: Some(8),
        ..Config::default()
    });
    core.handle_client_added("client");
    core
}

fn join(core: &mut SchedulerCore, address: &str, gpus: f64) {
    join_with(core, address, "GPU", gpus);
}

fn join_with(core: &mut SchedulerCore, address: &str, resource: &str, units: f64) {
    let joins = WorkerJoins {
        address: Arc::from(address),
        name: Arc::from(address),
        host: Arc::from("host"),
        nthreads: 1,
        memory_limit: 0,
        status: WorkerStatus::Running,
        resources: vec![(Arc::from(resource), units)],
        bandwidth_bytes_per_s: 1e8,
    };
    core.handle_worker_added(&joins, &stimulus(), 1.0)
        .expect("its name is its own");
}

fn asks(gpus: f64, threads: Option<f64>) -> Requirements {
    let mut requirements = Requirements::default();
    requirements.resources = Some(vec![(Arc::from("GPU"), gpus)]);
    requirements.threads = threads;
    requirements
}

/// Tasks of a name, each of which asks for so many GPUs and threads
fn ask(core: &mut SchedulerCore, name: &str, count: u32, gpus: f64, threads: Option<f64>) {
    ask_all(core, name, count, &asks(gpus, threads));
}

fn ask_all(core: &mut SchedulerCore, name: &str, count: u32, asks: &Requirements) {
    let task = |key: u32| GraphTask {
        key,
        group: Arc::from(name),
        prefix: Arc::from(name),
        spec: Spec::from(&b"spec"[..]),
        dependencies: Vec::new(),
        order: f64::from(key),
        user_priority: None,
        requirements: Some(Box::new(asks.clone())),
        data_producer: false,
    };
    let graph = Graph {
        keys: (0..count)
            .map(|key| Key::from(format!("{name}-{key}").into_bytes()))
            .collect(),
        tasks: (0..count).map(task).collect(),
        wanted: (0..count).collect(),
        client: Arc::from("client"),
        ..Graph::default()
    };
    // Each graph comes after those before it, and so do its tasks.
    let now_s = 2.0 + core.task_count() as f64;
    core.handle_graph(&graph, &stimulus(), now_s)
        .expect("it makes sense");
}

/// Returns the messages to workers: address, key, number of the run
fn sent(core: &mut SchedulerCore) -> VecDeque<(Arc<str>, Key, u64)> {
    let messages = core.take_messages().into_iter();
    messages
        .filter_map(|message| match message {
            Message::ToWorker(address, WorkerMessage::ComputeTask(task)) => {
                Some((address, task.key, task.run_id))
            }
            _ => None,
        })
        .collect()
}

fn finish(core: &mut SchedulerCore, (worker, key, run_id): &(Arc<str>, Key, u64)) {
    let finished = TaskFinished {
        key: Arc::clone(key),
        worker: Arc::clone(worker),
        run_id: *run_id,
        nbytes: 28,
        type_: Payload::from(&b"type"[..]),
        type_name: Arc::from("int"),
        actions: Vec::new(),
        thread: None,
    };
    core.handle_task_finished(&finished, &stimulus(), 3.0)
        .expect("it was given it");
}

fn count(core: &SchedulerCore, name: &str, tasks: u32, state: TaskState) -> usize {
    let keys = (0..tasks).map(|key| format!("{name}-{key}"));
    keys.filter(|key| {
        let view = core.task_view(key.as_bytes());
        view.is_some_and(|view| view.state == state)
    })
    .count()
}

#[test]
fn a_worker_is_sent_twice_its_units_and_more_as_tasks_end() {
    let mut core = core();
    join(&mut core, "tcp://10.0.0.1:1", 1.0);
    join(&mut core, "tcp://10.0.0.2:1", 2.0);
    ask(&mut core, "one", 20, 1.0, None);
    let mut running = sent(&mut core);
    assert_eq!(running.len(), 6);
    assert_eq!(count(&core, "one", 20, TaskState::NoWorker), 14);
    let mut ended = 0;
    while let Some(one) = running.pop_front() {
        finish(&mut core, &one);
        ended += 1;
        running.extend(sent(&mut core));
        assert_eq!(running.len(), 6.min(20 - ended));
    }
    assert_eq!(ended, 20);
    let room = core.room_view().expect("somebody has asked");
    assert!(room.booked.is_empty() && room.waiting.is_empty() && room.passed.is_empty());
}

#[test]
fn a_large_request_is_not_overtaken_for_ever() {
    let mut core = core();
    join(&mut core, "tcp://10.0.0.1:1", 2.0);
    ask(&mut core, "first", 4, 1.0, None);
    let mut running = sent(&mut core);
    assert_eq!(running.len(), 4);
    ask(&mut core, "both", 1, 2.0, None);
    ask(&mut core, "late", 60, 1.0, None);
    let mut late = 0;
    let mut waits = true;
    while waits {
        let one = running.pop_front().expect("something runs until it does");
        finish(&mut core, &one);
        for next in sent(&mut core) {
            waits &= !next.1.starts_with(b"both");
            late += u32::from(waits && next.1.starts_with(b"late"));
            running.push_back(next);
        }
    }
    // As many as may go past it, and no more.
    assert_eq!(late, 16);
}

#[test]
fn tasks_without_a_thread_leave_a_worker_idle() {
    let mut core = core();
    join(&mut core, "tcp://10.0.0.1:1", 4.0);
    ask(&mut core, "beside", 3, 1.0, Some(0.0));
    assert_eq!(sent(&mut core).len(), 3);
    assert_eq!(core.in_flight("tcp://10.0.0.1:1"), Ok(0));
    assert_eq!(core.cluster_view().idle.len(), 1);
}

#[test]
fn a_resource_that_is_named_as_the_one_of_tasks_without_a_thread_is_another_one() {
    let mut core = core();
    let named = "tasks without CPU";
    join_with(&mut core, "tcp://10.0.0.1:1", named, 1.0);
    let mut asks = Requirements::default();
    asks.resources = Some(vec![(Arc::from(named), 1.0)]);
    ask_all(&mut core, "named", 4, &asks);
    assert_eq!(sent(&mut core).len(), 2);
    let mut beside = Requirements::default();
    beside.threads = Some(0.0);
    ask_all(&mut core, "beside", 8, &beside);
    assert_eq!(sent(&mut core).len(), 8);
}

#[test]
fn a_missing_resource_is_reported_once_and_its_tasks_go_to_the_next_worker_with_it() {
    let mut core = core();
    join(&mut core, "tcp://10.0.0.1:1", 1.0);
    ask(&mut core, "four", 2, 4.0, None);
    let unmet = core.take_unmet();
    assert_eq!(unmet.len(), 1);
    assert_eq!(
        unmet[0].reason,
        "4 of GPU are more than the 1 that there are"
    );
    ask(&mut core, "more", 1, 4.0, None);
    assert!(core.take_unmet().is_empty());
    assert!(sent(&mut core).is_empty());
    let address = Arc::from("tcp://10.0.0.2:1");
    let ids = Declaration::Indexed(Indexed::counted(4));
    core.declare(&address, BTreeMap::from([("GPU".to_owned(), ids)]));
    join(&mut core, &address, 4.0);
    let running = sent(&mut core);
    assert_eq!(running.len(), 2);
    assert!(running.iter().all(|(worker, ..)| *worker == address));
}

#[test]
fn a_task_that_may_run_elsewhere_goes_there_when_its_worker_pauses() {
    let mut core = core();
    let named = "tcp://10.0.0.1:1";
    join(&mut core, named, 1.0);
    join(&mut core, "tcp://10.0.0.2:1", 1.0);
    let bound = |loose| {
        let mut asks = asks(1.0, None);
        asks.workers = Some(vec![Arc::from(named)]);
        asks.loose = loose;
        asks
    };
    ask_all(&mut core, "bound", 2, &bound(false));
    ask_all(&mut core, "loose", 1, &bound(true));
    assert_eq!(sent(&mut core).len(), 2);
    core.handle_worker_status(named, WorkerStatus::Paused, &stimulus(), 3.0)
        .expect("it is there");
    let running = sent(&mut core);
    assert_eq!(running.len(), 1);
    assert_eq!(&*running[0].0, "tcp://10.0.0.2:1");
    assert!(running[0].1.starts_with(b"loose"));
}

#[test]
fn a_worker_that_goes_takes_its_bookings_with_it() {
    let mut core = core();
    join(&mut core, "tcp://10.0.0.1:1", 1.0);
    join(&mut core, "tcp://10.0.0.2:1", 1.0);
    ask(&mut core, "one", 4, 1.0, None);
    assert_eq!(sent(&mut core).len(), 4);
    core.handle_worker_lost("tcp://10.0.0.2:1", true, &stimulus(), 3.0)
        .expect("it is there");
    let room = core.room_view().expect("somebody has asked");
    assert_eq!((room.booked.len(), room.waiting.len()), (2, 2));
    join(&mut core, "tcp://10.0.0.3:1", 1.0);
    assert_eq!(sent(&mut core).len(), 2);
}

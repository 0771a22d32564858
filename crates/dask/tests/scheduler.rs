//! The scheduler core from outside; that it equals upstream's is tested by `tests/dask/scheduler_core`.

use std::sync::Arc;

use backhaul_dask::scheduler::{
    ClientMessage, ComputeTask, Config, EventError, Graph, GraphTask, InheritError, Inherited, Key,
    Message, Payload, SchedulerCore, Spec, TaskFinished, TaskState, WorkerJoins, WorkerMessage,
    WorkerStatus,
};

const WORKERS: [&str; 2] = ["tcp://10.0.0.1:1", "tcp://10.0.0.2:1"];

fn stimulus() -> Arc<str> {
    Arc::from("stimulus")
}

fn core() -> SchedulerCore {
    let mut core = SchedulerCore::new(Config::default());
    core.handle_client_added("client");
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
        core.handle_worker_added(&joins, &stimulus(), 1.0)
            .expect("its name is its own");
    }
    core
}

/// `sum` of `width` tasks, of which it alone is wanted
fn graph(width: u32) -> Graph {
    let task = |key: u32, group: &str, dependencies: Vec<u32>| GraphTask {
        key,
        group: Arc::from(group),
        prefix: Arc::from(group),
        spec: Spec::from(&b"spec"[..]),
        dependencies,
        order: f64::from(key),
        user_priority: None,
        requirements: None,
        data_producer: false,
    };
    let mut tasks: Vec<_> = (0..width)
        .map(|key| task(key, "part", Vec::new()))
        .collect();
    tasks.push(task(width, "sum", (0..width).collect()));
    let mut keys: Vec<Key> = (0..width)
        .map(|key| Key::from(format!("part-{key}").into_bytes()))
        .collect();
    keys.push(Key::from(&b"sum"[..]));
    Graph {
        keys,
        tasks,
        wanted: vec![width],
        client: Arc::from("client"),
        ..Graph::default()
    }
}

fn sent(core: &mut SchedulerCore) -> (Vec<(Arc<str>, ComputeTask)>, Vec<ClientMessage>) {
    let (mut tasks, mut told) = (Vec::new(), Vec::new());
    for message in core.take_messages() {
        match message {
            Message::ToWorker(address, WorkerMessage::ComputeTask(task)) => {
                tasks.push((address, *task));
            }
            Message::ToClient(_, message) => told.push(message),
            _ => {}
        }
    }
    (tasks, told)
}

fn finished(worker: &str, task: &ComputeTask) -> TaskFinished {
    TaskFinished {
        key: Arc::clone(&task.key),
        worker: Arc::from(worker),
        run_id: task.run_id,
        nbytes: 28,
        type_: Payload::from(&b"int"[..]),
        type_name: Arc::from("int"),
        actions: vec![(Arc::from("compute"), 1.0, 1.5)],
        thread: None,
    }
}

#[test]
fn a_graph_runs_to_its_end_and_leaves_nothing() {
    let mut core = core();
    core.handle_graph(&graph(20), &stimulus(), 2.0)
        .expect("plain tasks");
    let (mut tasks, mut told) = sent(&mut core);
    let mut runs = 0;
    while let Some((address, task)) = tasks.pop() {
        runs += 1;
        core.handle_task_finished(&finished(&address, &task), &stimulus(), 3.0)
            .expect("it was sent there");
        let (more, said) = sent(&mut core);
        tasks.extend(more);
        told.extend(said);
    }
    assert_eq!(runs, 21);
    assert!(matches!(&told[..], [ClientMessage::KeyInMemory { key, .. }] if **key == *b"sum"));
    let wanted = [Key::from(&b"sum"[..])];
    core.handle_client_releases_keys(&wanted, "client", &stimulus(), 4.0)
        .expect("the client is known");
    assert!(core.keys().is_empty());
    assert!(core.worker_views().iter().all(|worker| worker.nbytes == 0));
}

/// How long what is counted computes, added up from the first to the last, and is fetched
fn added_up_s(core: &SchedulerCore, counts: &[(Arc<str>, i64)], network_bytes: u64) -> f64 {
    let prefixes = core.prefix_views();
    let mut compute_s = 0.0;
    for (name, count) in counts {
        let prefix = prefixes.iter().find(|prefix| prefix.common.name == *name);
        let average_s = prefix.expect("it is shown").duration_average;
        let duration_s = if average_s < 0.0 { 0.5 } else { average_s };
        compute_s += duration_s * *count as f64;
    }
    compute_s + network_bytes as f64 / core.cluster_view().bandwidth
}

#[test]
fn occupancies_equal_the_sum_to_the_bit() {
    // 60 prefixes, three of whose tasks feed a fourth, on two workers: in a debug build the core
    // checks each comparison with the total besides.
    let mut core = core();
    let mut graph = Graph {
        client: Arc::from("client"),
        ..Graph::default()
    };
    for number in 0..240_u32 {
        let prefix = Arc::<str>::from(format!("prefix-{}", number / 4));
        let is_last = number % 4 == 3;
        graph
            .keys
            .push(Key::from(format!("{prefix}-{number}").into_bytes()));
        graph.tasks.push(GraphTask {
            key: number,
            group: Arc::clone(&prefix),
            prefix,
            spec: Spec::from(&b"spec"[..]),
            dependencies: (number - number % 4..number).filter(|_| is_last).collect(),
            order: f64::from(number),
            user_priority: None,
            requirements: None,
            data_producer: false,
        });
        if is_last {
            graph.wanted.push(number);
        }
    }
    core.handle_graph(&graph, &stimulus(), 2.0)
        .expect("plain tasks");
    let (mut tasks, _) = sent(&mut core);
    let mut ended = 0;
    while !tasks.is_empty() {
        let (address, task) = tasks.remove(ended * 7 % tasks.len());
        let mut finished = finished(&address, &task);
        finished.actions[0].2 = 1.0 + 0.013_7 * (1 + ended % 29) as f64;
        core.handle_task_finished(&finished, &stimulus(), 3.0)
            .expect("it was sent there");
        tasks.extend(sent(&mut core).0);
        ended += 1;
        for worker in core.worker_views() {
            let expected_s = added_up_s(&core, &worker.task_prefix_count, worker.network_occ);
            assert_eq!(worker.occupancy.to_bits(), expected_s.to_bits());
        }
        let all = core.cluster_view();
        let expected_s = added_up_s(&core, &all.task_prefix_count, all.network_occ);
        assert_eq!(all.total_occupancy.to_bits(), expected_s.to_bits());
    }
    assert_eq!(ended, 240);
}

#[test]
fn a_core_that_goes_on_from_another_shows_the_same() {
    let mut core = core();
    core.handle_graph(&graph(20), &stimulus(), 2.0)
        .expect("plain tasks");
    let (mut tasks, _) = sent(&mut core);
    while let Some((address, task)) = tasks.pop() {
        core.handle_task_finished(&finished(&address, &task), &stimulus(), 3.0)
            .expect("it was sent there");
        tasks.extend(sent(&mut core).0);
    }
    let heir = SchedulerCore::inherit(Config::default(), &shown(&core)).expect("all is shown");
    assert_eq!(heir.cluster_view(), core.cluster_view());
    assert_eq!(heir.worker_views(), core.worker_views());
    assert_eq!(heir.prefix_views(), core.prefix_views());
    assert_eq!(heir.group_views(), core.group_views());
    for key in core.keys() {
        assert_eq!(heir.task_view(key), core.task_view(key));
    }
    assert_eq!(heir.keys(), core.keys());
    let learned = heir.prefix_views();
    assert!(learned.iter().all(|prefix| prefix.duration_average == 0.5));
}

/// The state of a core, for another one to go on from
fn shown(core: &SchedulerCore) -> Inherited {
    let tasks = core.keys().into_iter();
    Inherited {
        cluster: core.cluster_view(),
        workers: core.worker_views(),
        prefixes: core.prefix_views(),
        groups: core.group_views(),
        tasks: tasks.filter_map(|key| core.task_view(key)).collect(),
        streams: vec![Arc::from("client")],
    }
}

#[test]
fn a_worker_that_is_named_but_not_shown_is_refused() {
    let core = core();
    let mut inherited = shown(&core);
    inherited.workers.truncate(1);
    let refused = SchedulerCore::inherit(Config::default(), &inherited);
    let address = WORKERS[1].to_owned();
    assert_eq!(
        refused.map(|_| ()),
        Err(InheritError::UnknownWorker { address })
    );
}

#[test]
fn tasks_of_a_dead_worker_run_elsewhere() {
    let mut core = core();
    core.handle_graph(&graph(1), &stimulus(), 2.0)
        .expect("plain tasks");
    let (tasks, _) = sent(&mut core);
    let [(first, _)] = &tasks[..] else {
        panic!("one task is ready, {} were sent", tasks.len());
    };
    core.handle_worker_removed(first, false, false, &stimulus(), 3.0)
        .expect("it is there");
    let (tasks, _) = sent(&mut core);
    assert_eq!(tasks.len(), 1);
    assert_ne!(tasks[0].0, *first);
    let view = core.task_view(b"part-0").expect("it is not forgotten");
    assert_eq!((view.state, view.suspicious), (TaskState::Processing, 1));
}

#[test]
fn a_run_that_another_worker_was_given_is_refused() {
    let mut core = core();
    core.handle_graph(&graph(1), &stimulus(), 2.0)
        .expect("plain tasks");
    let (tasks, _) = sent(&mut core);
    let (given, task) = &tasks[0];
    let other = if &**given == WORKERS[0] {
        WORKERS[1]
    } else {
        WORKERS[0]
    };
    let refused = core.handle_task_finished(&finished(other, task), &stimulus(), 3.0);
    assert!(matches!(refused, Err(EventError::FinishedElsewhere { .. })));
    let view = core.task_view(b"part-0").expect("it is not forgotten");
    assert_eq!(view.processing_on.as_ref(), Some(given));
}

#[test]
fn a_number_without_a_key_changes_nothing() {
    let mut core = core();
    let mut graph = graph(1);
    graph.tasks[1].dependencies.push(7);
    let refused = core.handle_graph(&graph, &stimulus(), 2.0);
    assert_eq!(
        refused,
        Err(EventError::UnknownName {
            number: 7,
            names: 2
        })
    );
    assert!(core.keys().is_empty());
}

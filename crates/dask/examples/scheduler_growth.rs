//! Measures the cost of a task in the scheduler's state, as graphs and clusters grow: `cargo run
//! --release -p backhaul-dask --example scheduler_growth`
//!
//! Each case runs in a process of its own: a graph comes, and every task is finished as soon as it
//! is sent, without anything between. Times are of the processor. Bytes are the growth of the
//! process from before the graph is made until all is done and the graph dropped, with glibc set to
//! return freed memory immediately. `map 1000000 2` runs one case, with the arguments of its
//! command line.

use std::env;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use backhaul_dask::scheduler::{
    Config, Graph, GraphTask, Key, Message, Payload, SchedulerCore, Spec, TaskFinished,
    WorkerJoins, WorkerMessage, WorkerStatus,
};

/// Size of a run spec: a function by name and some arguments
const SPEC: [u8; 64] = [7; 64];
/// Has glibc keep nothing of what is freed at the end of its heap
const GIVES_BACK: [(&str, &str); 2] = [("MALLOC_TRIM_THRESHOLD_", "0"), ("MALLOC_TOP_PAD_", "0")];
/// Width of each block of all-to-all
const WIDTH: usize = 50;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [shape, tasks, workers] = &arguments[..] {
        let tasks = tasks.parse().expect("a number of tasks");
        let workers = workers.parse().expect("a number of workers");
        return measure(shape, tasks, workers);
    }
    println!(
        "| graph | tasks | workers | graph µs/task | finished µs/task | fifths of that | bytes/task |"
    );
    println!("|---|---|---|---|---|---|---|");
    let program = env::current_exe().expect("a program knows where it is");
    for shape in ["map", "tree", "all-to-all"] {
        for tasks in ["10000", "100000", "1000000"] {
            for workers in ["2", "1000"] {
                let status = Command::new(&program)
                    .args([shape, tasks, workers])
                    .envs(GIVES_BACK)
                    .status();
                assert!(status.expect("it starts again").success());
            }
        }
    }
}

fn measure(shape: &str, tasks: usize, workers: usize) {
    let mut core = SchedulerCore::new(Config::default());
    let stimulus: Arc<str> = Arc::from("stimulus");
    for number in 0..workers {
        let host = format!("10.0.{}.{}", number / 250, number % 250);
        let joins = WorkerJoins {
            address: Arc::from(format!("tcp://{host}:9000")),
            name: Arc::from(format!("worker {number}")),
            host: Arc::from(host),
            nthreads: 1,
            memory_limit: 1 << 33,
            status: WorkerStatus::Running,
            resources: Vec::new(),
            bandwidth_bytes_per_s: 1e8,
        };
        core.handle_worker_added(&joins, &stimulus, 1.0)
            .expect("names are different");
    }
    core.handle_client_added("client");
    let before_bytes = resident_bytes();
    let graph = graph_of(shape, tasks);
    let tasks = graph.tasks.len();

    let began = processor_time();
    core.handle_graph(&graph, &stimulus, 2.0)
        .expect("a graph of plain tasks");
    let graph_us = (processor_time() - began).as_secs_f64() * 1e6 / tasks as f64;
    drop(graph);

    let (type_, type_name, compute) = (
        Payload::from(&b"int"[..]),
        Arc::from("int"),
        Arc::from("compute"),
    );
    let mut finished = TaskFinished {
        key: Key::from(&b""[..]),
        worker: Arc::from(""),
        run_id: 0,
        nbytes: 28,
        type_,
        type_name,
        actions: vec![(compute, 0.0, 0.0)],
        thread: None,
    };
    let (mut done, mut fifths, mut inbox) = (0, Vec::new(), core.take_messages());
    let began = processor_time();
    while !inbox.is_empty() {
        for message in std::mem::take(&mut inbox) {
            let Message::ToWorker(address, WorkerMessage::ComputeTask(task)) = message else {
                continue;
            };
            let start_s = done as f64 * 1e-3;
            finished.key = task.key;
            finished.worker = address;
            finished.run_id = task.run_id;
            finished.actions[0].1 = start_s;
            finished.actions[0].2 = start_s + 1e-3;
            core.handle_task_finished(&finished, &stimulus, start_s)
                .expect("it was sent there");
            inbox.append(&mut core.take_messages());
            done += 1;
            if done % (tasks / 5).max(1) == 0 {
                fifths.push((processor_time() - began).as_secs_f64() * 1e6);
            }
        }
    }
    let finished_us = (processor_time() - began).as_secs_f64() * 1e6 / tasks as f64;
    assert_eq!(done, tasks, "every task is sent once");
    drop(inbox);
    let grown_bytes = resident_bytes().saturating_sub(before_bytes) / tasks;
    let mut last_us = 0.0;
    let fifths: Vec<String> = fifths
        .iter()
        .map(|&us| {
            let fifth_us = (us - last_us) * 5.0 / tasks as f64;
            last_us = us;
            format!("{fifth_us:.2}")
        })
        .collect();
    println!(
        "| {shape} | {tasks} | {workers} | {graph_us:.2} | {finished_us:.2} | {} | {grown_bytes} |",
        fifths.join(" ")
    );
}

/// Graphs with keys of 36 to 40 bytes, of which the last level is wanted
fn graph_of(shape: &str, tasks: usize) -> Graph {
    let mut maker = Maker::default();
    match shape {
        "map" => {
            for number in 0..tasks {
                let task = maker.add(format!("inc-{number:032x}"), "inc", Vec::new());
                maker.graph.wanted.push(task);
            }
        }
        "tree" => {
            let mut level: Vec<u32> = (0..tasks / 2)
                .map(|number| {
                    maker.add(format!("('leaf-{:024}', {number})", 1), "leaf", Vec::new())
                })
                .collect();
            for depth in 1.. {
                if level.len() == 1 {
                    break;
                }
                let name = format!("sum-{}", char::from(b'a' + depth % 26));
                let pairs = level.chunks(2).enumerate();
                level = pairs
                    .map(|(number, pair)| {
                        let key = format!("('{name}-{:022}', {number})", 1);
                        maker.add(key, &name, pair.to_vec())
                    })
                    .collect();
            }
            maker.graph.wanted = level;
        }
        _ => {
            for block in 0..tasks / (2 * WIDTH) {
                let (split, gather) = (format!("split{block}"), format!("gather{block}"));
                let inputs: Vec<u32> = (0..WIDTH)
                    .map(|number| {
                        maker.add(format!("('{split}', {number:020})"), &split, Vec::new())
                    })
                    .collect();
                for number in 0..WIDTH {
                    let key = format!("('{gather}', {number:020})");
                    let task = maker.add(key, &gather, inputs.clone());
                    maker.graph.wanted.push(task);
                }
            }
        }
    }
    maker.graph.client = Arc::from("client");
    maker.graph
}

#[derive(Default)]
struct Maker {
    graph: Graph,
    name: Option<Arc<str>>,
}

impl Maker {
    fn add(&mut self, key: String, group: &str, dependencies: Vec<u32>) -> u32 {
        let number = self.graph.keys.len() as u32;
        let group = match &self.name {
            Some(name) if **name == *group => Arc::clone(name),
            _ => Arc::from(group),
        };
        self.name = Some(Arc::clone(&group));
        self.graph.keys.push(Key::from(key.into_bytes()));
        self.graph.tasks.push(GraphTask {
            key: number,
            group: Arc::clone(&group),
            prefix: group,
            spec: Spec::from(&SPEC[..]),
            dependencies,
            order: f64::from(number),
            user_priority: None,
            requirements: None,
            data_producer: false,
        });
        number
    }
}

/// Time on a processor, so that what else the machine does is not counted
fn processor_time() -> Duration {
    let statistics = fs::read_to_string("/proc/self/schedstat").expect("Linux counts it");
    let first = statistics
        .split(' ')
        .next()
        .and_then(|number| number.parse().ok());
    Duration::from_nanos(first.expect("the first number is of nanoseconds"))
}

fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux says what a process holds");
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok());
    4096 * pages.expect("the second number is of pages")
}

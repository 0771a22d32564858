//! The state machine of a worker, told what a scheduler, peers and threads tell it.

use backhaul_dask::worker::{
    Asked, Host, Instruction, Limits, Line, PayloadId, PeerId, PrefixId, Priority, Refused, State,
    Stored, TaskId, WorkerCore,
};

/// Records the calls of the core
#[derive(Default)]
struct Recorder {
    told: Vec<String>,
    steps: Vec<(usize, State, State)>,
    refuses: bool,
}

impl Host for Recorder {
    fn monotonic_s(&mut self) -> f64 {
        0.0
    }

    fn random(&mut self) -> f64 {
        0.5
    }

    fn store(&mut self, _: TaskId, value: PayloadId) -> Stored {
        if self.refuses {
            Stored::Refused(value)
        } else {
            Stored::Kept
        }
    }

    fn size_of(&mut self, _: PayloadId) -> i64 {
        8
    }

    fn purge(&mut self, _: TaskId) {}

    fn forget(&mut self, task: TaskId) {
        self.told.push(format!("forget {}", task.index()));
    }

    fn fail(&mut self, _: TaskId, _: PayloadId) {}

    fn log(&mut self, line: Line<'_>) {
        if let Line::Transition {
            task, start, end, ..
        } = line
        {
            self.steps.push((task.index(), start, end));
        }
    }

    fn tell(&mut self, instruction: Instruction<'_>) {
        self.told.push(match instruction {
            Instruction::Execute(task) => format!("execute {}", task.index()),
            Instruction::TaskFinished(task, run_id, nbytes) => {
                format!("finished {} in run {run_id}: {nbytes} B", task.index())
            }
            Instruction::ReleaseWorkerData(task) => format!("release {}", task.index()),
            Instruction::AddKeys(task) => format!("add {}", task.index()),
            Instruction::TaskErred(task, run_id) => format!("erred {} in {run_id}", task.index()),
            other => format!("{other:?}"),
        });
    }

    fn gather(&mut self, peer: PeerId, tasks: &[TaskId], total_bytes: i64) {
        let tasks: Vec<_> = tasks.iter().map(|task| task.index()).collect();
        let told = format!("gather {tasks:?} from {}: {total_bytes} B", peer.index());
        self.told.push(told);
    }
}

fn worker(threads: usize) -> (WorkerCore, Recorder) {
    let limits = Limits {
        threads,
        transfers: 10.0,
        throttle_bytes: 1e7,
        incoming_bytes: f64::INFINITY,
        message_bytes: f64::INFINITY,
        default_bytes: 1000,
    };
    (WorkerCore::new(limits), Recorder::default())
}

fn ask(core: &mut WorkerCore, host: &mut Recorder, priority: f64, inputs: &[TaskId]) -> TaskId {
    let task = core.create(PrefixId::at(0));
    let answer = core.compute_task(host, task, 7);
    assert_eq!(answer, Asked::TakesOn { is_free: true });
    core.take_on(task, &Priority::new(&[priority]));
    for &input in inputs {
        core.add_input(host, task, input, 10);
    }
    task
}

fn succeed(core: &mut WorkerCore, host: &mut Recorder, task: TaskId) {
    core.succeeded(task, 7, 28, PayloadId::at(0))
        .expect("it runs");
    core.conclude(host).expect("nothing is odd");
}

#[test]
fn tasks_are_run_in_the_order_of_their_priority() {
    let (mut core, mut host) = worker(1);
    let first = ask(&mut core, &mut host, 5.0, &[]);
    core.conclude(&mut host).expect("nothing is odd");
    for priority in [2.0, 1.0] {
        ask(&mut core, &mut host, priority, &[]);
        core.conclude(&mut host).expect("nothing is odd");
    }
    assert_eq!(host.told, ["execute 0"]);
    host.told.clear();
    succeed(&mut core, &mut host, first);
    assert_eq!(host.told, ["finished 0 in run 7: 28 B", "execute 2"]);
    assert_eq!(core.counters().nbytes, 28);
    assert_eq!(core.ready_count(), 1);
}

#[test]
fn a_freed_task_is_forgotten_and_its_number_used_again() {
    let (mut core, mut host) = worker(2);
    let input = ask(&mut core, &mut host, 0.0, &[]);
    core.conclude(&mut host).expect("nothing is odd");
    succeed(&mut core, &mut host, input);
    let task = ask(&mut core, &mut host, 0.0, &[input]);
    core.conclude(&mut host).expect("nothing is odd");
    succeed(&mut core, &mut host, task);
    host.told.clear();
    for freed in [input, task] {
        core.free(freed);
        core.conclude(&mut host).expect("nothing is odd");
    }
    assert_eq!(
        host.told,
        ["release 0", "release 1", "forget 1", "forget 0"]
    );
    assert_eq!(core.task_count(), 0);
    assert_eq!(core.counters().nbytes, 0);
    assert!(core.counts().current().is_empty());
    assert!(core.create(PrefixId::at(0)).index() < 2);
}

#[test]
fn inputs_are_fetched_from_their_holders() {
    let (mut core, mut host) = worker(1);
    let peer = core.meet(true);
    let input = core.create(PrefixId::at(1));
    let task = ask(&mut core, &mut host, 0.0, &[input]);
    core.note_holders(input, &[peer]).expect("it is new");
    core.conclude(&mut host).expect("nothing is odd");
    assert_eq!(host.told, ["gather [0] from 0: 10 B"]);
    assert_eq!(core.view(task).state(), State::Waiting);
    host.told.clear();
    core.gathered(peer, 10, &[input]).expect("it is on its way");
    core.arrived(input, PayloadId::at(0));
    core.conclude(&mut host).expect("nothing is odd");
    assert_eq!(host.told, ["add 0", "execute 1"]);
    assert_eq!((core.transfers(), core.in_flight_count()), (0, 0));
}

#[test]
fn a_run_that_is_not_wanted_any_more_ends_quietly() {
    let (mut core, mut host) = worker(1);
    let task = ask(&mut core, &mut host, 0.0, &[]);
    core.conclude(&mut host).expect("nothing is odd");
    core.free(task);
    core.conclude(&mut host).expect("nothing is odd");
    assert_eq!(core.view(task).state(), State::Cancelled);
    host.told.clear();
    succeed(&mut core, &mut host, task);
    assert_eq!(host.told, ["forget 0"]);
    assert_eq!(core.executing_count(), 0);
}

#[test]
fn a_value_that_cannot_be_stored_is_an_error_of_its_task() {
    let (mut core, mut host) = worker(1);
    let task = ask(&mut core, &mut host, 0.0, &[]);
    core.conclude(&mut host).expect("nothing is odd");
    host.refuses = true;
    host.told.clear();
    succeed(&mut core, &mut host, task);
    assert_eq!(host.told, ["erred 0 in 7"]);
    assert_eq!(core.view(task).state(), State::Error);
}

#[test]
fn impossible_events_are_refused() {
    let (mut core, mut host) = worker(1);
    let peer = core.meet(false);
    let refused = core.gathered(peer, 0, &[]);
    assert!(matches!(refused, Err(Refused::Assertion(_))), "{refused:?}");
    let task = ask(&mut core, &mut host, 0.0, &[]);
    core.conclude(&mut host).expect("nothing is odd");
    core.scattered(&mut host, task, PayloadId::at(0));
    // It runs, and has a value from elsewhere: that run was never asked for.
    let refused = core.conclude(&mut host);
    assert!(matches!(refused, Err(Refused::Assertion(_))), "{refused:?}");
}

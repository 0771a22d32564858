//! In-flight window of each worker: how many tasks a worker is sent before it has ended others.
//!
//! The one policy for the engine, for the core without the engine, and for Dask's own state. A
//! worker that holds no more tasks than it has threads waits a round trip for each new one. One
//! that holds many has a backlog that costs memory, and that neither priorities nor idle workers
//! can reach. So the backlog is bounded by expected time, by expected bytes, by number, by how well
//! the expectation is confirmed, and by what is left to share (`docs/design/in-flight-window.md`).
//! No clock, no I/O.

use std::collections::HashMap;
use std::sync::Arc;

use crate::scheduler::{EventError, Front, SchedulerCore, WorkerRoom};

/// How far the window of a worker opens
#[derive(Clone, Copy, Debug)]
pub struct WindowLimits {
    /// Expected work for each thread, in seconds
    pub seconds: f64,
    /// Most tasks for each thread
    pub tasks_per_thread: f64,
    /// Share of its free memory that expected results may take
    pub memory_share: f64,
    /// The same in bytes, for a worker whose memory is not limited
    pub memory_budget_bytes: f64,
    /// Upstream's `worker-saturation`
    pub saturation: f64,
}

/// Expected time and size of the next task of a kind
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expectation {
    /// How long it runs, in seconds
    pub seconds: f64,
    /// Size of its result, in bytes
    pub nbytes: f64,
    seconds_alarm: f64,
    nbytes_alarm: f64,
}

/// Expectations learned from finished tasks, and the limits of each worker that follow
#[derive(Debug)]
pub struct Window {
    limits: WindowLimits,
    /// By prefix
    expectations: HashMap<Arc<str>, Expectation>,
    /// Tasks that have finished, by group
    confirmed: HashMap<Arc<str>, u64>,
    /// A worker is filled again when it has no more tasks in flight than this
    low_tasks: HashMap<Arc<str>, usize>,
    /// Memory in use by workers, as they say, in bytes
    memory_bytes: HashMap<Arc<str>, f64>,
    /// By prefix, of which a task took longer than this, in seconds: how many in a row did
    suspected: HashMap<Arc<str>, (f64, u32)>,
}

/// The tasks in flight to one worker: sent, and not known to have ended
#[derive(Debug)]
pub struct InFlight {
    threads: f64,
    /// Limit of the size of their results, in bytes
    budget_bytes: f64,
    tasks: f64,
    /// Expected time until all have ended, in seconds
    seconds: f64,
    /// Expected size of their results, in bytes
    nbytes: f64,
    /// Tasks that upstream gives the worker whatever they take
    floor: f64,
}

impl InFlight {
    /// Returns how many tasks upstream gives the worker whatever they take
    pub fn floor(&self) -> f64 {
        self.floor
    }
}

impl Expectation {
    /// Makes the expectation from the first task
    pub fn new(seconds: f64, nbytes: f64) -> Self {
        let mut made = Self {
            seconds,
            nbytes,
            seconds_alarm: 0.0,
            nbytes_alarm: 0.0,
        };
        made.act();
        made
    }

    /// Learns from a finished task; tells whether the expectation last acted on was wrong
    ///
    /// A longer task moves the expectation half way, a shorter one an eighth; a heavier task sets
    /// it, a lighter one moves it a sixteenth. So one slow task among a thousand quick ones costs a
    /// few round trips, and one heavy task keeps its weight for a while.
    pub fn observe(&mut self, seconds: f64, nbytes: f64) -> bool {
        let error_s = seconds - self.seconds;
        self.seconds += error_s
            * if error_s > 0.0 {
                SECONDS_UP
            } else {
                SECONDS_DOWN
            };
        if nbytes >= self.nbytes {
            self.nbytes = nbytes;
        } else {
            self.nbytes += (nbytes - self.nbytes) * BYTES_DOWN;
        }
        self.seconds > self.seconds_alarm || self.nbytes > self.nbytes_alarm
    }

    /// Notes that tasks are now sent because of this expectation
    ///
    /// Below the turnaround a duration makes no difference.
    pub fn act(&mut self) {
        self.seconds_alarm = SURPRISE * self.seconds.max(TURNAROUND_S);
        self.nbytes_alarm = SURPRISE * self.nbytes;
    }
}

impl Window {
    /// Makes a window that has learned nothing
    pub fn new(limits: WindowLimits) -> Self {
        Self {
            limits,
            expectations: HashMap::new(),
            confirmed: HashMap::new(),
            low_tasks: HashMap::new(),
            memory_bytes: HashMap::new(),
            suspected: HashMap::new(),
        }
    }

    /// Forgets all expectations and confirmations
    pub fn clear(&mut self) {
        self.expectations.clear();
        self.confirmed.clear();
        self.suspected.clear();
    }

    /// Takes over what was learned elsewhere of a prefix
    pub fn expect(&mut self, prefix: &str, expectation: Expectation) {
        self.expectations.insert(Arc::from(prefix), expectation);
    }

    /// Takes over how many tasks of a group have finished
    pub fn confirm(&mut self, group: &str, tasks: u64) {
        self.confirmed.insert(Arc::from(group), tasks);
    }

    /// Takes over all that another window has learned
    pub fn learn_from(&mut self, other: &Self) {
        for (prefix, one) in other.expectations() {
            self.expect(prefix, Expectation::new(one.seconds, one.nbytes));
        }
        for (group, tasks) in other.confirmed() {
            self.confirm(group, tasks);
        }
    }

    /// How far the window of a worker opens
    pub fn limits(&self) -> WindowLimits {
        self.limits
    }

    /// Returns the expectations by prefix
    pub fn expectations(&self) -> impl Iterator<Item = (&str, &Expectation)> {
        let all = self.expectations.iter();
        all.map(|(prefix, expectation)| (&**prefix, expectation))
    }

    /// How many tasks of groups have finished
    pub fn confirmed(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self.confirmed.iter();
        all.map(|(group, tasks)| (&**group, *tasks))
    }

    /// Notes how much memory a worker uses
    pub fn set_memory(&mut self, worker: &str, bytes: f64) {
        bound(&mut self.memory_bytes);
        self.memory_bytes.insert(Arc::from(worker), bytes);
    }

    /// Tells whether a worker has so few tasks in flight that it is filled again
    pub fn is_low(&self, worker: &str, tasks: usize) -> bool {
        self.low_tasks.get(worker).is_none_or(|&low| tasks <= low)
    }

    /// Notes how many tasks a worker has in flight after it was filled
    pub fn note_filled(&mut self, worker: &str, tasks: usize, threads: u32) {
        let low = (tasks / 2).max(self.floor_tasks(threads) as usize);
        match self.low_tasks.get_mut(worker) {
            Some(known) => *known = low,
            None => {
                bound(&mut self.low_tasks);
                self.low_tasks.insert(Arc::from(worker), low);
            }
        }
    }

    /// Forgets a worker that has left
    pub fn forget(&mut self, worker: &str) {
        self.low_tasks.remove(worker);
        self.memory_bytes.remove(worker);
    }

    /// Learns from a finished task; tells whether the expectation last acted on was wrong
    pub fn observe(&mut self, group: &str, prefix: &str, seconds: f64, nbytes: f64) -> bool {
        self.learn(group, prefix, seconds, nbytes)
            .is_some_and(|surprise| surprise.is_surprised)
    }

    /// Learns from a finished task; tells whether the expectation was surely wrong
    ///
    /// A few tasks may have waited for a CPU, so several long ones have to come in a row. For the
    /// time in which to take tasks back would end the core's ownership of the state.
    pub fn observe_patiently(
        &mut self,
        group: &str,
        prefix: &str,
        seconds: f64,
        nbytes: f64,
    ) -> bool {
        let Some(learned) = self.learn(group, prefix, seconds, nbytes) else {
            return false;
        };
        let suspected = self.suspected.remove(prefix);
        if learned.is_heavy || seconds >= SURELY_LONG_S {
            return learned.is_surprised;
        }
        let (limit_s, in_row) = match suspected {
            Some((limit_s, in_row)) => (limit_s, in_row),
            None if learned.is_surprised => (learned.alarm_s, 0),
            None => return false,
        };
        if seconds <= limit_s {
            return false;
        }
        if in_row + 1 < LONG_IN_ROW {
            let suspected = (limit_s, in_row + 1);
            self.suspected.insert(Arc::from(prefix), suspected);
            return false;
        }
        true
    }

    /// Learns from a finished task; None for the first one of its prefix
    fn learn(&mut self, group: &str, prefix: &str, seconds: f64, nbytes: f64) -> Option<Learned> {
        match self.confirmed.get_mut(group) {
            Some(tasks) => *tasks += 1,
            None => {
                if self.confirmed.len() >= GROUPS_MAX {
                    self.confirmed.clear();
                }
                self.confirmed.insert(Arc::from(group), 1);
            }
        }
        let Some(expectation) = self.expectations.get_mut(prefix) else {
            let expectation = Expectation::new(seconds, nbytes);
            self.expectations.insert(Arc::from(prefix), expectation);
            return None;
        };
        let alarm_s = expectation.seconds_alarm;
        Some(Learned {
            alarm_s,
            is_surprised: expectation.observe(seconds, nbytes),
            is_heavy: expectation.nbytes > expectation.nbytes_alarm,
        })
    }

    /// Sums up what is in flight to a worker; None if it is not known what that will take
    ///
    /// `used_bytes` is the memory in use at the worker, and `tasks` counts its tasks by prefix.
    pub fn in_flight<P: AsRef<str>>(
        &self,
        worker: &WorkerRoom,
        used_bytes: f64,
        tasks: impl IntoIterator<Item = (P, i64)>,
    ) -> Option<InFlight> {
        let used_bytes = used_bytes.max(worker.nbytes as f64);
        let budget_bytes = if worker.memory_limit == 0 {
            self.limits.memory_budget_bytes
        } else {
            self.limits.memory_share * (worker.memory_limit as f64 - used_bytes).max(0.0)
        };
        let mut in_flight = InFlight {
            threads: f64::from(worker.threads.max(1)),
            budget_bytes,
            tasks: 0.0,
            seconds: 0.0,
            nbytes: 0.0,
            floor: self.floor_tasks(worker.threads),
        };
        for (prefix, tasks) in tasks {
            let expectation = self.expectations.get(prefix.as_ref())?;
            let tasks = tasks as f64;
            in_flight.tasks += tasks;
            in_flight.seconds += tasks * turn_s(&in_flight, expectation);
            in_flight.nbytes += tasks * expectation.nbytes;
        }
        Some(in_flight)
    }

    /// Returns how many tasks of the group at the front of the queue to send to a worker now
    ///
    /// The number in flight beyond the floor never exceeds, over the whole cluster, the number of
    /// tasks that have confirmed the expectation: it may double with each round, like the window of
    /// a TCP connection that starts (RFC 5681, section 3.1). And no worker gets more than half of
    /// its share of what is left, so that the workers end together: Factoring, S. F. Hummel,
    /// E. Schonberg and L. E. Flynn, Communications of the ACM 35(8) (1992) 90-101.
    pub fn room(&mut self, front: &Front, in_flight: &InFlight, threads_all: f64) -> usize {
        let confirmed = self.confirmed.get(&front.group).copied().unwrap_or(0);
        // A negative average: upstream has forgotten it, because a task has been running for far
        // longer than that.
        if confirmed == 0 || front.duration_s < 0.0 {
            return 0;
        }
        let Some(expectation) = self.expectations.get_mut(&front.prefix) else {
            return 0;
        };
        expectation.act();
        let expectation = *expectation;
        if in_flight.budget_bytes < HEAVY_FLOORS * in_flight.floor * expectation.nbytes {
            return 0;
        }
        let part = in_flight.threads / threads_all.max(in_flight.threads);
        let room = (self.limits.tasks_per_thread * in_flight.threads - in_flight.tasks)
            .min(in_flight.floor + confirmed as f64 * part - in_flight.tasks)
            .min(front.queued as f64 * part / 2.0)
            .min(self.room_by_cost(in_flight, &expectation));
        room.floor().max(0.0) as usize
    }

    /// Notes that tasks of a prefix are about to be taken back; returns what each of them takes
    pub fn act(&mut self, prefix: &str) -> Option<Expectation> {
        let expectation = self.expectations.get_mut(prefix)?;
        expectation.act();
        Some(*expectation)
    }

    /// Returns how many tasks of a kind a worker has in flight that it should not
    ///
    /// 0 if they are less than half of what it has, because that is not worth the requests.
    pub fn excess(&self, in_flight: &InFlight, expectation: &Expectation) -> f64 {
        let excess = (-self.room_by_cost(in_flight, expectation))
            .ceil()
            .min(in_flight.tasks - in_flight.floor);
        if 2.0 * excess >= in_flight.tasks && excess > 0.0 {
            excess
        } else {
            0.0
        }
    }

    /// Fills a worker of a core if it is down to the limit at which it is filled again
    ///
    /// # Errors
    ///
    /// Those of [`SchedulerCore::fill`].
    pub fn refill(
        &mut self,
        core: &mut SchedulerCore,
        worker: &str,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        let mut tasks = core.in_flight(worker)?;
        if !self.is_low(worker, tasks) {
            return Ok(());
        }
        while let Some(front) = core.front(worker)? {
            let threads_all = f64::from(core.total_threads());
            let room = match self.in_flight_of(core, worker) {
                Some(in_flight) => self.room(&front, &in_flight, threads_all),
                None => 0,
            };
            if room == 0 {
                break;
            }
            let sent = core.fill(worker, room, stimulus, now_s)?;
            tasks += sent;
            if sent == 0 || sent == room {
                break;
            }
        }
        self.note_filled(worker, tasks, core.worker_room(worker)?.threads);
        Ok(())
    }

    /// Tells whether some worker of a core has so many tasks of a prefix more than it should that
    /// it is worth the end of the core's ownership to take them back
    pub fn check_excess(&mut self, core: &SchedulerCore, prefix: &str) -> bool {
        let Some(expectation) = self.act(prefix) else {
            return false;
        };
        core.worker_addresses().iter().any(|worker| {
            let in_flight = self.in_flight_of(core, worker);
            in_flight.is_some_and(|in_flight| {
                let excess = self.excess(&in_flight, &expectation);
                excess * expectation.seconds / in_flight.threads > WORTH_TAKING_BACK_S
                    || excess * expectation.nbytes > in_flight.budget_bytes
            })
        })
    }

    fn in_flight_of(&self, core: &SchedulerCore, worker: &str) -> Option<InFlight> {
        let used_bytes = self.memory_bytes.get(worker).copied().unwrap_or(0.0);
        let tasks = core.in_flight_by_prefix(worker).ok()?;
        self.in_flight(&core.worker_room(worker).ok()?, used_bytes, tasks)
    }

    fn room_by_cost(&self, in_flight: &InFlight, expectation: &Expectation) -> f64 {
        let tasks_max = self.limits.tasks_per_thread * in_flight.threads;
        let by_time = (self.limits.seconds - in_flight.seconds) / turn_s(in_flight, expectation);
        let left_bytes = in_flight.budget_bytes - in_flight.nbytes;
        let by_bytes = if expectation.nbytes > 0.0 {
            left_bytes / expectation.nbytes
        } else if left_bytes >= 0.0 {
            tasks_max
        } else {
            -tasks_max
        };
        by_time.min(by_bytes).min(tasks_max).max(-tasks_max)
    }

    fn floor_tasks(&self, threads: u32) -> f64 {
        (self.limits.saturation * f64::from(threads))
            .ceil()
            .max(1.0)
    }
}

/// The change of an expectation by a finished task
struct Learned {
    /// Duration above which the expectation was wrong before, in seconds
    alarm_s: f64,
    is_surprised: bool,
    /// The result was larger than expected
    is_heavy: bool,
}

/// Empties a table of workers that has become too large, because workers come and go
fn bound<T>(table: &mut HashMap<Arc<str>, T>) {
    if table.len() >= WORKERS_MAX {
        table.clear();
    }
}

/// Returns the time from one task's end to the next one's, in seconds, with all threads busy
fn turn_s(in_flight: &InFlight, expectation: &Expectation) -> f64 {
    (expectation.seconds / in_flight.threads).max(TURNAROUND_S)
}

/// Time of a worker for one task besides running it, in seconds: receiving, starting, reporting
///
/// The worker's event loop does this for one task at a time, with any number of threads. `backhaul
/// bench tasks` measures this order of size.
const TURNAROUND_S: f64 = 0.3e-3;

/// An expectation that has grown by this factor since it was last acted on was wrong
const SURPRISE: f64 = 2.0;

/// A kind of task is heavy if the budget holds fewer than this many times upstream's limit
///
/// So few more would save no round trip that is worth the memory.
const HEAVY_FLOORS: f64 = 4.0;

const SECONDS_UP: f64 = 1.0 / 2.0;
const SECONDS_DOWN: f64 = 1.0 / 8.0;
const BYTES_DOWN: f64 = 1.0 / 16.0;

/// Groups whose finished tasks are counted; when there are more, all counts start again
const GROUPS_MAX: usize = 10_000;

/// Workers whose limits and memory are known; when there are more, all start again
const WORKERS_MAX: usize = 100_000;

/// So many long tasks in a row are no chance
const LONG_IN_ROW: u32 = 4;

/// A task that takes so long, in seconds, has not merely waited for a CPU
const SURELY_LONG_S: f64 = 1.0;

/// To take tasks back is an escape: not for less work of a thread than this, in seconds
const WORTH_TAKING_BACK_S: f64 = 0.2;

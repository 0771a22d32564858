//! The in-flight window of each worker: `backhaul.dask.scheduler.saturation` and
//! `backhaul.dask.scheduler.core.window` once more, number for number.
//!
//! The policy is explained there and in `docs/design/in-flight-window.md`; a test holds the two to
//! the same numbers.

use std::collections::HashMap;
use std::sync::Arc;

use crate::scheduler::{EventError, SchedulerCore};

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

/// Expectations learned from finished tasks
#[derive(Debug)]
pub(super) struct Window {
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

/// The window, for those who know of it besides
#[derive(Debug)]
pub struct WindowState<'a>(&'a mut Window);

/// The tasks in flight to one worker
#[derive(Debug)]
struct InFlight {
    threads: f64,
    budget_bytes: f64,
    tasks: f64,
    seconds: f64,
    nbytes: f64,
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

    /// Learns from a finished task; tells whether the guess last acted on was wrong
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

    /// Notes that tasks are now sent out on the strength of this guess
    pub fn act(&mut self) {
        self.seconds_alarm = SURPRISE * self.seconds.max(TURNAROUND_S);
        self.nbytes_alarm = SURPRISE * self.nbytes;
    }
}

impl WindowState<'_> {
    /// Takes over what was learned elsewhere of a prefix
    pub fn expect(&mut self, prefix: &str, expectation: Expectation) {
        self.0.expectations.insert(Arc::from(prefix), expectation);
    }

    /// Takes over how many tasks of a group have finished
    pub fn confirm(&mut self, group: &str, tasks: u64) {
        self.0.confirmed.insert(Arc::from(group), tasks);
    }

    /// Returns the expectations by prefix
    pub fn expectations(&self) -> impl Iterator<Item = (&str, &Expectation)> {
        let all = self.0.expectations.iter();
        all.map(|(prefix, expectation)| (&**prefix, expectation))
    }

    /// How many tasks of groups have finished
    pub fn confirmed(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self.0.confirmed.iter();
        all.map(|(group, tasks)| (&**group, *tasks))
    }

    /// Notes how much memory a worker uses
    pub fn set_memory(&mut self, worker: &str, bytes: f64) {
        self.0.memory_bytes.insert(Arc::from(worker), bytes);
    }

    /// Learns from a task that the event loop handled; returns whether the expectation was wrong
    pub fn observe(&mut self, group: &str, prefix: &str, seconds: f64, nbytes: f64) -> bool {
        let (group, prefix) = (Arc::from(group), Arc::from(prefix));
        self.0.observe(&group, &prefix, seconds, nbytes)
    }

    /// Fills a worker if it is down to what it is filled at again
    ///
    /// # Errors
    ///
    /// What [`SchedulerCore::fill`] may meet.
    pub fn refill(
        &mut self,
        core: &mut SchedulerCore,
        worker: &str,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        self.0.refill(core, &Arc::from(worker), stimulus, now_s)
    }

    /// Looks whether workers have so many tasks of a kind more than they should that it is worth
    /// taking them back
    pub fn check_excess(&mut self, core: &SchedulerCore, prefix: &str) -> bool {
        self.0.check_excess(core, &Arc::from(prefix))
    }
}

impl Window {
    pub(super) fn new(limits: WindowLimits) -> Self {
        Self {
            limits,
            expectations: HashMap::new(),
            confirmed: HashMap::new(),
            low_tasks: HashMap::new(),
            memory_bytes: HashMap::new(),
            suspected: HashMap::new(),
        }
    }

    /// Forgets a worker that has left
    pub(super) fn forget(&mut self, worker: &str) {
        self.low_tasks.remove(worker);
        self.memory_bytes.remove(worker);
    }

    pub(super) fn state(&mut self) -> WindowState<'_> {
        WindowState(self)
    }

    pub(super) fn observe(
        &mut self,
        group: &Arc<str>,
        prefix: &Arc<str>,
        seconds: f64,
        nbytes: f64,
    ) -> bool {
        match self.confirmed.get_mut(group) {
            Some(tasks) => *tasks += 1,
            None => {
                if self.confirmed.len() >= GROUPS_MAX {
                    self.confirmed.clear();
                }
                self.confirmed.insert(Arc::clone(group), 1);
            }
        }
        let Some(expectation) = self.expectations.get_mut(prefix) else {
            let expectation = Expectation::new(seconds, nbytes);
            self.expectations.insert(Arc::clone(prefix), expectation);
            return false;
        };
        let alarm_s = expectation.seconds_alarm;
        let is_surprised = expectation.observe(seconds, nbytes);
        let is_heavy = expectation.nbytes > expectation.nbytes_alarm;
        let suspected = self.suspected.remove(prefix);
        if is_heavy || seconds >= SURELY_LONG_S {
            return is_surprised;
        }
        // A few may have waited for a CPU.
        let (limit_s, in_row) = match suspected {
            Some((limit_s, in_row)) => (limit_s, in_row),
            None if is_surprised => (alarm_s, 0),
            None => return false,
        };
        if seconds <= limit_s {
            return false;
        }
        if in_row + 1 < LONG_IN_ROW {
            let suspected = (limit_s, in_row + 1);
            self.suspected.insert(Arc::clone(prefix), suspected);
            return false;
        }
        true
    }

    pub(super) fn refill(
        &mut self,
        core: &mut SchedulerCore,
        worker: &Arc<str>,
        stimulus: &Arc<str>,
        now_s: f64,
    ) -> Result<(), EventError> {
        let mut tasks = core.in_flight(worker)?;
        if self.low_tasks.get(worker).is_some_and(|&low| tasks > low) {
            return Ok(());
        }
        let floor = self.floor_tasks(core.worker_room(worker)?.threads);
        loop {
            let room = self.room(core, worker, floor)?;
            if room == 0 {
                break;
            }
            let sent = core.fill(worker, room, stimulus, now_s)?;
            tasks += sent;
            if sent == 0 || sent == room {
                break;
            }
        }
        let low = (tasks / 2).max(floor as usize);
        match self.low_tasks.get_mut(worker) {
            Some(known) => *known = low,
            None => {
                self.low_tasks.insert(Arc::clone(worker), low);
            }
        }
        Ok(())
    }

    /// Looks whether some worker has enough more tasks of a kind than it should, now that it is known
    pub(super) fn check_excess(&mut self, core: &SchedulerCore, prefix: &Arc<str>) -> bool {
        let Some(expectation) = self.expectations.get_mut(prefix) else {
            return false;
        };
        expectation.act();
        let expectation = *expectation;
        core.worker_addresses().iter().any(|worker| {
            let Ok(room) = core.worker_room(worker) else {
                return false;
            };
            let floor = self.floor_tasks(room.threads);
            if core
                .in_flight(worker)
                .is_ok_and(|tasks| tasks as f64 <= floor)
            {
                return false;
            }
            self.in_flight(core, worker).is_some_and(|in_flight| {
                let excess = self.excess(&in_flight, &expectation, floor);
                excess * expectation.seconds / in_flight.threads > WORTH_TAKING_BACK_S
                    || excess * expectation.nbytes > in_flight.budget_bytes
            })
        })
    }

    /// Room for tasks of the group at the front of the queue
    fn room(
        &mut self,
        core: &mut SchedulerCore,
        worker: &Arc<str>,
        floor: f64,
    ) -> Result<usize, EventError> {
        let Some(front) = core.front(worker)? else {
            return Ok(0);
        };
        let confirmed = self.confirmed.get(&front.group).copied().unwrap_or(0);
        if confirmed == 0
            || front.duration_s < 0.0
            || !self.expectations.contains_key(&front.prefix)
        {
            return Ok(0);
        }
        let Some(in_flight) = self.in_flight(core, worker) else {
            return Ok(0);
        };
        let Some(expectation) = self.expectations.get_mut(&front.prefix) else {
            return Ok(0);
        };
        expectation.act();
        let expectation = *expectation;
        if in_flight.budget_bytes < HEAVY_FLOORS * floor * expectation.nbytes {
            return Ok(0);
        }
        let threads_all = f64::from(core.total_threads());
        let part = in_flight.threads / threads_all.max(in_flight.threads);
        let room = (self.limits.tasks_per_thread * in_flight.threads - in_flight.tasks)
            .min(floor + confirmed as f64 * part - in_flight.tasks)
            .min(front.queued as f64 * part / 2.0)
            .min(self.room_by_cost(&in_flight, &expectation));
        Ok(room.floor().max(0.0) as usize)
    }

    /// Sums up what is in flight to a worker; None if it is not known what that will take
    fn in_flight(&self, core: &SchedulerCore, worker: &Arc<str>) -> Option<InFlight> {
        let room = core.worker_room(worker).ok()?;
        let used_bytes = self.memory_bytes.get(worker).copied().unwrap_or(0.0);
        let used_bytes = used_bytes.max(room.nbytes as f64);
        let budget_bytes = if room.memory_limit == 0 {
            self.limits.memory_budget_bytes
        } else {
            self.limits.memory_share * (room.memory_limit as f64 - used_bytes).max(0.0)
        };
        let mut in_flight = InFlight {
            threads: f64::from(room.threads.max(1)),
            budget_bytes,
            tasks: 0.0,
            seconds: 0.0,
            nbytes: 0.0,
        };
        for (prefix, tasks) in core.in_flight_by_prefix(worker).ok()? {
            let expectation = self.expectations.get(&prefix)?;
            let tasks = tasks as f64;
            in_flight.tasks += tasks;
            in_flight.seconds += tasks * turn_s(&in_flight, expectation);
            in_flight.nbytes += tasks * expectation.nbytes;
        }
        Some(in_flight)
    }

    fn excess(&self, in_flight: &InFlight, expectation: &Expectation, floor: f64) -> f64 {
        let excess = (-self.room_by_cost(in_flight, expectation))
            .ceil()
            .min(in_flight.tasks - floor);
        if 2.0 * excess >= in_flight.tasks && excess > 0.0 {
            excess
        } else {
            0.0
        }
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

fn turn_s(in_flight: &InFlight, expectation: &Expectation) -> f64 {
    (expectation.seconds / in_flight.threads).max(TURNAROUND_S)
}

const TURNAROUND_S: f64 = 0.3e-3;
const SURPRISE: f64 = 2.0;
const HEAVY_FLOORS: f64 = 4.0;
const SECONDS_UP: f64 = 1.0 / 2.0;
const SECONDS_DOWN: f64 = 1.0 / 8.0;
const BYTES_DOWN: f64 = 1.0 / 16.0;

/// Groups whose finished tasks are counted; when there are more, all counts start again
const GROUPS_MAX: usize = 10_000;

/// So many long tasks in a row are no chance
const LONG_IN_ROW: u32 = 4;

/// A task that takes so long, in seconds, has not merely waited for a CPU
const SURELY_LONG_S: f64 = 1.0;

/// To take tasks back is an escape: not for less work of a thread than this, in seconds
const WORTH_TAKING_BACK_S: f64 = 0.2;

//! Ring buffer of the last runs that ended well: task, worker, result size, and times of actions.
//!
//! A scheduler keeps one record for all of its cores, so that a program can ask what limited a job
//! after the job has ended. The record drops the oldest run first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::task::Key;

/// A run that ended well
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRun {
    /// Key of the task
    pub key: Key,
    /// Prefix of the task
    pub prefix: Arc<str>,
    /// Address of the worker
    pub worker: Arc<str>,
    /// Thread that ran the task, as the worker numbers its threads
    pub thread: Option<u64>,
    /// Size of the result, in bytes
    pub nbytes: u64,
    /// Actions with their begin and end by the worker's clock, in seconds
    pub actions: Box<[(Arc<str>, f64, f64)]>,
}

impl RecordedRun {
    /// When the last action ended, in seconds
    fn stop_s(&self) -> f64 {
        let stops = self.actions.iter().map(|&(_, _, stop_s)| stop_s);
        stops.fold(f64::NEG_INFINITY, f64::max)
    }
}

/// The last runs, shared by the cores that write and the programs that read
#[derive(Debug)]
pub struct RunRecord {
    runs_max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    runs: VecDeque<RecordedRun>,
    dropped: u64,
}

impl RunRecord {
    /// Makes an empty record of at most so many runs
    pub fn new(runs_max: usize) -> Self {
        Self {
            runs_max,
            state: Mutex::default(),
        }
    }

    /// Appends a run
    pub fn add(&self, run: RecordedRun) {
        let mut state = self.lock();
        if state.runs.len() >= self.runs_max {
            state.runs.pop_front();
            state.dropped += 1;
        }
        if self.runs_max > 0 {
            state.runs.push_back(run);
        }
    }

    /// Returns the runs that ended at or after a time, in seconds, and how many were dropped so far
    pub fn since(&self, start_s: f64) -> (Vec<RecordedRun>, u64) {
        let state = self.lock();
        let runs = state.runs.iter();
        let found = runs.filter(|run| run.stop_s() >= start_s).cloned();
        (found.collect(), state.dropped)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, stop_s: f64) -> RecordedRun {
        RecordedRun {
            key: Key::from(name.as_bytes()),
            prefix: Arc::from(name),
            worker: Arc::from("tcp://127.0.0.1:1"),
            thread: Some(1),
            nbytes: 8,
            actions: Box::new([(Arc::from("compute"), stop_s - 1.0, stop_s)]),
        }
    }

    #[test]
    fn full_record_drops_the_oldest_runs() {
        let record = RunRecord::new(2);
        for (name, stop_s) in [("a", 1.0), ("b", 2.0), ("c", 3.0)] {
            record.add(run(name, stop_s));
        }
        assert_eq!(record.since(0.0), (vec![run("b", 2.0), run("c", 3.0)], 1));
    }

    #[test]
    fn reader_gets_the_runs_that_ended_since_a_time() {
        let record = RunRecord::new(8);
        record.add(run("a", 1.0));
        record.add(run("b", 2.0));
        assert_eq!(record.since(1.5), (vec![run("b", 2.0)], 0));
    }

    #[test]
    fn record_without_room_keeps_nothing() {
        let record = RunRecord::new(0);
        record.add(run("a", 1.0));
        assert_eq!(record.since(0.0).0, Vec::new());
    }
}

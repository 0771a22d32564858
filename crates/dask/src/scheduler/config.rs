//! Settings of the scheduler's decisions.

use std::sync::Arc;

/// The settings of Dask's that decide; defaults are Dask's
#[derive(Clone, Debug)]
pub struct Config {
    /// `scheduler.worker-saturation`: root-ish tasks sent to a worker for each of its threads;
    /// infinite to hold none back
    pub worker_saturation: f64,
    /// `scheduler.rootish-taskgroup`: groups with fewer groups to depend on may be root-ish
    pub rootish_dependencies: usize,
    /// `scheduler.rootish-taskgroup-dependencies`: and with fewer tasks in those
    pub rootish_dependency_tasks: usize,
    /// `scheduler.unknown-task-duration`, in seconds
    pub unknown_duration_s: f64,
    /// `scheduler.default-task-durations`, in seconds, by prefix
    pub known_durations_s: Vec<(Arc<str>, f64)>,
    /// `scheduler.allowed-failures`: workers that may die while they run a task
    pub allowed_failures: u32,
    /// `scheduler.bandwidth`, until workers tell, in bytes per second
    pub bandwidth_bytes_per_s: f64,
    /// `scheduler.default-data-size`: of a result whose size is not known, in bytes
    pub default_data_bytes: u64,
    /// `scheduler.no-workers-timeout`, in seconds, if there is one
    pub no_workers_timeout_s: Option<f64>,
    /// `worker.memory.terminate`: whether a task whose inputs cannot fit its worker fails immediately
    pub refuse_over_memory: bool,
    /// Most concurrent tasks of a worker that take less than a thread; without a number, requests
    /// restrict tasks to workers that have the resource, and no task waits here
    pub beside_tasks_max: Option<u32>,
    /// `admin.low-level-log-length`: transitions that are kept for those who ask what happened
    pub recent_transitions_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            worker_saturation: 1.1,
            rootish_dependencies: 5,
            rootish_dependency_tasks: 5,
            unknown_duration_s: 0.5,
            known_durations_s: Vec::new(),
            allowed_failures: 3,
            bandwidth_bytes_per_s: 100e6,
            default_data_bytes: 1024,
            no_workers_timeout_s: None,
            refuse_over_memory: true,
            beside_tasks_max: None,
            recent_transitions_max: 0,
        }
    }
}

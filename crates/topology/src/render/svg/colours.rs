//! The colour of each worker, and who uses what

use crate::plan::{Plan, WorkerPlan};

/// The workers of a plan with their colours; none without a plan
#[derive(Debug, Default)]
pub(super) struct Colours<'p> {
    workers: Vec<(&'p WorkerPlan, String)>,
}

impl<'p> Colours<'p> {
    pub(super) fn new(plan: Option<&'p Plan>) -> Self {
        let workers = plan.map_or(&[][..], |plan| &plan.workers);
        Self {
            workers: workers
                .iter()
                .enumerate()
                .map(|(number, worker)| (worker, colour(number)))
                .collect(),
        }
    }

    /// Every worker with its colour
    pub(super) fn all(&self) -> impl Iterator<Item = (&'p WorkerPlan, &str)> {
        self.workers
            .iter()
            .map(|(worker, colour)| (*worker, colour.as_str()))
    }

    /// Colours of the workers on a CPU
    pub(super) fn of_cpu(&self, cpu: u32) -> Vec<&str> {
        self.those(|worker| worker.cpus.contains(cpu))
    }

    /// Colours of the workers whose own GPU it is, or an instance of it
    pub(super) fn of_gpu(&self, index: u32) -> Vec<&str> {
        self.those(|worker| worker.gpus.first().is_some_and(|gpu| gpu.index == index))
    }

    /// Colours of the workers that have an interface or RDMA device
    pub(super) fn of_network(&self, name: &str) -> Vec<&str> {
        self.those(|worker| {
            worker.nic.as_deref() == Some(name) || worker.rdma.as_deref() == Some(name)
        })
    }

    fn those(&self, which: impl Fn(&WorkerPlan) -> bool) -> Vec<&str> {
        self.workers
            .iter()
            .filter(|(worker, _)| which(worker))
            .map(|(_, colour)| colour.as_str())
            .collect()
    }
}

/// Colours that differ clearly on white and on black; after them, hues by the golden angle
fn colour(number: usize) -> String {
    const FIRST: [&str; 8] = [
        "#e4572e", "#2e86de", "#f0a202", "#17a589", "#8e5bd6", "#e0529c", "#7c9a1e", "#0fa3b1",
    ];
    FIRST.get(number).map_or_else(
        || {
            let hue = (number as f64 * 137.508) % 360.0;
            let light = [52, 44, 60][number % 3];
            format!("hsl({hue:.0}, 62%, {light}%)")
        },
        |&colour| colour.to_owned(),
    )
}

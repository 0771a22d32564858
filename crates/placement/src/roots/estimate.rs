//! How long a graph takes if its roots run where a plan says: enough to choose between plans.
//!
//! Each task that comes later is taken to run where most bytes of its inputs are. The sum is over
//! the work of the workers, and the bytes over the edges; neither order nor latency counts.

use super::graph::{Graph, Place};
use super::plan::{Target, positions};
use crate::cost::LinkCosts;

/// Costs and result sizes of tasks, by kind
#[derive(Clone, Copy, Debug)]
pub struct Kinds<'a> {
    /// The kind of each task
    pub of: &'a [u32],
    /// Seconds of a task, and bytes of its result, by kind; 0 where they are not known
    pub table: &'a [(f64, f64)],
}

impl Kinds<'_> {
    /// Seconds of a task, and bytes of its result
    pub(super) fn get(&self, task: u32) -> (f64, f64) {
        self.of
            .get(task as usize)
            .and_then(|&kind| self.table.get(kind as usize))
            .copied()
            .unwrap_or_default()
    }
}

/// Estimates how long a graph takes
///
/// `planned` has the number of a worker for each root; other roots are taken to run nowhere.
#[must_use]
pub fn estimate(
    graph: &Graph,
    kinds: Kinds<'_>,
    targets: &[Target],
    planned: &[Option<u32>],
    links: &dyn LinkCosts,
) -> Estimate {
    let positions = positions(targets);
    let index_of = |worker: u32| positions.get(&worker).copied();
    // By task: the place among the targets of who has its result
    let mut at: Vec<Option<usize>> = vec![None; graph.len()];
    // By task: the workers it was sent to already, as bits; more than 64 workers share bits
    let mut sent: Vec<u64> = vec![0; graph.len()];
    let mut work_s: Vec<f64> = vec![0.0; targets.len()];
    let mut edge_bytes: Vec<f64> = vec![0.0; links.capacities().len()];
    let mut held: Vec<(usize, f64)> = Vec::new();
    for task in 0..graph.len() as u32 {
        let chosen = match graph.place(task) {
            Place::On(worker) => index_of(worker),
            Place::Root => planned[task as usize].and_then(index_of),
            Place::Later => {
                held.clear();
                for &need in graph.needs(task) {
                    let Some(holder) = at[need as usize] else {
                        continue;
                    };
                    let bytes = kinds.get(need).1.max(1.0);
                    match held.iter_mut().find(|(other, _)| *other == holder) {
                        Some((_, sum)) => *sum += bytes,
                        None => held.push((holder, bytes)),
                    }
                }
                held.iter()
                    .max_by(|a, b| {
                        a.1.total_cmp(&b.1)
                            .then(work_s[b.0].total_cmp(&work_s[a.0]))
                    })
                    .map(|&(holder, _)| holder)
            }
        };
        at[task as usize] = chosen;
        let Some(chosen) = chosen else { continue };
        if !matches!(graph.place(task), Place::On(_)) {
            work_s[chosen] += kinds.get(task).0 / targets[chosen].share.max(f64::MIN_POSITIVE);
        }
        for &need in graph.needs(task) {
            let Some(holder) = at[need as usize] else {
                continue;
            };
            let bit = 1 << (chosen % 64);
            if holder == chosen || sent[need as usize] & bit != 0 {
                continue;
            }
            sent[need as usize] |= bit;
            let route = links.route(targets[holder].worker, targets[chosen].worker);
            for &edge in route.edges() {
                edge_bytes[edge as usize] += kinds.get(need).1.max(1.0);
            }
        }
    }
    let shares: f64 = targets.iter().map(|target| target.share).sum();
    let whole_s: f64 = work_s
        .iter()
        .zip(targets)
        .map(|(seconds, target)| seconds * target.share)
        .sum();
    Estimate {
        busiest_s: work_s.into_iter().fold(0.0, f64::max),
        balanced_s: whole_s / shares.max(f64::MIN_POSITIVE),
        traffic_s: edge_bytes
            .iter()
            .zip(links.capacities())
            .map(|(bytes, capacity)| bytes / capacity)
            .fold(0.0, f64::max),
    }
}

/// Time of a graph, in seconds
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// All tasks of the worker that has most to do
    pub busiest_s: f64,
    /// All tasks, if every worker has its share
    pub balanced_s: f64,
    /// All bytes over the edge that has most to carry
    pub traffic_s: f64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

    use super::*;
    use crate::cost::{Route, RouteTable};

    #[test]
    fn work_and_bytes_are_summed_up_where_they_are() {
        let both = Route::new(&[0], 0.0).unwrap();
        let links = RouteTable::new(2, vec![10.0], [(0, 1, both), (1, 0, both)]).unwrap();
        let targets = [0, 1].map(|worker| Target {
            worker,
            share: 1.0,
            roots_max: f64::INFINITY,
            memory_bytes: f64::INFINITY,
        });
        // Two roots that are combined
        let graph = Graph::read(&[-1, -1, -2], &[0, 0, 2, 0, 1]).unwrap();
        let time = |table: &[(f64, f64)], planned: [Option<u32>; 3]| {
            let kinds = Kinds {
                of: &[0, 0, 0],
                table,
            };
            estimate(&graph, kinds, &targets, &planned, &links)
        };
        let apart = [Some(0), Some(1), None];
        let together = [Some(0), Some(0), None];
        let known = [(1.0, 100.0)];
        assert!((time(&known, apart).traffic_s - 10.0).abs() < 1e-9);
        assert!((time(&known, apart).busiest_s - 2.0).abs() < 1e-9);
        assert_eq!(time(&known, together).traffic_s, 0.0);
        assert!((time(&known, together).busiest_s - 3.0).abs() < 1e-9);
        assert!((time(&known, together).balanced_s - 1.5).abs() < 1e-9);
        assert_eq!(time(&[], [None; 3]), Estimate::default());
    }

    #[test]
    fn a_result_is_sent_to_a_worker_once() {
        let both = Route::new(&[0], 0.0).unwrap();
        let links = RouteTable::new(2, vec![1.0], [(0, 1, both), (1, 0, both)]).unwrap();
        let targets = [0, 1].map(|worker| Target {
            worker,
            share: 1.0,
            roots_max: f64::INFINITY,
            memory_bytes: f64::INFINITY,
        });
        // A small result on worker 0 that two tasks of worker 1 need
        let graph = Graph::read(&[0, 1, -2, -2], &[0, 0, 2, 0, 1, 2, 0, 1]).unwrap();
        let kinds = Kinds {
            of: &[0, 1, 2, 2],
            table: &[(0.0, 5.0), (0.0, 50.0)],
        };
        let found = estimate(&graph, kinds, &targets, &[None; 4], &links);
        assert_eq!(found.traffic_s, 5.0);
    }
}

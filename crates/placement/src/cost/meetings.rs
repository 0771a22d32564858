//! Place where the result of a task will be needed: beside the results it is combined with next.
//!
//! Each task is placed when its inputs are there, so two results that are combined may come to lie on
//! workers that only a slow link joins, though others would have done as well. The worker that has, or is
//! to make, the other inputs of the tasks that come next is known by then; the way there counts as
//! seconds, as that of a task's own inputs does.

use super::links::LinkCosts;

/// Workers that a result goes to, or from where others come to it
#[derive(Clone, Debug, Default)]
pub struct Meetings {
    /// Worker, and how much it counts
    members: Vec<(u32, f64)>,
}

impl Meetings {
    /// Adds a task that needs the result, by the workers of its other inputs; all count as one
    pub fn add(&mut self, others: &[u32]) {
        let weight = 1.0 / others.len() as f64;
        self.members
            .extend(others.iter().map(|&worker| (worker, weight)));
    }

    /// Returns the average time to bring a result of so many bytes from a worker to its meetings
    #[must_use]
    pub fn seconds(&self, worker: u32, bytes: f64, links: &dyn LinkCosts) -> f64 {
        self.members
            .iter()
            .filter(|(other, _)| *other != worker)
            .map(|&(other, weight)| {
                let route = links.route(worker, other);
                weight * bytes * route.seconds_per_byte(links.capacities())
            })
            .sum()
    }
}

/// Most tasks that need a result which are looked at
pub const MEETINGS_MAX: usize = 2;
/// Most of their other inputs
pub const MEMBERS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

    use super::*;
    use crate::cost::HostLinks;

    #[test]
    fn a_result_costs_less_where_what_it_is_combined_with_is_near() {
        let mut links = HostLinks::default();
        for host in [0, 0, 1] {
            links.add_worker(host).unwrap();
        }
        let mut meetings = Meetings::default();
        assert_eq!(meetings.seconds(2, 1e9, &links), 0.0);
        meetings.add(&[0]);
        let cost = [0, 1, 2].map(|worker| meetings.seconds(worker, 1e9, &links));
        assert_eq!(cost[0], 0.0);
        assert!(cost[0] < cost[1] && cost[1] < cost[2], "{cost:?}");
    }

    #[test]
    fn a_task_with_many_inputs_counts_no_more_than_one_with_few() {
        let mut links = HostLinks::default();
        for host in 0..6 {
            links.add_worker(host).unwrap();
        }
        let seconds = |others: &[u32]| {
            let mut meetings = Meetings::default();
            meetings.add(others);
            meetings.seconds(0, 1e9, &links)
        };
        assert!((seconds(&[1]) - seconds(&[1, 2, 3, 4, 5])).abs() < 1e-9);
        assert_eq!(seconds(&[]), 0.0);
    }
}

//! Assignment of roots to workers, so that results that are combined are made together.
//!
//! A streaming partition: roots in the order in which they are to run, each to the worker that is
//! nearest to where those are with which it will be combined, within a share of all roots that goes
//! by threads. Of the kind of Fennel (C. Tsourakakis et al., WSDM 2014), which it takes the balance
//! between neighbours and load from; here neighbours are weighted by how cheap their link is, and by
//! how soon they meet.

use std::collections::HashMap;

use super::graph::{Graph, Place};
use super::groups::Groups;
use super::loads::Loads;

/// A worker that roots may go to
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Its number
    pub worker: u32,
    /// Its share of the roots, in any unit: threads
    pub share: f64,
    /// Most roots that it may have; infinite if only its share limits it
    pub roots_max: f64,
    /// Memory that is left for results; infinite if it was not given
    pub memory_bytes: f64,
}

/// Plans who runs which root; returns the number of a worker for each root by task, or None
///
/// `groups` says how near targets are to one another, by their places in the list. Takes time by the
/// number of groups for each root.
#[must_use]
pub fn plan(graph: &Graph, targets: &[Target], groups: &Groups) -> Vec<Option<u32>> {
    let mut planned: Vec<Option<u32>> = vec![None; graph.len()];
    let roots: Vec<u32> = (0..graph.len() as u32)
        .filter(|&task| graph.place(task) == Place::Root)
        .collect();
    let shares: f64 = targets.iter().map(|target| target.share).sum();
    if roots.is_empty() || targets.is_empty() || shares <= 0.0 {
        return planned;
    }
    let nearness = groups.nearness();
    let mut loads = Loads::new(targets, groups, roots.len());
    let mut meetings = Meetings::new(graph);
    let mut pull = Pull::new(targets.len());
    let mut gains = vec![0.0; groups.len()];
    for (task, target) in targets_of_placed(graph, targets) {
        meetings.collect(graph, task);
        meetings.note(target);
    }
    for &root in &roots {
        meetings.collect(graph, root);
        meetings.pull(graph, &mut pull);
        gains.fill(0.0);
        // Few pull at one root: those that have what it is combined with.
        for (puller, weight) in pull.all() {
            let row = &nearness[groups.of(puller) * groups.len()..][..groups.len()];
            for (gain, near) in gains.iter_mut().zip(row) {
                *gain += near * weight;
            }
        }
        let mut best = Best::default();
        for group in groups.all() {
            if let Some(at) = loads.least(group) {
                best.offer(gains[group] - LOAD_WEIGHT * loads.filled(at as usize), at);
            }
        }
        // The worker that pulls has the other part itself, nearer than any neighbour of its group.
        for (puller, weight) in pull.all() {
            if loads.has_room(puller) {
                let group = groups.of(puller);
                let saved = 1.0 - nearness[group * groups.len() + group];
                let gain = gains[group] + saved * weight;
                best.offer(gain - LOAD_WEIGHT * loads.filled(puller), puller as u32);
            }
        }
        pull.clear();
        let Some(at) = best.target else { continue };
        planned[root as usize] = Some(targets[at as usize].worker);
        loads.add(at as usize);
        meetings.note(at);
    }
    planned
}

/// The target with the highest score; of several, the first one
#[derive(Default)]
struct Best {
    score: f64,
    target: Option<u32>,
}

impl Best {
    fn offer(&mut self, score: f64, target: u32) {
        let is_better = match self.target {
            None => true,
            Some(other) if target < other => score > self.score - SCORE_DIFFERENCE,
            Some(_) => score > self.score + SCORE_DIFFERENCE,
        };
        if is_better {
            (self.score, self.target) = (score, Some(target));
        }
    }
}

/// Tasks that are on a worker already, with the place of that worker among the targets
fn targets_of_placed(graph: &Graph, targets: &[Target]) -> Vec<(u32, u32)> {
    let at = positions(targets);
    (0..graph.len() as u32)
        .filter_map(|task| match graph.place(task) {
            Place::On(worker) => Some((task, *at.get(&worker)? as u32)),
            _ => None,
        })
        .collect()
}

/// Where each worker is among the targets
pub(super) fn positions(targets: &[Target]) -> HashMap<u32, usize> {
    let workers = targets.iter().map(|target| target.worker);
    workers.zip(0..).collect()
}

/// How much targets pull at one root
struct Pull {
    weights: Vec<f64>,
    /// The targets whose weight is not 0
    touched: Vec<u32>,
}

impl Pull {
    fn new(targets: usize) -> Self {
        Self {
            weights: vec![0.0; targets],
            touched: Vec::new(),
        }
    }

    fn add(&mut self, target: u32, weight: f64) {
        let sum = &mut self.weights[target as usize];
        if *sum == 0.0 {
            self.touched.push(target);
        }
        *sum += weight;
    }

    /// Each target that pulls, and how much
    fn all(&self) -> impl Iterator<Item = (usize, f64)> {
        let touched = self.touched.iter();
        touched.map(|&target| (target as usize, self.weights[target as usize]))
    }

    /// Leaves none
    fn clear(&mut self) {
        for target in self.touched.drain(..) {
            self.weights[target as usize] = 0.0;
        }
    }
}

/// Where results of several tasks come together, and who has those below
struct Meetings {
    /// By task: targets of what is below it, and how many
    below: Vec<Vec<(u32, u32)>>,
    /// The meetings of one task, and how far above it they are
    found: Vec<(u32, u32)>,
    /// Round that has seen a task last, by task
    seen: Vec<u32>,
    round: u32,
    current: Vec<u32>,
    next: Vec<u32>,
}

impl Meetings {
    fn new(graph: &Graph) -> Self {
        Self {
            below: vec![Vec::new(); graph.len()],
            found: Vec::with_capacity(MEETINGS_MAX),
            seen: vec![0; graph.len()],
            round: 0,
            current: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Finds the first meetings above a task; chains between count nothing
    fn collect(&mut self, graph: &Graph, task: u32) {
        self.round += 1;
        self.found.clear();
        self.current.clear();
        self.current.push(task);
        let mut looked_at = 0;
        for level in 0..LEVELS {
            self.next.clear();
            while let Some(below) = self.current.pop() {
                for &above in graph.needed_by(below) {
                    if self.seen[above as usize] == self.round {
                        continue;
                    }
                    if looked_at == LOOKED_AT_MAX {
                        return;
                    }
                    looked_at += 1;
                    self.seen[above as usize] = self.round;
                    if graph.needs(above).len() > 1 {
                        if self.found.len() == MEETINGS_MAX {
                            return;
                        }
                        self.found.push((above, level));
                        self.next.push(above);
                    } else {
                        self.current.push(above);
                    }
                }
            }
            std::mem::swap(&mut self.current, &mut self.next);
            if self.current.is_empty() {
                return;
            }
        }
    }

    /// Sums up who has what the collected meetings need besides
    fn pull(&self, graph: &Graph, pull: &mut Pull) {
        for &(meeting, level) in &self.found {
            let needs = graph.needs(meeting).len() as f64;
            let weight = LEVEL_WEIGHT.powi(level as i32) / needs;
            for &(target, count) in &self.below[meeting as usize] {
                pull.add(target, weight * f64::from(count));
            }
        }
    }

    /// Notes that the task whose meetings were collected goes to a target
    fn note(&mut self, target: u32) {
        for &(meeting, _) in &self.found {
            let below = &mut self.below[meeting as usize];
            match below.iter_mut().find(|(other, _)| *other == target) {
                Some((_, count)) => *count += 1,
                None => below.push((target, 1)),
            }
        }
    }
}

/// How much a full share counts against neighbours: only where these do not decide
const LOAD_WEIGHT: f64 = 1e-3;
/// Scores that are nearer than this are the same: sums of the same numbers in another order
const SCORE_DIFFERENCE: f64 = 1e-12;
/// How far above a root one looks, how many meetings are kept, and how many tasks are looked at
const LEVELS: u32 = 4;
const MEETINGS_MAX: usize = 48;
const LOOKED_AT_MAX: usize = 192;
/// Weight of a meeting one level further up
const LEVEL_WEIGHT: f64 = 0.25;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

    use proptest::prelude::*;

    use super::*;

    fn targets(workers: u32) -> Vec<Target> {
        (0..workers)
            .map(|worker| Target {
                worker,
                share: 1.0,
                roots_max: f64::INFINITY,
                memory_bytes: f64::INFINITY,
            })
            .collect()
    }

    /// Each in a group of its own
    fn alone(targets: &[Target], near: impl Fn(usize, usize) -> f64) -> Groups {
        Groups::new(0..targets.len() as u32, |a, b| 1.0 - near(a, b))
    }

    fn plan_far(graph: &Graph, targets: &[Target]) -> Vec<Option<u32>> {
        plan(graph, targets, &alone(targets, |_, _| 0.0))
    }

    /// Roots in pairs that are far apart in order: `i` is combined with `i + pairs`
    fn pairs(pairs: u32) -> Graph {
        let mut places = vec![-1; 2 * pairs as usize];
        let mut needs = vec![0; 2 * pairs as usize];
        for pair in 0..pairs {
            places.push(-2);
            needs.extend([2, pair, pair + pairs]);
        }
        Graph::read(&places, &needs).unwrap()
    }

    #[test]
    fn roots_that_are_combined_go_to_one_worker_and_all_workers_get_their_share() {
        let graph = pairs(40);
        let planned = plan_far(&graph, &targets(4));
        let mut counts = [0; 4];
        for pair in 0..40 {
            assert_eq!(planned[pair], planned[pair + 40]);
            counts[planned[pair].unwrap() as usize] += 2;
        }
        assert_eq!(counts, [20; 4]);
        assert!(planned[80..].iter().all(Option::is_none));
    }

    #[test]
    fn a_worker_with_more_threads_gets_more() {
        let mut workers = targets(2);
        workers[1].share = 3.0;
        let planned = plan_far(&pairs(40), &workers);
        let second = planned.iter().filter(|worker| **worker == Some(1)).count();
        assert_eq!(second, 60);
    }

    #[test]
    fn what_a_worker_may_not_have_goes_to_the_others() {
        let mut workers = targets(3);
        workers[2].roots_max = 2.0;
        for (count, expected) in [(15, [14, 14, 2]), (14, [13, 13, 2]), (16, [15, 15, 2])] {
            let planned = plan_far(&pairs(count), &workers);
            let found = [0, 1, 2].map(|worker| {
                let of_worker = |to: &&Option<u32>| **to == Some(worker);
                planned.iter().filter(of_worker).count()
            });
            assert_eq!(found, expected);
        }
        // No other worker has room for the root that is left over.
        workers[0].roots_max = 1.0;
        workers[1].roots_max = 1.0;
        let planned = plan_far(&pairs(15), &workers);
        assert_eq!(planned.iter().flatten().count(), 4);
    }

    #[test]
    fn what_is_combined_with_a_result_goes_where_that_is() {
        // Tasks 0 and 1 lie on workers 2 and 1; roots 2 and 3 meet them.
        let graph = Graph::read(&[2, 1, -1, -1, -2, -2], &[0, 0, 0, 0, 2, 0, 2, 2, 1, 3]).unwrap();
        let planned = plan_far(&graph, &targets(3));
        assert_eq!(planned[2], Some(2));
        assert_eq!(planned[3], Some(1));
    }

    #[test]
    fn the_rest_of_a_group_that_is_too_large_for_one_worker_goes_near_it() {
        // Eight roots that meet in one task, on four workers of two hosts
        let mut needs = vec![0; 8];
        needs.extend([8, 0, 1, 2, 3, 4, 5, 6, 7]);
        let mut places = vec![-1; 8];
        places.push(-2);
        let graph = Graph::read(&places, &needs).unwrap();
        let near = |a: usize, b: usize| if a / 2 == b / 2 { 0.9 } else { 0.0 };
        let planned = plan(&graph, &targets(4), &alone(&targets(4), near));
        let hosts: Vec<u32> = planned[..8]
            .iter()
            .map(|worker| worker.unwrap() / 2)
            .collect();
        assert_eq!(hosts, [0, 0, 0, 0, 1, 1, 1, 1]);
    }

    proptest! {
        /// Groups save time and change nothing: the plan is that of a group for each target.
        #[test]
        fn a_plan_is_the_same_by_groups(
            hosts in prop::collection::vec(0..3u32, 1..9),
            shares in prop::collection::vec(1..4u32, 9),
            most in prop::collection::vec(prop_oneof![Just(f64::INFINITY), (0..6u32).prop_map(f64::from)], 9),
            distances in prop::collection::vec(0..4u32, 9),
            meetings in prop::collection::vec(prop::collection::vec(0..30u32, 1..5), 0..25),
            placed in prop::collection::vec(0..9u32, 0..6),
        ) {
            let targets: Vec<Target> = targets(hosts.len() as u32)
                .into_iter()
                .zip(shares.iter().zip(&most))
                .map(|(target, (&share, &roots_max))| Target { share: f64::from(share), roots_max, ..target })
                .collect();
            let cost = |a: usize, b: usize| {
                let (a, b) = (hosts[a].min(hosts[b]), hosts[a].max(hosts[b]));
                f64::from(distances[(3 * a + b) as usize])
            };
            let mut places = vec![-1; 30];
            for (place, worker) in places.iter_mut().step_by(5).zip(&placed) {
                *place = i64::from(*worker);
            }
            let mut needs = vec![0; 30];
            for meeting in meetings {
                places.push(-2);
                needs.push(meeting.len() as u32);
                needs.extend(meeting);
            }
            let graph = Graph::read(&places, &needs).unwrap();
            let by_host = plan(&graph, &targets, &Groups::new(hosts.iter().copied(), cost));
            let each_alone = plan(&graph, &targets, &Groups::new(0..hosts.len() as u32, cost));
            prop_assert_eq!(by_host, each_alone);
        }
    }

    #[test]
    fn nobody_to_plan_for_is_no_plan() {
        assert_eq!(plan_far(&pairs(1), &[]), vec![None; 3]);
        let idle = [Target {
            worker: 0,
            share: 0.0,
            roots_max: 1.0,
            memory_bytes: f64::INFINITY,
        }];
        assert_eq!(plan_far(&pairs(1), &idle), vec![None; 3]);
    }
}

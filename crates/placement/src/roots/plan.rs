//! Who is to run which root, so that what is combined is made together.
//!
//! A streaming partition: roots in the order in which they are to run, each to the worker that is
//! nearest to where those are with which it will be combined, within a share of all roots that goes
//! by threads. Of the kind of Fennel (C. Tsourakakis et al., WSDM 2014), which it takes the balance
//! between neighbours and load from; here neighbours are weighted by how cheap their link is, and by
//! how soon they meet.

use std::collections::HashMap;

use super::graph::{Graph, Place};

/// A worker that roots may go to
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Its number
    pub worker: u32,
    /// Its share of the roots, in any unit: threads
    pub share: f64,
    /// Most roots that it may have; infinite if only its share limits it
    pub roots_max: f64,
    /// Memory that is left for results; infinite if nobody has said
    pub memory_bytes: f64,
}

/// Plans who runs which root; returns the number of a worker for each root by task, or None
///
/// `near` says how near a target is to another one, by their places in the list: 1 for itself, 0 over
/// the slowest link. Takes time by the number of targets for each root.
#[must_use]
pub fn plan(
    graph: &Graph,
    targets: &[Target],
    near: impl Fn(usize, usize) -> f64,
) -> Vec<Option<u32>> {
    let mut planned: Vec<Option<u32>> = vec![None; graph.len()];
    let roots: Vec<u32> = (0..graph.len() as u32)
        .filter(|&task| graph.place(task) == Place::Root)
        .collect();
    let shares: f64 = targets.iter().map(|target| target.share).sum();
    if roots.is_empty() || targets.is_empty() || shares <= 0.0 {
        return planned;
    }
    let count = targets.len();
    // By the target that pulls, then the one that is pulled
    let nearness: Vec<f64> = (0..count)
        .flat_map(|puller| (0..count).map(move |at| (at, puller)))
        .map(|(at, puller)| if at == puller { 1.0 } else { near(at, puller) })
        .collect();
    let mut loads = Loads::new(targets, roots.len());
    let mut meetings = Meetings::new(graph);
    let mut pull = Pull::new(count);
    let mut gains = vec![0.0; count];
    for (task, target) in targets_of_placed(graph, targets) {
        meetings.collect(graph, task);
        meetings.note(target);
    }
    for &root in &roots {
        meetings.collect(graph, root);
        meetings.pull(graph, &mut pull);
        gains.fill(0.0);
        // Few pull at one root: those that have what it is combined with.
        for (puller, weight) in pull.drain() {
            let row = &nearness[puller * count..][..count];
            for (gain, near) in gains.iter_mut().zip(row) {
                *gain += near * weight;
            }
        }
        let mut best: Option<(f64, usize)> = None;
        for (at, gain) in gains.iter().enumerate() {
            if !loads.has_room(at) {
                continue;
            }
            let score = gain - LOAD_WEIGHT * loads.filled(at);
            if best.is_none_or(|(most, _)| score > most + 1e-12) {
                best = Some((score, at));
            }
        }
        let Some((_, at)) = best else { continue };
        planned[root as usize] = Some(targets[at].worker);
        loads.add(at);
        meetings.note(at as u32);
    }
    planned
}

/// What is on a worker already, by its place among the targets
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

    /// Gives each target that pulls and how much, and leaves none
    fn drain(&mut self) -> impl Iterator<Item = (usize, f64)> {
        let weights = &mut self.weights;
        self.touched.drain(..).map(|target| {
            let target = target as usize;
            (target, std::mem::take(&mut weights[target]))
        })
    }
}

/// How many roots each target has, and may have
struct Loads {
    room: Vec<f64>,
    most: Vec<f64>,
    count: Vec<f64>,
    /// Roots that no whole share has room for
    spare: usize,
}

impl Loads {
    fn new(targets: &[Target], roots: usize) -> Self {
        // What some may not have, the others share; that may be more than one of these may have.
        let mut limited = vec![false; targets.len()];
        let room = loop {
            let (mut left, mut left_share) = (roots as f64, 0.0);
            for (target, is_limited) in targets.iter().zip(&limited) {
                if *is_limited {
                    left -= target.roots_max.floor();
                } else {
                    left_share += target.share;
                }
            }
            let whole = |target: &Target| {
                (left.max(0.0) * target.share / left_share.max(f64::MIN_POSITIVE)).floor()
            };
            let mut has_more = false;
            for (target, is_limited) in targets.iter().zip(&mut limited) {
                if !*is_limited && target.roots_max < whole(target) {
                    *is_limited = true;
                    has_more = true;
                }
            }
            if !has_more {
                break targets
                    .iter()
                    .zip(&limited)
                    .map(|(target, is_limited)| {
                        if *is_limited {
                            target.roots_max.floor()
                        } else {
                            whole(target)
                        }
                    })
                    .collect::<Vec<f64>>();
            }
        };
        let whole: f64 = room.iter().sum();
        Self {
            most: targets.iter().map(|target| target.roots_max).collect(),
            count: vec![0.0; targets.len()],
            spare: roots.saturating_sub(whole as usize),
            room,
        }
    }

    fn has_room(&self, at: usize) -> bool {
        let spare = f64::from(u8::from(self.spare > 0));
        self.count[at] < (self.room[at] + spare).min(self.most[at])
    }

    fn filled(&self, at: usize) -> f64 {
        self.count[at] / self.room[at].max(1.0)
    }

    fn add(&mut self, at: usize) {
        self.count[at] += 1.0;
        if self.count[at] > self.room[at] {
            self.spare = self.spare.saturating_sub(1);
        }
    }
}

/// Where results of several tasks come together, and who has those below
struct Meetings {
    /// By task: targets of what is below it, and how many
    below: Vec<Vec<(u32, u32)>>,
    /// The meetings of one task, and how far above it they are
    found: Vec<(u32, u32)>,
    /// Who has seen a task last
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
/// How far above a root one looks, how many meetings are kept, and how many tasks are looked at
const LEVELS: u32 = 4;
const MEETINGS_MAX: usize = 48;
const LOOKED_AT_MAX: usize = 192;
/// What a meeting one level further up counts
const LEVEL_WEIGHT: f64 = 0.25;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

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
        let planned = plan(&graph, &targets(4), |_, _| 0.0);
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
        let planned = plan(&pairs(40), &workers, |_, _| 0.0);
        let second = planned.iter().filter(|worker| **worker == Some(1)).count();
        assert_eq!(second, 60);
    }

    #[test]
    fn what_a_worker_may_not_have_goes_to_the_others() {
        let mut workers = targets(3);
        workers[2].roots_max = 2.0;
        for (count, expected) in [(15, [14, 14, 2]), (14, [13, 13, 2]), (16, [15, 15, 2])] {
            let planned = plan(&pairs(count), &workers, |_, _| 0.0);
            let found = [0, 1, 2].map(|worker| {
                let of_worker = |to: &&Option<u32>| **to == Some(worker);
                planned.iter().filter(of_worker).count()
            });
            assert_eq!(found, expected);
        }
        // Nobody else has room for the one that is left over.
        workers[0].roots_max = 1.0;
        workers[1].roots_max = 1.0;
        let planned = plan(&pairs(15), &workers, |_, _| 0.0);
        assert_eq!(planned.iter().flatten().count(), 4);
    }

    #[test]
    fn what_is_combined_with_a_result_goes_where_that_is() {
        // Tasks 0 and 1 lie on workers 2 and 1; roots 2 and 3 meet them.
        let graph = Graph::read(&[2, 1, -1, -1, -2, -2], &[0, 0, 0, 0, 2, 0, 2, 2, 1, 3]).unwrap();
        let planned = plan(&graph, &targets(3), |_, _| 0.0);
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
        let planned = plan(
            &graph,
            &targets(4),
            |a, b| if a / 2 == b / 2 { 0.9 } else { 0.0 },
        );
        let hosts: Vec<u32> = planned[..8]
            .iter()
            .map(|worker| worker.unwrap() / 2)
            .collect();
        assert_eq!(hosts, [0, 0, 0, 0, 1, 1, 1, 1]);
    }

    #[test]
    fn nobody_to_plan_for_is_no_plan() {
        assert_eq!(plan(&pairs(1), &[], |_, _| 0.0), vec![None; 3]);
        let idle = [Target {
            worker: 0,
            share: 0.0,
            roots_max: 1.0,
            memory_bytes: f64::INFINITY,
        }];
        assert_eq!(plan(&pairs(1), &idle, |_, _| 0.0), vec![None; 3]);
    }
}

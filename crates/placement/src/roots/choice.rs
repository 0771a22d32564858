//! Which plan is taken: the one that is expected to take least, or none.
//!
//! Workers behind a slow link are given their whole share in one plan, and in another one only as
//! many roots as they have threads, which they would be given anyway as soon as they are idle. No
//! plan is taken where it gains nothing over roots that go to the first free thread: roots that are
//! not planned are balanced better.

use super::estimate::{Kinds, estimate};
use super::graph::{Graph, Place};
use super::groups::{Groups, middle};
use super::plan::{Target, plan};
use crate::cost::LinkCosts;

/// Plans who runs which root; None if nothing is gained by that
///
/// The share of each target is its number of threads, unless its memory has no room for that.
#[must_use]
pub fn choose(
    graph: &Graph,
    kinds: Kinds<'_>,
    targets: &[Target],
    links: &dyn LinkCosts,
) -> Option<Vec<Option<u32>>> {
    // A graph in which nothing is combined is balanced best.
    if !(0..graph.len() as u32).any(|task| !graph.needs(task).is_empty()) {
        return None;
    }
    let groups = &Groups::by_links(targets, links);
    let targets = &with_memory(graph, kinds, targets)[..];
    let mut best = plan(graph, targets, groups);
    let mut expected = estimate(graph, kinds, targets, &best, links);
    if let Some(limited) = with_slow_ones_limited(targets, groups) {
        let planned = plan(graph, &limited, groups);
        let other = estimate(graph, kinds, targets, &planned, links);
        if other.traffic_s.max(other.busiest_s) < expected.traffic_s.max(expected.busiest_s) {
            (best, expected) = (planned, other);
        }
    }
    // With any plan, work that is left is balanced in the end.
    let free = estimate(graph, kinds, targets, &anywhere(graph, targets), links);
    let gain =
        expected.traffic_s + expected.balanced_s < (free.traffic_s + free.balanced_s) * GAIN_MAX;
    gain.then_some(best)
}

/// The targets, each with no more roots than its memory has room for
///
/// Where all results of roots together have no room, each target has its share of the memory. No
/// limit is below the number of threads: so many a worker that is idle is given anyway.
fn with_memory(graph: &Graph, kinds: Kinds<'_>, targets: &[Target]) -> Vec<Target> {
    let (mut roots, mut bytes) = (0.0, 0.0);
    for task in (0..graph.len() as u32).filter(|&task| graph.place(task) == Place::Root) {
        roots += 1.0;
        bytes += kinds.get(task).1;
    }
    let memory_bytes: f64 = targets.iter().map(|target| target.memory_bytes).sum();
    let mut limited = targets.to_vec();
    // Of what size they are is not known before some have been seen.
    if bytes <= 0.0 {
        return limited;
    }
    let crowded = (bytes / memory_bytes).max(1.0);
    for target in &mut limited {
        let room = roots * crowded * target.memory_bytes / bytes;
        target.roots_max = target.roots_max.min(room.max(target.share));
    }
    limited
}

/// The targets, those that even the nearest half of the others reach slowly with a limit
fn with_slow_ones_limited(targets: &[Target], groups: &Groups) -> Option<Vec<Target>> {
    let middles = groups.middles();
    let mut of_targets: Vec<f64> = (0..targets.len())
        .map(|at| middles[groups.of(at)])
        .collect();
    let usual = middle(&mut of_targets);
    let mut limited = targets.to_vec();
    let mut any = false;
    for (at, target) in limited.iter_mut().enumerate() {
        if middles[groups.of(at)] > SLOW * usual && usual > 0.0 {
            target.roots_max = target.roots_max.min(target.share);
            any = true;
        }
    }
    any.then_some(limited)
}

/// Roots as they go to free workers: to any thread, as that depends on which one ends first
///
/// Roots that are left when each thread has had as many go to threads that are evenly apart, not to
/// the first ones: of 24 on 16 threads each worker with two has three.
fn anywhere(graph: &Graph, targets: &[Target]) -> Vec<Option<u32>> {
    let threads: Vec<u32> = targets
        .iter()
        .flat_map(|target| std::iter::repeat_n(target.worker, (target.share as usize).max(1)))
        .collect();
    let mut mixed: Vec<(u64, u32)> = (0..graph.len() as u32)
        .filter(|&task| graph.place(task) == Place::Root)
        // Fibonacci hashing, D. E. Knuth, The Art of Computer Programming 3, section 6.4.
        .map(|task| (u64::from(task).wrapping_mul(0x9e37_79b9_7f4a_7c15), task))
        .collect();
    mixed.sort_unstable();
    let whole_rounds = mixed.len() - mixed.len() % threads.len().max(1);
    let left = mixed.len() - whole_rounds;
    let mut planned = vec![None; graph.len()];
    for (at, (_, task)) in mixed.into_iter().enumerate() {
        let thread = match at.checked_sub(whole_rounds) {
            None => at % threads.len(),
            Some(over) => over * threads.len() / left,
        };
        planned[task as usize] = Some(threads[thread]);
    }
    planned
}

/// A plan that is expected to take more than this much of what no plan takes is not worth it
const GAIN_MAX: f64 = 0.92;
/// A worker is behind a slow link if its pairs take so many times what is usual
const SLOW: f64 = 2.0;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

    use super::*;
    use crate::cost::HostLinks;

    fn four_hosts(slow: bool) -> (HostLinks, Vec<Target>) {
        let mut links = HostLinks::default();
        for host in 0..4 {
            links.add_worker(host).unwrap();
            links.set_nic(host, 1.25e9).unwrap();
        }
        if slow {
            links.set_nic(3, 1.25e8).unwrap();
        }
        let targets = (0..4)
            .map(|worker| Target {
                worker,
                share: 1.0,
                roots_max: f64::INFINITY,
                memory_bytes: f64::INFINITY,
            })
            .collect();
        (links, targets)
    }

    /// Each of some results needs all of as many roots
    fn all_to_all(roots: u32) -> Graph {
        let mut places = vec![-1; roots as usize];
        let mut needs = vec![0; roots as usize];
        for _ in 0..roots {
            places.push(-2);
            needs.push(roots);
            needs.extend(0..roots);
        }
        Graph::read(&places, &needs).unwrap()
    }

    #[test]
    fn where_all_meet_all_a_worker_behind_a_slow_link_is_given_little() {
        let (links, targets) = four_hosts(true);
        let graph = all_to_all(16);
        let of = vec![0; graph.len()];
        let kinds = Kinds {
            of: &of,
            table: &[(0.01, 1e8)],
        };
        let planned = choose(&graph, kinds, &targets, &links).unwrap();
        assert_eq!(planned.iter().filter(|to| **to == Some(3)).count(), 1);
    }

    #[test]
    fn where_families_stay_apart_it_is_given_its_share() {
        let (links, targets) = four_hosts(true);
        let mut places = vec![-1; 36];
        let mut needs = vec![0; 36];
        for pair in 0..18 {
            places.push(-2);
            needs.extend([2, pair, pair + 18]);
        }
        let graph = Graph::read(&places, &needs).unwrap();
        let of = vec![0; graph.len()];
        let kinds = Kinds {
            of: &of,
            table: &[(0.1, 1e8)],
        };
        let planned = choose(&graph, kinds, &targets, &links).unwrap();
        assert_eq!(planned.iter().filter(|to| **to == Some(3)).count(), 9);
    }

    /// Roots of 100 MB that are combined in pairs, and how many each of four workers is given
    fn counts_by_worker(pairs: u32, memory_bytes: [f64; 4]) -> [usize; 4] {
        let (links, mut targets) = four_hosts(false);
        for (target, memory_bytes) in targets.iter_mut().zip(memory_bytes) {
            target.memory_bytes = memory_bytes;
        }
        let mut places = vec![-1; 2 * pairs as usize];
        let mut needs = vec![0; 2 * pairs as usize];
        for pair in 0..pairs {
            places.push(-2);
            needs.extend([2, pair, pair + pairs]);
        }
        let graph = Graph::read(&places, &needs).unwrap();
        let of = vec![0; graph.len()];
        let kinds = Kinds {
            of: &of,
            table: &[(0.01, 1e8)],
        };
        let planned = choose(&graph, kinds, &targets, &links).unwrap();
        [0, 1, 2, 3].map(|worker| planned.iter().filter(|to| **to == Some(worker)).count())
    }

    #[test]
    fn a_worker_with_little_memory_is_given_what_it_has_room_for() {
        let unlimited = f64::INFINITY;
        assert_eq!(counts_by_worker(40, [unlimited; 4]), [20; 4]);
        // 0.6 GB have room for six, and the others share the rest.
        let some = counts_by_worker(40, [unlimited, unlimited, unlimited, 0.6e9]);
        assert_eq!(some[3], 6);
        assert!(
            some[..3].iter().all(|count| (24..=26).contains(count)),
            "{some:?}"
        );
        // No less than it has threads, as it is given so many anyway.
        assert_eq!(
            counts_by_worker(40, [unlimited, unlimited, unlimited, 0.0])[3],
            1
        );
    }

    #[test]
    fn where_all_memory_is_too_little_each_has_its_share_of_it() {
        // 8 GB for 4 GB of memory
        assert_eq!(counts_by_worker(40, [1e9; 4]), [20; 4]);
        let some = counts_by_worker(40, [1.5e9, 1.5e9, 0.5e9, 0.5e9]);
        assert_eq!(some, [30, 30, 10, 10]);
    }

    #[test]
    fn where_nothing_is_gained_there_is_no_plan() {
        let (links, targets) = four_hosts(false);
        // There is nothing to choose from.
        let targets = &targets[..1];
        let graph = Graph::read(&[-1; 20], &[0; 20]).unwrap();
        let of = [0; 20];
        let kinds = Kinds {
            of: &of,
            table: &[(0.1, 1e8)],
        };
        assert_eq!(choose(&graph, kinds, targets, &links), None);
    }
}

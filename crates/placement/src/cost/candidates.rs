//! Which workers are worth asking for a task: those that hold its inputs, and idle ones beside them.
//!
//! An island is a set of workers that reach each other cheaply: those of one host, or the GPUs of
//! one machine. A worker without any input is a candidate only where a holder is: all workers of a
//! cluster would cost a thousand prices a task, and far ones are hardly ever the best.

/// The workers by island
#[derive(Clone, Debug, Default)]
pub struct Islands {
    /// By worker; None for one that is gone
    of: Vec<Option<u32>>,
    members: Vec<Vec<u32>>,
    /// Where to begin in an island that is too large to look at
    begin: usize,
    /// Bytes of inputs by worker, and the workers that are not 0; empty between calls
    held: Vec<f64>,
    touched: Vec<u32>,
}

impl Islands {
    /// Adds a worker to an island
    pub fn add(&mut self, worker: u32, island: u32) {
        let (at, island_at) = (worker as usize, island as usize);
        if self.of.len() <= at {
            self.of.resize(at + 1, None);
            self.held.resize(at + 1, 0.0);
        }
        if self.members.len() <= island_at {
            self.members.resize(island_at + 1, Vec::new());
        }
        self.remove(worker);
        self.of[at] = Some(island);
        self.members[island_at].push(worker);
    }

    /// Takes a worker out
    pub fn remove(&mut self, worker: u32) {
        if let Some(island) = self.of.get_mut(worker as usize).and_then(Option::take) {
            self.members[island as usize].retain(|&other| other != worker);
        }
    }

    /// The island of a worker that is there
    #[must_use]
    pub fn of(&self, worker: u32) -> Option<u32> {
        self.of.get(worker as usize).copied().flatten()
    }

    /// Finds the workers to ask: those that hold inputs, and those beside them
    ///
    /// `held` names each holder of each input with the bytes of that input.
    pub fn near(&mut self, held: impl IntoIterator<Item = (u32, f64)>) -> Near {
        for (holder, bytes) in held {
            let Some(sum) = self.held.get_mut(holder as usize) else {
                continue;
            };
            if self.of[holder as usize].is_none() {
                continue;
            }
            if *sum == 0.0 {
                self.touched.push(holder);
            }
            // A result without bytes is held, too.
            *sum += bytes.max(f64::MIN_POSITIVE);
        }
        let holders: Vec<(f64, u32)> = self
            .touched
            .drain(..)
            .map(|worker| (std::mem::take(&mut self.held[worker as usize]), worker))
            .collect();
        let mut islands: Vec<u32> = Vec::new();
        for island in holders.iter().filter_map(|&(_, worker)| self.of(worker)) {
            if !islands.contains(&island) {
                islands.push(island);
            }
        }
        let mut beside: Vec<u32> = Vec::new();
        self.begin = self.begin.wrapping_add(1);
        for island in islands {
            let members = &self.members[island as usize];
            let first = if members.len() > LOOKED_AT_MAX {
                self.begin.wrapping_mul(LOOKED_AT_MAX) % members.len()
            } else {
                0
            };
            for at in 0..members.len().min(LOOKED_AT_MAX) {
                beside.push(members[(first + at) % members.len()]);
            }
        }
        Near { holders, beside }
    }
}

/// Workers that hold inputs of a task, and workers beside them
#[derive(Clone, Debug)]
pub struct Near {
    /// Bytes, and who has them
    holders: Vec<(f64, u32)>,
    /// Workers of the same islands, some of them holders
    beside: Vec<u32>,
}

impl Near {
    /// Chooses the workers to ask, at most [`CANDIDATES_MAX`]
    ///
    /// `load` is the work that a worker has before it, or None for one that may not be chosen.
    /// Holders come first, those of the most bytes if there are too many, then up to [`IDLEST_MAX`]
    /// of their islands that have the least before them.
    pub fn candidates(self, mut load: impl FnMut(u32) -> Option<f64>) -> Vec<u32> {
        let mut holders = self.holders;
        holders.retain(|&(_, worker)| load(worker).is_some());
        if holders.len() > CANDIDATES_MAX - IDLEST_MAX {
            holders.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        }
        let is_holder = |worker| holders.iter().any(|&(_, holder)| holder == worker);
        let beside = self.beside.into_iter().filter(|&worker| !is_holder(worker));
        let mut beside: Vec<(f64, u32)> = beside
            .filter_map(|worker| Some((load(worker)?, worker)))
            .collect();
        beside.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        beside.truncate(IDLEST_MAX.min(CANDIDATES_MAX));
        holders.truncate(CANDIDATES_MAX - beside.len());
        holders
            .into_iter()
            .chain(beside)
            .map(|(_, worker)| worker)
            .collect()
    }
}

/// Most candidates
pub const CANDIDATES_MAX: usize = 16;
/// Most candidates that hold nothing
pub const IDLEST_MAX: usize = 8;
/// Most workers of one island that are looked at for one task, in turn
const LOOKED_AT_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    /// Two islands of 20 workers
    fn islands() -> Islands {
        let mut islands = Islands::default();
        for worker in 0..40 {
            islands.add(worker, worker / 20);
        }
        islands
    }

    #[test]
    fn the_idlest_beside_a_holder_are_asked_and_nobody_elsewhere() {
        let mut islands = islands();
        let found = islands
            .near([(3, 10.0)])
            .candidates(|worker| Some(f64::from(20 - worker)));
        assert_eq!(found[0], 3);
        assert_eq!(found[1..], [19, 18, 17, 16, 15, 14, 13, 12]);
    }

    #[test]
    fn there_are_never_more_than_sixteen_and_those_that_hold_most_are_kept() {
        let mut islands = islands();
        let held = (0..20).map(|worker| (worker, f64::from(worker)));
        let found = islands.near(held).candidates(|_| Some(1.0));
        assert_eq!(found.len(), CANDIDATES_MAX);
        assert!(found.contains(&19));
        assert!(!found.contains(&0));
    }

    #[test]
    fn who_may_not_be_chosen_or_is_gone_is_none() {
        let mut islands = islands();
        islands.remove(3);
        let found = islands
            .near([(3, 1.0), (4, 1.0), (5, 1.0)])
            .candidates(|worker| (worker != 4).then_some(0.0));
        assert!(!found.contains(&3));
        assert!(!found.contains(&4));
        assert_eq!(found[0], 5);
        assert!(
            islands
                .near([(3, 1.0), (99, 1.0)])
                .candidates(|_| Some(0.0))
                .is_empty()
        );
    }

    #[test]
    fn nothing_is_left_of_one_call_in_the_next() {
        let mut islands = islands();
        let _ = islands.near([(30, 1.0)]);
        assert!(
            islands
                .near([(1, 1.0)])
                .candidates(|_| Some(0.0))
                .iter()
                .all(|&w| w < 20)
        );
    }
}

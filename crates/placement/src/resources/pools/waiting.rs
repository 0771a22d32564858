//! Requests that wait for units of one worker: for which of them some are kept.

use super::super::admission::CPU;
use super::super::quantity::Quantity;
use super::super::request::Request;
use super::Pools;

/// Demand of waiting tasks of one kind: units of the pools, and threads of their worker
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// Units of the pools
    pub request: Request,
    /// Threads, which are no pool
    pub threads: f64,
}

impl Kind {
    /// Names of what its tasks may wait for while others take it; one thread is soon free
    fn names(&self) -> impl Iterator<Item = &String> {
        let needs = self.request.needs().iter();
        needs
            .filter(|(name, amount)| name != CPU || *amount > Quantity::whole(1))
            .map(|(name, _)| name)
    }
}

impl Pools {
    /// How many leases may go past a request before units are kept for it
    pub fn passes_max(&self) -> u64 {
        self.turns.passes_max
    }

    /// Changes how many leases may go past a request before units are kept for it
    pub fn set_passes_max(&mut self, passes_max: u64) {
        self.turns.passes_max = passes_max;
    }

    /// Notes that the first task of a kind waits, and where it stands among all tasks
    pub fn refused(&mut self, kind: &Kind, stands: Vec<f64>) {
        self.turns.refused(kind, stands);
    }

    /// Notes that a task has taken what it asks for, and where it stood
    ///
    /// Units are kept from now on for one that others have gone past too often.
    pub fn granted(&mut self, kind: &Kind, stood: &Vec<f64>) {
        let shares = |other: &Kind| {
            kind.names()
                .any(|name| other.names().any(|one| one == name))
        };
        for overdue in self.turns.granted(kind, stood, shares) {
            let names: Vec<String> = overdue.names().cloned().collect();
            // Keeping units that are not there any more would help no task.
            if self
                .keep_for(&overdue.request, Some(&names))
                .unwrap_or(false)
            {
                self.turns.kept = Some(overdue);
                return;
            }
        }
    }

    /// Notes that no task of a kind waits any more; returns whether units were kept for it
    pub fn left(&mut self, kind: &Kind) -> bool {
        let was_kept = self.turns.left(kind);
        if was_kept {
            self.keep_no_longer();
        }
        was_kept
    }

    /// Returns whether units are kept for tasks of a kind
    pub fn is_kept(&self, kind: &Kind) -> bool {
        self.turns.kept.as_ref() == Some(kind)
    }
}

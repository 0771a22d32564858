//! Which request waits for too long while others go past it.
//!
//! A request for much may find nothing while those for little take each unit as it gets free. Here
//! it is counted how many leases went past each request that waits: those of tasks that come after
//! its first one, for something that it needs too. After [`PASSES_MAX`] of them something is kept
//! for it, for one request at a time; what others hold by then stays with them.

/// Leases that may go past a request before something is kept for it
pub const PASSES_MAX: u64 = 16;

/// The requests that wait, and who went past them; `P` is where a task stands among all tasks
#[derive(Clone, Debug)]
pub struct Turns<K, P> {
    /// The request that a worker or unit is reserved for
    pub kept: Option<K>,
    /// Leases that may go past a request
    pub passes_max: u64,
    /// In the order in which they began to wait
    waiting: Vec<Waits<K, P>>,
}

/// One request that waits
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waits<K, P> {
    /// Request of its tasks
    pub request: K,
    /// Where its first task stands among all tasks
    pub stands: P,
    /// How many leases went past it
    pub passes: u64,
}

impl<K, P> Default for Turns<K, P> {
    fn default() -> Self {
        Self {
            kept: None,
            passes_max: PASSES_MAX,
            waiting: Vec::new(),
        }
    }
}

impl<K: Clone + PartialEq, P: PartialOrd> Turns<K, P> {
    /// Notes that the first task of a request waits
    pub fn refused(&mut self, request: &K, stands: P) {
        match self.waiting.iter_mut().find(|one| one.request == *request) {
            Some(one) => one.stands = stands,
            None => self.waiting.push(Waits {
                request: request.clone(),
                stands,
                passes: 0,
            }),
        }
    }

    /// Notes that a task has got what it asks for, and where it stood; `shares` tells whether
    /// another request needs something of the same
    ///
    /// Returns the requests that others have gone past too often, in the order in which they began
    /// to wait, if nothing is kept for any: the caller keeps something for the first that it can.
    pub fn granted(&mut self, request: &K, stood: &P, shares: impl Fn(&K) -> bool) -> Vec<K> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        if self.kept.as_ref() == Some(request) {
            self.kept = None;
        }
        self.waiting.retain(|one| one.request != *request);
        for one in &mut self.waiting {
            if one.stands < *stood && shares(&one.request) {
                one.passes += 1;
            }
        }
        if self.kept.is_some() {
            return Vec::new();
        }
        let passes_max = self.passes_max;
        let overdue = self.waiting.iter().filter(|one| one.passes >= passes_max);
        overdue.map(|one| one.request.clone()).collect()
    }

    /// Notes that no task waits with a request any more; returns whether something was kept for it
    pub fn left(&mut self, request: &K) -> bool {
        self.waiting.retain(|one| one.request != *request);
        let was_kept = self.kept.as_ref() == Some(request);
        if was_kept {
            self.kept = None;
        }
        was_kept
    }

    /// Adds a request that waits already, behind the others
    pub fn inherit(&mut self, waits: Waits<K, P>, is_kept: bool) {
        if is_kept {
            self.kept = Some(waits.request.clone());
        }
        self.waiting.push(waits);
    }

    /// All that wait
    pub fn waiting(&self) -> &[Waits<K, P>] {
        &self.waiting
    }

    /// Forgets all that wait
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.kept = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(times: u64) -> Turns<&'static str, u64> {
        let mut turns = Turns::default();
        turns.refused(&"pair", 10);
        for number in 0..times {
            let overdue = turns.granted(&"single", &(11 + number), |_| true);
            assert_eq!(overdue.is_empty(), number + 1 < PASSES_MAX);
        }
        turns
    }

    #[test]
    fn only_later_leases_of_the_same_resource_go_past() {
        let mut turns = passed(1);
        turns.granted(&"single", &9, |_| true);
        turns.granted(&"other", &12, |_| false);
        assert_eq!(turns.waiting()[0].passes, 1);
    }

    #[test]
    fn a_request_is_overdue_after_the_limit_and_not_while_another_one_is_kept() {
        let mut turns = passed(PASSES_MAX);
        assert_eq!(turns.granted(&"single", &50, |_| true), ["pair"]);
        turns.kept = Some("other");
        assert!(turns.granted(&"single", &51, |_| true).is_empty());
    }

    #[test]
    fn what_is_kept_is_free_again_when_the_request_is_granted_or_leaves() {
        let mut turns = passed(PASSES_MAX);
        turns.kept = Some("pair");
        assert!(turns.granted(&"pair", &10, |_| true).is_empty());
        assert_eq!((turns.kept, turns.waiting().len()), (None, 0));
        turns.refused(&"pair", 10);
        turns.kept = Some("pair");
        assert!(!turns.left(&"single"));
        assert!(turns.left(&"pair"));
        assert_eq!(turns.kept, None);
    }
}

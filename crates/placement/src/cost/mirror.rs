//! Transfers under way on each edge, and the time of a task's inputs to each worker.
//!
//! The cost of a place is the time of its queue plus the time of what must come there. They are
//! added: where both are small neither hides the other, and the larger of the two alone is ruinous
//! as soon as workers without any input are candidates. The time of what must come counts what is
//! already promised on the same edges, and β times the time that it would take alone: without that
//! weight a scheduler with true bandwidths moves more than one that believes in slow ones. Bytes on
//! an edge that only one pair of workers uses delay no other pair, and weigh less.
//! StarPU's `dmda` scheduler has the same β (C. Augonnet et al., Data-Aware Task Scheduling on
//! Multi-Accelerator Based Platforms, ICPADS 2010).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::links::{LinkCosts, LinkError, Route};

/// Something that a task needs, and who has it
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Any number that no other result has at the time
    pub task: u64,
    /// Its size
    pub bytes: f64,
    /// Numbers of the workers that hold it
    pub holders: &'a [u32],
}

/// Time of the inputs of a task to a worker
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transfer {
    /// Behind all that is under way on the same edges, in seconds
    pub queued_s: f64,
    /// Additional weight: β − 1 times the time with nothing else under way, in seconds
    pub weighted_s: f64,
}

impl Transfer {
    /// Returns the cost of a place for it, in seconds
    #[must_use]
    pub fn cost_s(&self) -> f64 {
        self.queued_s + self.weighted_s
    }
}

/// β: how much more a byte counts than the time that it takes alone; 1 for no more
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beta {
    /// On an edge that several pairs of workers share
    pub shared: f64,
    /// On an edge, or in a flow, of one pair alone
    pub private: f64,
}

/// Transfers under way on one edge
#[derive(Clone, Copy, Debug, Default)]
struct Pending {
    bytes: f64,
    /// How many results that is
    flows: u32,
}

impl Pending {
    /// How many of its bytes go before the last of a result that comes beside them
    ///
    /// Flows share an edge fairly: while a small result comes, each of the others gets as much.
    fn beside(self, bytes: f64) -> f64 {
        self.bytes.min(f64::from(self.flows) * bytes)
    }
}

/// Load that one placement would add to an edge
#[derive(Clone, Copy, Debug, Default)]
struct Added {
    bytes: f64,
    /// Of one result
    largest_bytes: f64,
}

/// The transfers that a scheduler has promised
pub struct Mirror {
    links: Box<dyn LinkCosts>,
    beta: Beta,
    /// Time of a request for data besides the latency of its link, in seconds
    request_s: f64,
    /// Under way, by edge
    pending: Vec<Pending>,
    /// Promised transfers, by result and receiver
    promised: HashMap<(u64, u32), (Route, f64), BuildHasherDefault<Multiply>>,
    /// Load that one placement would add, by edge, and the edges that are not 0; empty between
    /// calls
    added: Vec<Added>,
    touched: Vec<u32>,
}

impl Mirror {
    /// Makes one with nothing under way
    #[must_use]
    pub fn new(links: Box<dyn LinkCosts>, beta: Beta) -> Self {
        let edges = links.capacities().len();
        Self {
            links,
            beta,
            request_s: REQUEST_S,
            pending: vec![Pending::default(); edges],
            promised: HashMap::default(),
            added: vec![Added::default(); edges],
            touched: Vec::new(),
        }
    }

    /// Returns the record of links
    #[must_use]
    pub fn links(&self) -> &dyn LinkCosts {
        &*self.links
    }

    /// Takes links that are better known, or of more workers; what is under way stays on its edges
    pub fn set_links(&mut self, links: Box<dyn LinkCosts>) {
        let edges = links.capacities().len().max(self.pending.len());
        self.links = links;
        self.pending.resize(edges, Pending::default());
        self.added.resize(edges, Added::default());
    }

    /// Takes what a request for data takes besides the latency of its link, in seconds
    ///
    /// # Errors
    ///
    /// [`LinkError::Request`] for one that is no number from 0.
    pub fn set_request_s(&mut self, request_s: f64) -> Result<(), LinkError> {
        if !(request_s >= 0.0 && request_s.is_finite()) {
            return Err(LinkError::Request { request_s });
        }
        self.request_s = request_s;
        Ok(())
    }

    /// Notes that a result will go to a worker, from where it comes soonest
    ///
    /// Returns that holder; None if no worker holds it, or it is promised already.
    pub fn promise(&mut self, input: Input<'_>, receiver: u32) -> Option<u32> {
        if self.promised.contains_key(&(input.task, receiver)) {
            return None;
        }
        let (sender, route, _) = self.source(input, receiver)?;
        for &edge in route.edges() {
            let pending = &mut self.pending[edge as usize];
            pending.bytes += input.bytes;
            pending.flows += 1;
        }
        self.promised
            .insert((input.task, receiver), (route, input.bytes));
        Some(sender)
    }

    /// Notes that a result has arrived at a worker, or is not needed there any more
    pub fn settle(&mut self, task: u64, receiver: u32) {
        if let Some((route, bytes)) = self.promised.remove(&(task, receiver)) {
            for &edge in route.edges() {
                let pending = &mut self.pending[edge as usize];
                pending.flows -= 1;
                // Rounding must not leave a trace on an edge that is idle.
                pending.bytes = if pending.flows == 0 {
                    0.0
                } else {
                    (pending.bytes - bytes).max(0.0)
                };
            }
        }
    }

    /// Forgets all that a worker was promised: it is gone
    pub fn forget(&mut self, receiver: u32) {
        let gone: Vec<u64> = self
            .promised
            .keys()
            .filter(|(_, to)| *to == receiver)
            .map(|(task, _)| *task)
            .collect();
        for task in gone {
            self.settle(task, receiver);
        }
    }

    /// Returns the promised transfers, by the numbers of result and receiver
    pub fn promised(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.promised.keys().copied()
    }

    /// Gives results other numbers; what has none any more is taken for settled
    pub fn rename(&mut self, name: impl Fn(u64) -> Option<u64>) {
        let promised: Vec<(u64, u32)> = self.promised().collect();
        let mut renamed = Vec::with_capacity(promised.len());
        for (task, receiver) in promised {
            match name(task) {
                Some(name) => {
                    let taken = self.promised.remove(&(task, receiver));
                    renamed.extend(taken.map(|one| ((name, receiver), one)));
                }
                None => self.settle(task, receiver),
            }
        }
        self.promised.extend(renamed);
    }

    /// Bytes under way on an edge
    #[must_use]
    pub fn pending_bytes(&self, edge: u32) -> f64 {
        self.pending
            .get(edge as usize)
            .map_or(0.0, |pending| pending.bytes)
    }

    /// How many results are promised
    #[must_use]
    pub fn promises(&self) -> usize {
        self.promised.len()
    }

    /// Returns the time of the inputs of a task to a worker
    pub fn transfer(&mut self, inputs: &[Input<'_>], receiver: u32) -> Transfer {
        let mut latency_s = 0.0f64;
        let mut slowest_flow_s = 0.0f64;
        for input in inputs {
            if input.holders.contains(&receiver)
                || self.promised.contains_key(&(input.task, receiver))
            {
                continue;
            }
            let Some((_, route, _)) = self.source(*input, receiver) else {
                continue;
            };
            latency_s = latency_s.max(route.latency_s + self.request_s);
            slowest_flow_s = slowest_flow_s.max(input.bytes / route.flow_bytes_per_s);
            for &edge in route.edges() {
                let added = &mut self.added[edge as usize];
                if added.bytes == 0.0 {
                    self.touched.push(edge);
                }
                added.bytes += input.bytes;
                added.largest_bytes = added.largest_bytes.max(input.bytes);
            }
        }
        let capacities = self.links.capacities();
        let (shared, private) = (self.beta.shared - 1.0, self.beta.private - 1.0);
        let (mut queued_s, mut weighted_s) = (slowest_flow_s, private * slowest_flow_s);
        for edge in self.touched.drain(..) {
            let edge = edge as usize;
            let added = std::mem::take(&mut self.added[edge]);
            let is_private = self.links.is_private(edge as u32);
            let weight = if is_private { private } else { shared };
            weighted_s = weighted_s.max(weight * added.bytes / capacities[edge]);
            let beside = self.pending[edge].beside(added.largest_bytes);
            queued_s = queued_s.max((added.bytes + beside) / capacities[edge]);
        }
        Transfer {
            queued_s: queued_s + latency_s,
            weighted_s,
        }
    }

    /// From where a result comes soonest: the holder, the way, and the time in seconds
    fn source(&self, input: Input<'_>, receiver: u32) -> Option<(u32, Route, f64)> {
        let capacities = self.links.capacities();
        let mut best: Option<(u32, Route, f64)> = None;
        for &sender in input.holders {
            let route = self.links.route(sender, receiver);
            let mut seconds = input.bytes / route.flow_bytes_per_s;
            for &edge in route.edges() {
                let edge = edge as usize;
                let beside = self.pending[edge].beside(input.bytes);
                seconds = seconds.max((input.bytes + beside) / capacities[edge]);
            }
            seconds += route.latency_s;
            if best.is_none_or(|(_, _, least)| seconds < least) {
                best = Some((sender, route, seconds));
            }
        }
        best
    }
}

/// Time of a request for data until workers have reported one
const REQUEST_S: f64 = 1.5e-3;

/// A hash of numbers that are addresses or small: one multiplication
#[derive(Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        // Fibonacci hashing, D. E. Knuth, The Art of Computer Programming 3, section 6.4.
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

    use super::*;
    use crate::cost::links::RouteTable;

    /// Three workers; 0 and 1 share edge 0 (10 B/s) both ways, 2 is behind edge 1 (1 B/s)
    fn mirror() -> Mirror {
        let near = Route::new(&[0], 0.0).unwrap();
        let far = Route::new(&[1], 0.0).unwrap();
        let routes = [
            (0, 1, near),
            (1, 0, near),
            (0, 2, far),
            (2, 0, far),
            (1, 2, far),
            (2, 1, far),
        ];
        let links = RouteTable::new(3, vec![10.0, 1.0], routes).unwrap();
        Mirror::new(Box::new(links), BETA)
    }

    const BETA: Beta = Beta {
        shared: 3.0,
        private: 2.0,
    };

    fn input(task: u64, holders: &[u32]) -> Input<'_> {
        Input {
            task,
            bytes: 10.0,
            holders,
        }
    }

    #[test]
    fn inputs_share_the_edges_that_they_take() {
        let mut mirror = mirror();
        let inputs = [input(1, &[0]), input(2, &[0]), input(3, &[1])];
        let there = mirror.transfer(&inputs, 1);
        assert!((there.weighted_s - 2.0 * 2.0).abs() < 1e-9);
        assert!((there.cost_s() - 3.0 * 2.0 - REQUEST_S).abs() < 1e-9);
        assert_eq!(mirror.transfer(&inputs, 2).weighted_s, 2.0 * 30.0);
        assert_eq!(
            mirror.transfer(&[input(3, &[1])], 1),
            Transfer::default(),
            "what is there costs nothing"
        );
    }

    #[test]
    fn bytes_on_an_edge_of_one_pair_alone_weigh_less() {
        let [own, shared] = [0, 1].map(|edge| Route::new(&[edge], 0.0).unwrap());
        let routes = [(0, 1, own), (1, 0, shared), (0, 2, shared), (2, 0, shared)];
        let others = [(1, 2, shared), (2, 1, shared)];
        let links = RouteTable::new(3, vec![1.0, 1.0], routes.into_iter().chain(others)).unwrap();
        let mut mirror = Mirror::new(Box::new(links), BETA);
        assert_eq!(mirror.transfer(&[input(1, &[0])], 1).weighted_s, 10.0);
        assert_eq!(mirror.transfer(&[input(1, &[0])], 2).weighted_s, 20.0);
    }

    #[test]
    fn a_transfer_waits_for_what_is_promised_on_its_edges_and_only_there() {
        let mut mirror = mirror();
        assert_eq!(mirror.promise(input(7, &[0]), 1), Some(0));
        assert_eq!(mirror.pending_bytes(0), 10.0);
        let beside = mirror.transfer(&[input(1, &[0])], 1);
        assert!((beside.queued_s - 2.0 - REQUEST_S).abs() < 1e-9);
        assert!((beside.weighted_s - 2.0 * 1.0).abs() < 1e-9);
        let elsewhere = mirror.transfer(&[input(1, &[0])], 2);
        assert!((elsewhere.queued_s - 10.0 - REQUEST_S).abs() < 1e-9);
        // A result that is promised to the worker costs nothing more there.
        assert_eq!(mirror.transfer(&[input(7, &[0])], 1), Transfer::default());
        mirror.settle(7, 1);
        assert_eq!(mirror.pending_bytes(0), 0.0);
    }

    #[test]
    fn a_request_takes_what_workers_say_however_many_inputs_it_has() {
        let mut mirror = mirror();
        mirror.set_request_s(0.5).unwrap();
        let both = [input(1, &[0]), input(2, &[0])];
        assert!((mirror.transfer(&both, 1).queued_s - 2.0 - 0.5).abs() < 1e-9);
        assert_eq!(mirror.transfer(&both, 0), Transfer::default());
        for nonsense in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(mirror.set_request_s(nonsense).is_err());
        }
        assert!((mirror.transfer(&both, 1).queued_s - 2.0 - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_small_result_does_not_wait_for_large_ones_to_end() {
        let mut mirror = mirror();
        let large = |task| Input {
            bytes: 1000.0,
            ..input(task, &[0])
        };
        for task in [1, 2, 3] {
            mirror.promise(large(task), 1);
        }
        // As much of each of the three as of itself: 40 bytes, not 3,010.
        let small = mirror.transfer(&[input(4, &[0])], 1);
        assert!((small.queued_s - 4.0 - REQUEST_S).abs() < 1e-9);
        let fourth = mirror.transfer(&[large(5)], 1);
        assert!((fourth.queued_s - 400.0 - REQUEST_S).abs() < 1e-9);
    }

    #[test]
    fn a_result_comes_from_where_it_comes_soonest() {
        let mut mirror = mirror();
        assert_eq!(mirror.promise(input(1, &[2, 1]), 0), Some(1));
        assert_eq!(mirror.promise(input(1, &[2, 1]), 0), None, "it is promised");
        assert_eq!(mirror.promise(input(2, &[]), 0), None, "nobody has it");
    }

    #[test]
    fn what_is_promised_is_so_by_other_numbers() {
        let mut mirror = mirror();
        mirror.promise(input(1, &[0]), 1);
        mirror.promise(input(2, &[0]), 1);
        mirror.rename(|task| (task == 1).then_some(2));
        assert_eq!(mirror.promised().collect::<Vec<_>>(), [(2, 1)]);
        assert_eq!(mirror.pending_bytes(0), 10.0, "of the one that is left");
        mirror.settle(2, 1);
        assert_eq!(mirror.pending_bytes(0), 0.0);
    }

    #[test]
    fn nothing_is_left_of_a_worker_that_is_gone() {
        let mut mirror = mirror();
        mirror.promise(input(1, &[0]), 1);
        mirror.promise(input(2, &[0]), 2);
        mirror.forget(1);
        assert_eq!(mirror.pending_bytes(0), 0.0);
        assert_eq!(mirror.promises(), 1);
    }
}

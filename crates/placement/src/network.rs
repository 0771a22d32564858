//! A network of edges that flows share fairly, in simulated time.
//!
//! Max-min fairness: no flow can be given more without taking from one that has no more itself.
//! The rates come from filling all flows at one pace and fixing those on the first edge that is
//! full, again and again (D. Bertsekas and R. Gallager, Data Networks, section 6.5.2). No latency,
//! no loss, no clock: the caller says what time it is and starts a flow when its first byte moves.

use thiserror::Error;

/// Flows between places, along edges of limited capacity
///
/// Between two calls all rates are constant. Ask [`next_end`](Self::next_end) for the time of the
/// next end, and call [`finish`](Self::finish) then.
#[derive(Debug)]
pub struct FairNetwork {
    /// In bytes per second; all positive
    capacities: Vec<f64>,
    /// By number; None where a number is free
    flows: Vec<Option<Flow>>,
    free: Vec<u32>,
    /// Numbers of the flows on each edge
    on_edge: Vec<Vec<u32>>,
    now_s: f64,
    /// True if a flow came or went since the rates were computed
    stale: bool,
    /// Room for the computation of rates: what each edge has left, how many flows are not fixed
    left: Vec<f64>,
    waiting: Vec<u32>,
}

#[derive(Debug)]
struct Flow {
    path: Vec<u32>,
    left_bytes: f64,
    bytes_per_s: f64,
    fixed: bool,
}

impl FairNetwork {
    /// Makes a network without flows, at time 0
    ///
    /// # Errors
    ///
    /// [`NetworkError::Capacity`] if a capacity is not a positive number.
    pub fn new(capacities_bytes_per_s: Vec<f64>) -> Result<Self, NetworkError> {
        for (edge, &bytes_per_s) in capacities_bytes_per_s.iter().enumerate() {
            if !(bytes_per_s > 0.0 && bytes_per_s.is_finite()) {
                return Err(NetworkError::Capacity { edge, bytes_per_s });
            }
        }
        let edges = capacities_bytes_per_s.len();
        Ok(Self {
            capacities: capacities_bytes_per_s,
            flows: Vec::new(),
            free: Vec::new(),
            on_edge: vec![Vec::new(); edges],
            now_s: 0.0,
            stale: false,
            left: vec![0.0; edges],
            waiting: vec![0; edges],
        })
    }

    /// Starts a flow, returning its number, which is used again once it has ended
    ///
    /// # Errors
    ///
    /// [`NetworkError`] if the time is before that of an earlier call, the path is empty or names an
    /// edge that is not there, or the bytes are no number from 0. Nothing is changed then.
    pub fn start(&mut self, now_s: f64, path: &[u32], bytes: f64) -> Result<u32, NetworkError> {
        if !(bytes >= 0.0 && bytes.is_finite()) {
            return Err(NetworkError::Bytes { bytes });
        }
        if path.is_empty() {
            return Err(NetworkError::EmptyPath);
        }
        let edges = self.capacities.len();
        if let Some(&edge) = path.iter().find(|&&edge| edge as usize >= edges) {
            return Err(NetworkError::Edge { edge, edges });
        }
        self.advance(now_s)?;
        let flow = Flow {
            path: path.to_vec(),
            left_bytes: bytes.max(1.0),
            bytes_per_s: 0.0,
            fixed: false,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.flows[number as usize] = Some(flow);
                number
            }
            None => {
                self.flows.push(Some(flow));
                u32::try_from(self.flows.len() - 1).expect("a flow has more bytes than its number")
            }
        };
        for &edge in path {
            self.on_edge[edge as usize].push(number);
        }
        self.stale = true;
        Ok(number)
    }

    /// When the next flow ends if none starts before, in seconds; None if there is none
    pub fn next_end(&mut self) -> Option<f64> {
        self.share();
        self.flows
            .iter()
            .flatten()
            .map(|flow| self.now_s + (flow.left_bytes / flow.bytes_per_s).max(0.0))
            .min_by(f64::total_cmp)
    }

    /// Takes out the flows that have ended by now, returning their numbers, lowest first
    ///
    /// # Errors
    ///
    /// [`NetworkError::Backwards`] if the time is before that of an earlier call.
    pub fn finish(&mut self, now_s: f64) -> Result<Vec<u32>, NetworkError> {
        self.advance(now_s)?;
        let mut ended = Vec::new();
        for (number, slot) in self.flows.iter_mut().enumerate() {
            let done = slot
                .as_ref()
                .is_some_and(|flow| flow.left_bytes <= LEFT_BYTES + flow.bytes_per_s * LEFT_S);
            if !done {
                continue;
            }
            let number = u32::try_from(number).expect("numbers are given out as u32");
            if let Some(flow) = slot.take() {
                for edge in flow.path {
                    self.on_edge[edge as usize].retain(|&other| other != number);
                }
            }
            self.free.push(number);
            ended.push(number);
        }
        self.stale |= !ended.is_empty();
        Ok(ended)
    }

    /// How fast a flow is now, in bytes per second; None if there is none of that number
    pub fn rate(&mut self, number: u32) -> Option<f64> {
        self.share();
        let flow = self.flows.get(number as usize)?.as_ref()?;
        Some(flow.bytes_per_s)
    }

    fn advance(&mut self, now_s: f64) -> Result<(), NetworkError> {
        let passed_s = now_s - self.now_s;
        if !(passed_s >= 0.0 && now_s.is_finite()) {
            return Err(NetworkError::Backwards {
                now_s,
                before_s: self.now_s,
            });
        }
        if passed_s > 0.0 {
            self.share();
            for flow in self.flows.iter_mut().flatten() {
                flow.left_bytes -= flow.bytes_per_s * passed_s;
            }
            self.now_s = now_s;
        }
        Ok(())
    }

    /// Gives each flow its fair rate
    fn share(&mut self) {
        if !self.stale {
            return;
        }
        self.stale = false;
        let mut used: Vec<u32> = Vec::new();
        for (edge, flows) in self.on_edge.iter().enumerate() {
            if !flows.is_empty() {
                used.push(edge as u32);
                self.left[edge] = self.capacities[edge];
                self.waiting[edge] = flows.len() as u32;
            }
        }
        for flow in self.flows.iter_mut().flatten() {
            flow.fixed = false;
        }
        while let Some((place, edge)) = self.fullest(&used) {
            let share = (self.left[edge] / f64::from(self.waiting[edge])).max(SHARE_BYTES_PER_S);
            for &number in &self.on_edge[edge] {
                let Some(flow) = self.flows[number as usize].as_mut() else {
                    continue;
                };
                if flow.fixed {
                    continue;
                }
                flow.fixed = true;
                flow.bytes_per_s = share;
                for &other in &flow.path {
                    self.left[other as usize] -= share;
                    self.waiting[other as usize] -= 1;
                }
            }
            used.swap_remove(place);
        }
    }

    /// The edge with the least for each of its flows that are not fixed, and its place in the list
    fn fullest(&self, used: &[u32]) -> Option<(usize, usize)> {
        used.iter()
            .enumerate()
            .filter(|&(_, &edge)| self.waiting[edge as usize] > 0)
            .map(|(place, &edge)| (place, edge as usize))
            .min_by(|a, b| {
                let share = |edge: usize| self.left[edge] / f64::from(self.waiting[edge]);
                share(a.1).total_cmp(&share(b.1))
            })
    }
}

/// Impossible value for a network
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum NetworkError {
    /// A capacity is not a positive number
    #[error("edge {edge} has a capacity of {bytes_per_s} bytes/s, which is not above 0")]
    Capacity {
        /// Number of the edge
        edge: usize,
        /// Value that was given
        bytes_per_s: f64,
    },
    /// A path names an edge that is not there
    #[error("a path takes edge {edge} of a network with {edges} edges")]
    Edge {
        /// Number of the edge
        edge: u32,
        /// How many there are
        edges: usize,
    },
    /// A path without edges
    #[error("a path has no edges")]
    EmptyPath,
    /// A size that is no number from 0
    #[error("a flow of {bytes} bytes")]
    Bytes {
        /// Value that was given
        bytes: f64,
    },
    /// Time that goes backwards, or is no number
    #[error("time {now_s} s is no time after {before_s} s")]
    Backwards {
        /// The time given
        now_s: f64,
        /// That of an earlier call
        before_s: f64,
    },
}

/// A flow with less than this has ended: what rounding may leave
const LEFT_BYTES: f64 = 1e-3;
/// The same, as time at its rate
const LEFT_S: f64 = 1e-9;
/// Rounding never leaves a flow without any rate
const SHARE_BYTES_PER_S: f64 = 1e-6;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn flows_share_the_edge_that_is_full_and_the_rest_goes_to_others() {
        let mut network = FairNetwork::new(vec![10.0, 30.0]).unwrap();
        let both = network.start(0.0, &[0, 1], 100.0).unwrap();
        let first = network.start(0.0, &[0], 100.0).unwrap();
        let second = network.start(0.0, &[1], 100.0).unwrap();
        assert_eq!(network.rate(both), Some(5.0));
        assert_eq!(network.rate(first), Some(5.0));
        assert_eq!(network.rate(second), Some(25.0));
        assert_eq!(network.next_end(), Some(4.0));
        assert_eq!(network.finish(4.0), Ok(vec![second]));
        assert_eq!(network.next_end(), Some(20.0));
        assert_eq!(network.finish(20.0), Ok(vec![both, first]));
        assert_eq!(network.next_end(), None);
    }

    #[test]
    fn a_number_is_used_again_after_its_flow() {
        let mut network = FairNetwork::new(vec![1.0]).unwrap();
        let first = network.start(0.0, &[0], 1.0).unwrap();
        assert_eq!(network.finish(1.0), Ok(vec![first]));
        assert_eq!(network.rate(first), None);
        assert_eq!(network.start(1.0, &[0], 1.0), Ok(first));
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_value() {
        let error = FairNetwork::new(vec![1.0, f64::NAN]).unwrap_err();
        assert!(error.to_string().contains("edge 1"));
        let mut network = FairNetwork::new(vec![1.0]).unwrap();
        assert_eq!(
            network.start(0.0, &[1], 1.0),
            Err(NetworkError::Edge { edge: 1, edges: 1 })
        );
        assert_eq!(network.start(0.0, &[], 1.0), Err(NetworkError::EmptyPath));
        assert_eq!(
            network.start(0.0, &[0], -1.0),
            Err(NetworkError::Bytes { bytes: -1.0 })
        );
        network.start(2.0, &[0], 1.0).unwrap();
        assert!(network.finish(1.0).is_err());
        assert!(network.start(f64::NAN, &[0], 1.0).is_err());
    }

    proptest! {
        /// Max-min: no edge above its capacity, and each flow has an edge that is full on which
        /// no other flow is faster
        #[test]
        fn rates_are_fair_and_nothing_is_left_unused(
            capacities in prop::collection::vec(1.0f64..100.0, 1..6),
            paths in prop::collection::vec(prop::collection::btree_set(0u32..6, 1..4), 1..12),
        ) {
            let edges = capacities.len() as u32;
            let mut network = FairNetwork::new(capacities.clone()).unwrap();
            let mut flows = Vec::new();
            for path in paths {
                let path: Vec<u32> = path.into_iter().filter(|edge| *edge < edges).collect();
                if path.is_empty() {
                    continue;
                }
                flows.push((network.start(0.0, &path, 1e6).unwrap(), path));
            }
            let rates: Vec<f64> = flows.iter().map(|(flow, _)| network.rate(*flow).unwrap()).collect();
            let load = |edge: u32| -> f64 {
                flows.iter().zip(&rates).filter(|((_, path), _)| path.contains(&edge)).map(|(_, rate)| rate).sum()
            };
            for edge in 0..edges {
                prop_assert!(load(edge) <= capacities[edge as usize] * (1.0 + 1e-9));
            }
            for ((_, path), rate) in flows.iter().zip(&rates) {
                let held = path.iter().any(|&edge| {
                    load(edge) >= capacities[edge as usize] * (1.0 - 1e-9)
                        && flows.iter().zip(&rates).all(|((_, other), other_rate)| {
                            !other.contains(&edge) || *other_rate <= rate * (1.0 + 1e-9)
                        })
                });
                prop_assert!(held);
            }
        }
    }
}

//! Costs of places, for all policies of one scheduler: links, transfers under way, islands.
//!
//! Workers have the numbers in whose order they came, and are found by address, so that those who
//! decide may each have a name of their own for them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use super::candidates::{Islands, Near};
use super::links::{HostLinks, LinkCosts, LinkError, Route, RouteTable};
use super::meetings::Meetings;
use super::mirror::{Beta, Input, Mirror};

/// One for a scheduler and for the core that has its state at times
pub type SharedCosts = Arc<Mutex<Costs>>;

/// A flow between two hosts or within one: sender, receiver, bytes a second, latency in seconds
pub type Flow = (u32, u32, f64, f64);

/// State of the workers of one scheduler
pub struct Costs {
    /// Transfers under way
    pub mirror: Mirror,
    hosts: HostLinks,
    /// True if routes were given; then the names of hosts say nothing about them
    described: bool,
    islands: Islands,
    /// By number; None for one that is gone
    addresses: Vec<Option<Arc<str>>>,
    numbers: HashMap<Arc<str>, u32>,
}

/// Task that a decision is about
pub struct Wish<'a> {
    /// The inputs of the task
    pub inputs: &'a Inputs,
    /// Where its result will be needed
    pub meetings: &'a Meetings,
    /// How large that is expected to be, in bytes; 0 if nothing is known
    pub result_bytes: f64,
}

/// A worker that may run a task
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Its number
    pub worker: u32,
    /// For how long it is busy with what it has, in seconds
    pub stack_s: f64,
    /// How much it holds, in bytes
    pub held_bytes: u64,
}

/// Inputs of a task, as they are read
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Identity, bytes, and where its holders are in `holders`
    results: Vec<(u64, f64, usize, usize)>,
    holders: Vec<u32>,
}

impl Costs {
    /// Makes one without workers
    #[must_use]
    pub fn new(beta: Beta) -> Self {
        Self {
            mirror: Mirror::new(Box::new(HostLinks::default()), beta),
            hosts: HostLinks::default(),
            described: false,
            islands: Islands::default(),
            addresses: Vec::new(),
            numbers: HashMap::new(),
        }
    }

    /// Adds a worker on a host, by numbers that leave out none, and tells its own number
    ///
    /// # Errors
    ///
    /// [`LinkError`] for a host that cannot be.
    pub fn add_worker(&mut self, address: &str, host: u32, island: u32) -> Result<u32, LinkError> {
        let number = self.hosts.add_worker(host)?;
        self.islands.add(number, island);
        let address: Arc<str> = Arc::from(address);
        self.addresses.push(Some(Arc::clone(&address)));
        self.numbers.insert(address, number);
        self.use_hosts();
        Ok(number)
    }

    /// Forgets a worker, and what it was promised
    pub fn remove_worker(&mut self, number: u32) {
        self.mirror.forget(number);
        self.islands.remove(number);
        let place = self.addresses.get_mut(number as usize);
        // Another may have come to its address.
        if let Some(address) = place.and_then(Option::take)
            && self.numbers.get(&address) == Some(&number)
        {
            self.numbers.remove(&address);
        }
    }

    /// The number of the worker at an address
    #[must_use]
    pub fn number(&self, address: &str) -> Option<u32> {
        self.numbers.get(address).copied()
    }

    /// Returns whether a worker of this number is there
    #[must_use]
    pub fn has_worker(&self, number: u32) -> bool {
        let address = self.addresses.get(number as usize);
        address.is_some_and(Option::is_some)
    }

    /// Takes all routes of the workers that there are: sender, receiver, edges, latency in seconds
    ///
    /// # Errors
    ///
    /// [`LinkError`] for a pair without one, or a figure that cannot be.
    pub fn set_routes(
        &mut self,
        capacities_bytes_per_s: Vec<f64>,
        routes: Vec<(u32, u32, Vec<u32>, f64)>,
    ) -> Result<(), LinkError> {
        let routes = routes
            .into_iter()
            .map(|(sender, receiver, edges, latency_s)| {
                Ok((sender, receiver, Route::new(&edges, latency_s)?))
            })
            .collect::<Result<Vec<_>, LinkError>>()?;
        let table = RouteTable::new(self.addresses.len(), capacities_bytes_per_s, routes)?;
        self.described = true;
        self.mirror.set_links(Box::new(table));
        Ok(())
    }

    /// Takes what is known of NICs of hosts, in bytes a second, and of flows
    ///
    /// # Errors
    ///
    /// [`LinkError`] for a host that is not there or a figure that cannot be; nothing is taken then.
    pub fn set_hosts(&mut self, nics: Vec<(u32, f64)>, flows: Vec<Flow>) -> Result<(), LinkError> {
        let mut hosts = self.hosts.clone();
        for (host, bytes_per_s) in nics {
            hosts.set_nic(host, bytes_per_s)?;
        }
        for (sender, receiver, bytes_per_s, latency_s) in flows {
            hosts.set_pair(sender, receiver, bytes_per_s, latency_s)?;
        }
        self.hosts = hosts;
        self.use_hosts();
        Ok(())
    }

    fn use_hosts(&mut self) {
        if !self.described {
            self.mirror.set_links(Box::new(self.hosts.clone()));
        }
    }

    /// Returns the record of links
    #[must_use]
    pub fn links(&self) -> &dyn LinkCosts {
        self.mirror.links()
    }

    /// Finds the workers to ask for a task
    pub fn near(&mut self, inputs: &Inputs) -> Near {
        self.islands.near(inputs.held())
    }

    /// The one of some workers where a task is expected to begin soonest; of equal ones the one that
    /// holds least, of these the first
    pub fn soonest(&mut self, wish: &Wish<'_>, candidates: &[Candidate]) -> Option<u32> {
        let inputs = wish.inputs.listed();
        let mut best: Option<(f64, &Candidate)> = None;
        for one in candidates {
            // Nothing that comes can make it cheaper than its queue.
            if best.is_some_and(|(least_s, _)| one.stack_s > least_s) {
                continue;
            }
            let links = self.mirror.links();
            let meetings_s = wish.meetings.seconds(one.worker, wish.result_bytes, links);
            let transfer_s = self.mirror.transfer(&inputs, one.worker).cost_s();
            let seconds = one.stack_s + transfer_s + meetings_s;
            if best.is_none_or(|(least_s, least)| {
                seconds < least_s || (seconds == least_s && one.held_bytes < least.held_bytes)
            }) {
                best = Some((seconds, one));
            }
        }
        best.map(|(_, one)| one.worker)
    }
}

impl fmt::Debug for Costs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Costs")
            .field("addresses", &self.addresses)
            .field("promises", &self.mirror.promises())
            .finish_non_exhaustive()
    }
}

impl Inputs {
    /// Adds a result: a number that no other has at the time, its size, and who holds it
    ///
    /// A size that is not known counts as 1,024 bytes.
    pub fn add(&mut self, task: u64, bytes: Option<f64>, holders: impl IntoIterator<Item = u32>) {
        let first = self.holders.len();
        self.holders.extend(holders);
        let bytes = bytes.unwrap_or(DEFAULT_BYTES);
        self.results.push((task, bytes, first, self.holders.len()));
    }

    /// The inputs, one by one
    #[must_use]
    pub fn listed(&self) -> Vec<Input<'_>> {
        let results = self.results.iter();
        results
            .map(|&(task, bytes, first, last)| Input {
                task,
                bytes,
                holders: &self.holders[first..last],
            })
            .collect()
    }

    fn held(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.results.iter().flat_map(|&(_, bytes, first, last)| {
            let holders = self.holders[first..last].iter();
            holders.map(move |&holder| (holder, bytes))
        })
    }
}

/// Size that counts for a result of unknown size, as in Dask's ``DEFAULT_DATA_SIZE``
const DEFAULT_BYTES: f64 = 1024.0;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

    use super::*;

    const BETA: Beta = Beta {
        shared: 3.0,
        private: 1.5,
    };

    #[test]
    fn a_worker_is_found_by_its_address_as_long_as_it_is_there() {
        let mut costs = Costs::new(BETA);
        let first = costs.add_worker("tcp://a", 0, 0).unwrap();
        let again = costs.add_worker("tcp://a", 0, 0).unwrap();
        assert_eq!(costs.number("tcp://a"), Some(again));
        costs.remove_worker(first);
        assert_eq!(costs.number("tcp://a"), Some(again), "the one that came");
        assert!(!costs.has_worker(first));
        costs.remove_worker(again);
        assert_eq!(costs.number("tcp://a"), None);
        assert!(!costs.has_worker(7));
    }

    #[test]
    fn of_equal_workers_the_one_is_chosen_that_holds_least_then_the_first() {
        let mut costs = Costs::new(BETA);
        for address in ["tcp://a", "tcp://b", "tcp://c"] {
            costs.add_worker(address, 0, 0).unwrap();
        }
        let mut inputs = Inputs::default();
        inputs.add(1, Some(8.0), [0]);
        let wish = Wish {
            inputs: &inputs,
            meetings: &Meetings::default(),
            result_bytes: 0.0,
        };
        assert_eq!(costs.near(&inputs).candidates(|_| Some(0.0)), [0, 1, 2]);
        let of = |stacks_s: [f64; 3], held: [u64; 3]| {
            (0..3).map(move |worker| Candidate {
                worker,
                stack_s: stacks_s[worker as usize],
                held_bytes: held[worker as usize],
            })
        };
        let mut chosen = |stacks_s, held| {
            let candidates: Vec<Candidate> = of(stacks_s, held).collect();
            costs.soonest(&wish, &candidates)
        };
        assert_eq!(chosen([9.0, 0.0, 1.0], [0, 0, 0]), Some(1));
        assert_eq!(chosen([9.0, 1.0, 1.0], [0, 5, 4]), Some(2));
        assert_eq!(chosen([9.0, 1.0, 1.0], [0, 4, 4]), Some(1));
        assert_eq!(costs.soonest(&wish, &[]), None);
    }
}

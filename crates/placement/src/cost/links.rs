//! The way of each pair of workers along edges of limited capacity.
//!
//! [`RouteTable`] is given every pair, for machines that are described; [`HostLinks`] knows hosts
//! only, and starts from the usual figures of a class. Both give [`LinkCosts`].

use std::collections::HashMap;

use thiserror::Error;

/// How bytes get from one worker to another
pub trait LinkCosts: Send + Sync {
    /// The way from one worker to another one
    fn route(&self, sender: u32, receiver: u32) -> Route;

    /// Capacity of each edge that routes name, in bytes per second
    fn capacities(&self) -> &[f64];

    /// Returns whether only one pair of workers uses an edge, in one direction
    fn is_private(&self, edge: u32) -> bool;

    /// The group of a worker: all its members reach any other worker alike, and one another
    ///
    /// Each has a group of its own where nothing else is known.
    fn group(&self, worker: u32) -> u32 {
        worker
    }

    /// How long bytes take with nothing else under way, in seconds
    fn seconds(&self, sender: u32, receiver: u32, bytes: f64) -> f64 {
        if sender == receiver {
            return 0.0;
        }
        let route = self.route(sender, receiver);
        route.latency_s + bytes * route.seconds_per_byte(self.capacities())
    }
}

/// The way of one pair of workers, in one direction
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    edges: [u32; EDGES_MAX],
    count: u8,
    /// Time before the first byte, in seconds
    pub latency_s: f64,
    /// Most that one flow gets, in bytes per second; infinite if only the edges limit it
    pub flow_bytes_per_s: f64,
}

impl Route {
    /// Makes a route
    ///
    /// # Errors
    ///
    /// [`LinkError::TooManyEdges`], or [`LinkError::Latency`] for one that is no number from 0.
    pub fn new(edges: &[u32], latency_s: f64) -> Result<Self, LinkError> {
        if edges.len() > EDGES_MAX {
            return Err(LinkError::TooManyEdges { edges: edges.len() });
        }
        if !(latency_s >= 0.0 && latency_s.is_finite()) {
            return Err(LinkError::Latency { latency_s });
        }
        let mut fixed = [0; EDGES_MAX];
        fixed[..edges.len()].copy_from_slice(edges);
        Ok(Self {
            edges: fixed,
            count: edges.len() as u8,
            latency_s,
            flow_bytes_per_s: f64::INFINITY,
        })
    }

    /// Numbers of the edges
    #[must_use]
    pub fn edges(&self) -> &[u32] {
        &self.edges[..usize::from(self.count)]
    }

    /// Time of one byte with nothing else under way, in seconds
    #[must_use]
    pub fn seconds_per_byte(&self, capacities: &[f64]) -> f64 {
        self.edges()
            .iter()
            .map(|&edge| 1.0 / capacities[edge as usize])
            .fold(1.0 / self.flow_bytes_per_s, f64::max)
    }
}

/// Routes that were all given
#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    workers: usize,
    capacities: Vec<f64>,
    /// By edge: whether one pair alone uses it
    private: Vec<bool>,
    /// By sender, then receiver
    routes: Vec<Route>,
}

impl RouteTable {
    /// Makes a table for some workers
    ///
    /// # Errors
    ///
    /// [`LinkError`] if a capacity is not above 0, a route names a worker or an edge that is not
    /// there, or a pair has no route.
    pub fn new(
        workers: usize,
        capacities_bytes_per_s: Vec<f64>,
        routes: impl IntoIterator<Item = (u32, u32, Route)>,
    ) -> Result<Self, LinkError> {
        for &bytes_per_s in &capacities_bytes_per_s {
            check_rate(bytes_per_s)?;
        }
        let mut given: Vec<Option<Route>> = vec![None; workers * workers];
        for (sender, receiver, route) in routes {
            if let Some(&worker) = [sender, receiver].iter().find(|&&w| w as usize >= workers) {
                return Err(LinkError::Worker { worker, workers });
            }
            let edges = capacities_bytes_per_s.len();
            if let Some(&edge) = route.edges().iter().find(|&&edge| edge as usize >= edges) {
                return Err(LinkError::Edge { edge, edges });
            }
            given[sender as usize * workers + receiver as usize] = Some(route);
        }
        let routes = given
            .into_iter()
            .enumerate()
            .map(|(at, route)| match route {
                Some(route) => Ok(route),
                None if at / workers == at % workers => Route::new(&[], 0.0),
                None => Err(LinkError::NoRoute {
                    sender: (at / workers) as u32,
                    receiver: (at % workers) as u32,
                }),
            })
            .collect::<Result<Vec<Route>, LinkError>>()?;
        let mut users = vec![0u32; capacities_bytes_per_s.len()];
        for edge in routes.iter().flat_map(Route::edges) {
            users[*edge as usize] += 1;
        }
        Ok(Self {
            workers,
            capacities: capacities_bytes_per_s,
            private: users.into_iter().map(|pairs| pairs < 2).collect(),
            routes,
        })
    }
}

impl LinkCosts for RouteTable {
    fn route(&self, sender: u32, receiver: u32) -> Route {
        self.routes[sender as usize * self.workers + receiver as usize]
    }

    fn capacities(&self) -> &[f64] {
        &self.capacities
    }

    fn is_private(&self, edge: u32) -> bool {
        self.private[edge as usize]
    }
}

/// Routes by the hosts of the workers: memory within a host, one NIC for each direction between
///
/// Starts from [`PRIOR`] and takes what is learned of hosts and of pairs of them.
#[derive(Clone, Debug, Default)]
pub struct HostLinks {
    host_of: Vec<u32>,
    /// Of each host: its NIC outwards, inwards, and its memory
    capacities: Vec<f64>,
    /// Speed of one flow between two hosts, and its latency, where that is known
    pairs: HashMap<(u32, u32), (f64, f64)>,
}

impl HostLinks {
    /// Adds a worker, returning its number
    ///
    /// # Errors
    ///
    /// [`LinkError::Host`] if the number of its host leaves out others.
    pub fn add_worker(&mut self, host: u32) -> Result<u32, LinkError> {
        let hosts = (self.capacities.len() / EDGES_OF_HOST) as u32;
        if host > hosts {
            return Err(LinkError::Host { host, hosts });
        }
        if host == hosts {
            self.capacities.extend([
                PRIOR.nic_bytes_per_s,
                PRIOR.nic_bytes_per_s,
                PRIOR.memory_bytes_per_s,
            ]);
        }
        self.host_of.push(host);
        Ok(self.host_of.len() as u32 - 1)
    }

    /// Takes what is known of the NIC of a host, in both directions
    ///
    /// # Errors
    ///
    /// [`LinkError`] if there is no such host, or the rate is not above 0.
    pub fn set_nic(&mut self, host: u32, bytes_per_s: f64) -> Result<(), LinkError> {
        self.check_host(host)?;
        check_rate(bytes_per_s)?;
        let at = host as usize * EDGES_OF_HOST;
        self.capacities[at] = bytes_per_s;
        self.capacities[at + 1] = bytes_per_s;
        Ok(())
    }

    /// Takes what is known of one flow from a host to another one, or within one
    ///
    /// # Errors
    ///
    /// [`LinkError`] if there is no such host, or a figure is no number above 0.
    pub fn set_pair(
        &mut self,
        sender: u32,
        receiver: u32,
        bytes_per_s: f64,
        latency_s: f64,
    ) -> Result<(), LinkError> {
        self.check_host(sender)?;
        self.check_host(receiver)?;
        check_rate(bytes_per_s)?;
        Route::new(&[], latency_s)?;
        self.pairs
            .insert((sender, receiver), (bytes_per_s, latency_s));
        // The edges under a flow have at least the speed that it shows.
        for edge in self.edges(sender, receiver) {
            let capacity = &mut self.capacities[edge as usize];
            *capacity = capacity.max(bytes_per_s);
        }
        Ok(())
    }

    fn check_host(&self, host: u32) -> Result<(), LinkError> {
        let hosts = (self.capacities.len() / EDGES_OF_HOST) as u32;
        if host >= hosts {
            return Err(LinkError::Host { host, hosts });
        }
        Ok(())
    }

    fn edges(&self, sender: u32, receiver: u32) -> impl Iterator<Item = u32> + use<> {
        let per_host = EDGES_OF_HOST as u32;
        let (first, second) = if sender == receiver {
            (sender * per_host + 2, None)
        } else {
            (sender * per_host, Some(receiver * per_host + 1))
        };
        std::iter::once(first).chain(second)
    }
}

impl LinkCosts for HostLinks {
    fn route(&self, sender: u32, receiver: u32) -> Route {
        let (here, there) = (
            self.host_of[sender as usize],
            self.host_of[receiver as usize],
        );
        let mut edges = [0; EDGES_MAX];
        let mut count = 0;
        for edge in self.edges(here, there) {
            edges[usize::from(count)] = edge;
            count += 1;
        }
        let prior = if here == there {
            (PRIOR.shared_bytes_per_s, PRIOR.shared_latency_s)
        } else {
            (f64::INFINITY, PRIOR.network_latency_s)
        };
        let (flow_bytes_per_s, latency_s) =
            self.pairs.get(&(here, there)).copied().unwrap_or(prior);
        Route {
            edges,
            count,
            latency_s,
            flow_bytes_per_s,
        }
    }

    fn capacities(&self) -> &[f64] {
        &self.capacities
    }

    /// Its host
    fn group(&self, worker: u32) -> u32 {
        self.host_of[worker as usize]
    }

    /// None is: each is a NIC or the memory of a host
    fn is_private(&self, _edge: u32) -> bool {
        false
    }
}

/// Assumed figures of links of a class until they are measured
#[derive(Clone, Copy, Debug)]
pub struct Prior {
    /// One direction of a NIC: what Dask assumes of any link (`distributed.scheduler.bandwidth`)
    ///
    /// Without measurements, no more is moved than by Dask. Transfers that have to be made teach.
    pub nic_bytes_per_s: f64,
    /// All that one host copies between its processes
    pub memory_bytes_per_s: f64,
    /// One pair of processes of a host
    pub shared_bytes_per_s: f64,
    /// Within a host
    pub shared_latency_s: f64,
    /// Between hosts
    pub network_latency_s: f64,
}

/// Round figures of common hosts, but for the network, which may be anything
pub const PRIOR: Prior = Prior {
    nic_bytes_per_s: 1e8,
    memory_bytes_per_s: 16e9,
    shared_bytes_per_s: 5e9,
    shared_latency_s: 30e-6,
    network_latency_s: 100e-6,
};

/// Impossible statement about a link
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum LinkError {
    /// A rate that is no number above 0
    #[error("a link of {bytes_per_s} bytes/s, which is not above 0")]
    Rate {
        /// Value that was given
        bytes_per_s: f64,
    },
    /// A latency that is no number from 0
    #[error("a link with a latency of {latency_s} s")]
    Latency {
        /// Value that was given
        latency_s: f64,
    },
    /// A request for data that takes no number of seconds from 0
    #[error("a request for data that takes {request_s} s")]
    Request {
        /// Value that was given
        request_s: f64,
    },
    /// More edges than a route can have
    #[error("a route of {edges} edges, of which there may be 4")]
    TooManyEdges {
        /// How many were given
        edges: usize,
    },
    /// An edge that is not there
    #[error("a route takes edge {edge} of {edges}")]
    Edge {
        /// Edge that was given
        edge: u32,
        /// How many there are
        edges: usize,
    },
    /// A worker that is not there
    #[error("a route of worker {worker} of {workers}")]
    Worker {
        /// Worker that was given
        worker: u32,
        /// How many there are
        workers: usize,
    },
    /// A host that is not there
    #[error("host {host} of {hosts}")]
    Host {
        /// Host that was given
        host: u32,
        /// How many there are
        hosts: u32,
    },
    /// A pair without a route
    #[error("no route from worker {sender} to {receiver}")]
    NoRoute {
        /// From
        sender: u32,
        /// To
        receiver: u32,
    },
}

fn check_rate(bytes_per_s: f64) -> Result<(), LinkError> {
    if bytes_per_s > 0.0 && bytes_per_s.is_finite() {
        Ok(())
    } else {
        Err(LinkError::Rate { bytes_per_s })
    }
}

/// Most edges of a route: two NICs and two uplinks
const EDGES_MAX: usize = 4;
/// NIC outwards, NIC inwards, memory
const EDGES_OF_HOST: usize = 3;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

    use super::*;

    #[test]
    fn what_is_known_of_a_pair_of_hosts_takes_the_place_of_the_class() {
        let mut links = HostLinks::default();
        for host in [0, 0, 1, 2] {
            links.add_worker(host).unwrap();
        }
        let by_class = links.seconds(0, 2, 1e9);
        links.set_pair(0, 1, 1e8, 1e-3).unwrap();
        assert!((links.seconds(0, 2, 1e9) - 10.001).abs() < 1e-9);
        assert_eq!(links.seconds(0, 3, 1e9), by_class);
        // The other way has no measurement.
        assert_eq!(links.seconds(2, 0, 1e9), by_class);
        assert_eq!(links.seconds(1, 1, 1e9), 0.0);
    }

    #[test]
    fn nearer_is_cheaper_by_class() {
        let mut links = HostLinks::default();
        for host in [0, 0, 1] {
            links.add_worker(host).unwrap();
        }
        for bytes in [0.0, 1.0, 1e6, 1e9] {
            let same_worker = links.seconds(0, 0, bytes);
            let same_host = links.seconds(0, 1, bytes);
            assert!(same_worker < same_host);
            assert!(same_host < links.seconds(0, 2, bytes));
        }
    }

    #[test]
    fn a_link_that_cannot_be_is_refused_with_the_value() {
        let mut links = HostLinks::default();
        assert_eq!(
            links.add_worker(3),
            Err(LinkError::Host { host: 3, hosts: 0 })
        );
        links.add_worker(0).unwrap();
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(links.set_nic(0, rate).is_err());
            assert!(links.set_pair(0, 0, rate, 0.0).is_err());
        }
        assert!(links.set_pair(0, 0, 1.0, f64::NAN).is_err());
        assert!(Route::new(&[0; 5], 0.0).is_err());
        let route = Route::new(&[1], 0.0).unwrap();
        assert_eq!(
            RouteTable::new(2, vec![1.0], [(0, 1, route)]).unwrap_err(),
            LinkError::Edge { edge: 1, edges: 1 }
        );
        let route = Route::new(&[0], 0.0).unwrap();
        assert_eq!(
            RouteTable::new(2, vec![1.0], [(0, 1, route)]).unwrap_err(),
            LinkError::NoRoute {
                sender: 1,
                receiver: 0
            }
        );
    }
}

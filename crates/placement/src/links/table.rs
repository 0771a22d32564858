//! Reports of all receivers on their links, and an answer for any two workers.
//!
//! An answer is of the two processes if they have met, else of their hosts, else of links of the
//! kind, else of what was known before anything moved. Links of a process that left are forgotten;
//! what was learned of its host stays.

mod hosts;
mod prior;
mod shared;

use std::collections::HashMap;

use thiserror::Error;

use super::class::Memory;
use super::estimate::LinkEstimate;
use super::host_pair::{Alike, Profile, is_much_alike};
use super::load::{Traffic, Window};
use super::ring::Ring;

use self::hosts::{HOSTS_MAX, Host, HostId};
use self::prior::Kind;
pub use self::prior::{Prior, Priors};

/// A worker of Dask's, in a [`LinkTable`]; another one may have it when it has left
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct WorkerId(u32);

/// A process, in a [`LinkTable`]; several workers may be in one
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ProcessId(u32);

/// Where an answer comes from
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Origin {
    /// Both are in one process
    SameProcess,
    /// Messages between these two processes
    ProcessPair,
    /// Messages between their hosts
    HostPair,
    /// Messages over links of this kind: within a host, between hosts, of devices
    Class,
    /// Description by topology or configuration
    Prior,
}

impl Origin {
    /// `same process`, `process pair`, `host pair`, `class` or `prior`
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SameProcess => "same process",
            Self::ProcessPair => "process pair",
            Self::HostPair => "host pair",
            Self::Class => "class",
            Self::Prior => "prior",
        }
    }
}

/// How fast one link is expected to be for one message
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answer {
    /// Seconds that the message takes
    pub seconds: f64,
    /// Bytes a second, of messages like it; infinite where bytes are lent
    pub bytes_per_s: f64,
    /// Seconds beside that
    pub latency_s: f64,
    /// Messages behind it
    pub samples: u32,
    /// Source of the answer
    pub origin: Origin,
}

/// A measured link
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Token of the process that sends
    pub sender: String,
    /// Token of the process that receives
    pub receiver: String,
    /// Hosts of both
    pub hosts: (String, String),
    /// The lane
    pub lane: String,
    /// Estimate of the link
    pub said: LinkEstimate,
}

/// Report of a process on its arrivals from another one over one lane
#[derive(Clone, Copy, Debug)]
pub struct Report<'r> {
    /// Token of who says it
    pub receiver: &'r str,
    /// Token of who sent
    pub sender: &'r str,
    /// Where that is, as the receiver sees it; a worker's own host is known better
    pub sender_host: &'r str,
    /// The lane
    pub lane: &'r str,
    /// Amounts that have come in all
    pub traffic: Traffic,
    /// How fast it came
    pub said: &'r [LinkEstimate],
}

/// All links that are known
///
/// Bounded: pairs of processes and pairs of hosts by a limit, hosts by those that have a process.
/// The estimates of a host without processes are kept until room is needed.
#[derive(Debug)]
pub struct LinkTable {
    priors: Priors,
    links_max: usize,
    hosts: Vec<Host>,
    host_ids: HashMap<String, HostId>,
    free_hosts: Vec<HostId>,
    /// Number of hosts from which it looks for some without processes
    hosts_max: usize,
    processes: Vec<Process>,
    process_ids: HashMap<String, ProcessId>,
    free_processes: Vec<ProcessId>,
    /// Processes by worker
    workers: Vec<Option<ProcessId>>,
    worker_ids: HashMap<String, WorkerId>,
    free_workers: Vec<WorkerId>,
    pairs: HashMap<(ProcessId, ProcessId), Pair>,
    host_pairs: HashMap<(HostId, HostId), HostPair>,
    kinds: [KindOfLink; Kind::COUNT],
}

#[derive(Debug)]
struct Process {
    token: String,
    host: HostId,
    workers: u32,
    /// When the window began in which it receives now, in seconds; `None` before its first report
    window_began_s: Option<f64>,
    /// How long the window was that its last report ended, in seconds; 0 if that ended none
    window_s: f64,
    /// Processes that sent much in the last window, from other hosts
    senders: Vec<ProcessId>,
}

/// From one process to another
#[derive(Debug, Default)]
struct Pair {
    /// By lane; the lane that was used last comes last
    lanes: Vec<(String, Vec<LinkEstimate>)>,
    /// Of the last lane
    profiles: Profiles,
    /// Amounts that had come when the window of its receiver began, by the lane that was used then
    traffic: (String, Traffic),
    window: Option<Window>,
    /// Figures that it would have had in its last windows without other processes; empty if there
    /// were none
    alone: Ring,
    /// Windows since then in which no other process was there
    quiet_windows: u8,
}

#[derive(Debug, Default)]
struct HostPair {
    alike: Alike<(ProcessId, ProcessId)>,
    /// Estimates that links of its kind have reported
    told: Vec<LinkEstimate>,
    profiles: Profiles,
}

#[derive(Debug, Default)]
struct KindOfLink {
    alike: Alike<(HostId, HostId)>,
    profiles: Profiles,
}

/// By memory
type Profiles = [Option<Profile>; 2];

fn profiles(said: &[LinkEstimate]) -> Profiles {
    Memory::ALL.map(|memory| Profile::of(said, memory))
}

impl LinkTable {
    /// A table of at most so many measured links
    #[must_use]
    pub fn new(priors: Priors, links_max: usize) -> Self {
        Self {
            priors,
            links_max,
            hosts: Vec::new(),
            host_ids: HashMap::new(),
            free_hosts: Vec::new(),
            hosts_max: HOSTS_MAX,
            processes: Vec::new(),
            process_ids: HashMap::new(),
            free_processes: Vec::new(),
            workers: Vec::new(),
            worker_ids: HashMap::new(),
            free_workers: Vec::new(),
            pairs: HashMap::new(),
            host_pairs: HashMap::new(),
            kinds: Default::default(),
        }
    }

    /// Takes note of a worker, of its process and of its host; again costs little
    ///
    /// One that was in another process, or on another host, has moved.
    pub fn add_worker(&mut self, address: &str, process: &str, host: &str) -> WorkerId {
        if let Some(&id) = self.worker_ids.get(address) {
            if let Some(held) = self.workers[id.0 as usize]
                && self.processes[held.0 as usize].token == process
            {
                return id;
            }
            self.remove_worker(address);
        }
        let process = self.process(process, host);
        // A receiver may have reported it before, by an address that only it uses.
        let host = self.host(host);
        if self.host_of(process) != host {
            self.forget_windows(process);
            self.processes[process.0 as usize].host = host;
        }
        self.processes[process.0 as usize].workers += 1;
        let id = self.free_workers.pop().unwrap_or_else(|| {
            self.workers.push(None);
            WorkerId(self.workers.len() as u32 - 1)
        });
        self.workers[id.0 as usize] = Some(process);
        self.worker_ids.insert(address.to_owned(), id);
        id
    }

    /// Forgets a worker, and the links of its process if it was the last one there
    ///
    /// Does nothing if it is not known. The estimates of its host stay.
    pub fn remove_worker(&mut self, address: &str) {
        let Some(id) = self.worker_ids.remove(address) else {
            return;
        };
        self.free_workers.push(id);
        let Some(process) = self.workers[id.0 as usize].take() else {
            return;
        };
        let held = &mut self.processes[process.0 as usize];
        held.workers -= 1;
        if held.workers == 0 {
            self.forget(process);
        }
    }

    /// Which worker has an address
    #[must_use]
    pub fn worker(&self, address: &str) -> Option<WorkerId> {
        self.worker_ids.get(address).copied()
    }

    /// The addresses of all workers that are known
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.worker_ids.keys().map(String::as_str)
    }

    /// Takes note of how fast the NIC of a host is, in bytes per second; zero and less say nothing
    pub fn set_nic(&mut self, host: &str, bytes_per_s: f64) {
        let host = self.host(host);
        let is_speed = bytes_per_s.is_finite() && bytes_per_s > 0.0;
        self.hosts[host.0 as usize].nic_bytes_per_s = is_speed.then_some(bytes_per_s);
    }

    /// Handles what a process says of what it received from another one
    ///
    /// Replaces what it said before of this lane. To be called after [`LinkTable::open_report`].
    ///
    /// # Errors
    ///
    /// [`TableError::NotAWorker`] if no worker is in the receiving process, and
    /// [`TableError::Full`] if there is no room for another link. Nothing has changed.
    pub fn handle_report(&mut self, report: Report<'_>) -> Result<(), TableError> {
        let Report {
            receiver,
            sender,
            sender_host,
            lane,
            traffic,
            said,
        } = report;
        let Some(&receiver) = self.process_ids.get(receiver) else {
            return Err(TableError::NotAWorker {
                process: receiver.to_owned(),
            });
        };
        if said.is_empty() {
            return Ok(());
        }
        let known = self.process_ids.get(sender).copied();
        let is_new = known.is_none_or(|sender| !self.pairs.contains_key(&(sender, receiver)));
        if is_new && self.pairs.len() >= self.links_max {
            self.drop_strangers();
            if self.pairs.len() >= self.links_max {
                return Err(TableError::Full {
                    links: self.links_max,
                });
            }
        }
        let sender = self.process(sender, sender_host);
        let said = self.without_others((sender, receiver), lane, traffic, said);
        let pair = self.pairs.entry((sender, receiver)).or_default();
        pair.lanes.retain(|(other, _)| other != lane);
        if pair.lanes.len() == LANES_MAX {
            pair.lanes.remove(0);
        }
        pair.profiles = profiles(&said);
        pair.lanes.push((lane.to_owned(), said.clone()));

        let hosts = (self.host_of(sender), self.host_of(receiver));
        if !self.make_room_for(hosts) {
            return Ok(());
        }
        let host_pair = self.host_pairs.entry(hosts).or_default();
        host_pair.alike.handle((sender, receiver), &said);
        let said = host_pair.alike.second_fastest();
        host_pair.profiles = profiles(&said);
        if is_much_alike(&said, &host_pair.told) {
            return Ok(());
        }
        host_pair.told.clone_from(&said);
        for memory in Memory::ALL {
            let of_memory: Vec<_> = said.iter().filter(|said| said.memory == memory).collect();
            if !of_memory.is_empty() {
                let of_memory: Vec<_> = of_memory.into_iter().copied().collect();
                let kind = &mut self.kinds[Kind::of(hosts.0 == hosts.1, memory).index()];
                kind.alike.handle(hosts, &of_memory);
                kind.profiles = profiles(&kind.alike.median());
            }
        }
        Ok(())
    }

    /// Seconds that a message from one worker to another takes; of a worker that has left, what is
    /// expected of an unknown worker
    #[must_use]
    pub fn seconds(&self, sender: WorkerId, receiver: WorkerId, bytes: u64, memory: Memory) -> f64 {
        let (profile, _) = self.profile(sender, receiver, memory);
        profile.seconds(bytes)
    }

    /// The same, and where it comes from
    #[must_use]
    pub fn answer(
        &self,
        sender: WorkerId,
        receiver: WorkerId,
        bytes: u64,
        memory: Memory,
    ) -> Answer {
        let (profile, origin) = self.profile(sender, receiver, memory);
        let (bytes_per_s, latency_s) = profile.line(bytes);
        Answer {
            seconds: profile.seconds(bytes),
            bytes_per_s,
            latency_s,
            samples: profile.samples,
            origin,
        }
    }

    /// All measured links, in no order
    pub fn links(&self) -> impl Iterator<Item = Link> {
        self.pairs
            .iter()
            .flat_map(move |(&(sender, receiver), pair)| {
                let (sender, receiver) = (self.process_of(sender), self.process_of(receiver));
                pair.lanes.iter().flat_map(move |(lane, said)| {
                    said.iter().map(move |&said| Link {
                        sender: sender.token.clone(),
                        receiver: receiver.token.clone(),
                        hosts: (
                            self.hosts[sender.host.0 as usize].name.clone(),
                            self.hosts[receiver.host.0 as usize].name.clone(),
                        ),
                        lane: lane.clone(),
                        said,
                    })
                })
            })
    }

    /// How many workers are known
    #[must_use]
    pub fn workers(&self) -> usize {
        self.worker_ids.len()
    }

    /// How many pairs of processes are known
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    fn profile(&self, sender: WorkerId, receiver: WorkerId, memory: Memory) -> (Profile, Origin) {
        let process = |worker: WorkerId| self.workers.get(worker.0 as usize).copied().flatten();
        let (Some(sender), Some(receiver)) = (process(sender), process(receiver)) else {
            return (self.priors.profile(Kind::of(false, memory)), Origin::Prior);
        };
        if sender == receiver && memory == Memory::Host {
            return (Profile::plain(f64::INFINITY, 0.0), Origin::SameProcess);
        }
        let at = memory as usize;
        if let Some(pair) = self.pairs.get(&(sender, receiver))
            && let Some(profile) = pair.profiles[at]
        {
            return (profile, Origin::ProcessPair);
        }
        let hosts = (self.host_of(sender), self.host_of(receiver));
        if let Some(pair) = self.host_pairs.get(&hosts)
            && let Some(profile) = pair.profiles[at]
        {
            return (profile, Origin::HostPair);
        }
        let kind = Kind::of(hosts.0 == hosts.1, memory);
        if let Some(profile) = self.kinds[kind.index()].profiles[at] {
            return (profile, Origin::Class);
        }
        let nics = (self.nic(hosts.0), self.nic(hosts.1));
        (self.priors.between(kind, nics), Origin::Prior)
    }

    fn nic(&self, host: HostId) -> Option<f64> {
        self.hosts[host.0 as usize].nic_bytes_per_s
    }

    fn process_of(&self, id: ProcessId) -> &Process {
        &self.processes[id.0 as usize]
    }

    fn host_of(&self, id: ProcessId) -> HostId {
        self.processes[id.0 as usize].host
    }

    fn process(&mut self, token: &str, host: &str) -> ProcessId {
        if let Some(&id) = self.process_ids.get(token) {
            return id;
        }
        let process = Process {
            token: token.to_owned(),
            host: self.host(host),
            workers: 0,
            window_began_s: None,
            window_s: 0.0,
            senders: Vec::new(),
        };
        let id = if let Some(id) = self.free_processes.pop() {
            self.processes[id.0 as usize] = process;
            id
        } else {
            self.processes.push(process);
            ProcessId(self.processes.len() as u32 - 1)
        };
        self.process_ids.insert(token.to_owned(), id);
        id
    }

    /// Forgets a process and its links
    fn forget(&mut self, process: ProcessId) {
        self.forget_windows(process);
        self.pairs
            .retain(|&(sender, receiver), _| sender != process && receiver != process);
        let token = std::mem::take(&mut self.processes[process.0 as usize].token);
        self.process_ids.remove(&token);
        self.free_processes.push(process);
    }

    /// Forgets the processes that no worker is in, as clients
    fn drop_strangers(&mut self) {
        let strangers: Vec<_> = self
            .process_ids
            .values()
            .copied()
            .filter(|&id| self.process_of(id).workers == 0)
            .collect();
        for stranger in strangers {
            self.forget(stranger);
        }
    }
}

/// Report that a table cannot store
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum TableError {
    /// No worker is in the process that says it
    #[error("no worker is in process {process:?}")]
    NotAWorker {
        /// The process
        process: String,
    },
    /// There is no room
    #[error("there is no room for more than {links} links")]
    Full {
        /// The limit
        links: usize,
    },
}

/// Different lanes of one pair: there are four, and a report may name any
const LANES_MAX: usize = 4;

#[cfg(test)]
mod tests;

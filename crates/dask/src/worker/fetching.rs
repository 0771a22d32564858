//! Which results are fetched from which peer, and when: `_ensure_communicating` and its helpers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::core::{Recommendations, WorkerCore};
use super::error::Refused;
use super::heap::Heap;
use super::host::Host;
use super::ids::{PeerId, TaskId};
use super::priority::Priority;
use super::state::Finish;

/// Results to be fetched, by who has them: upstream's `data_needed`, a dict of heaps
#[derive(Debug, Default)]
pub(super) struct Needed {
    heaps: Vec<PeerHeap>,
    /// Peers that the dict has, by the order in which they came into it
    listed: BTreeMap<u64, PeerId>,
    came: u64,
}

#[derive(Debug, Default)]
struct PeerHeap {
    heap: Heap,
    /// Its place in the dict, if it is there, with or without members
    place: Option<u64>,
}

impl Needed {
    pub(super) fn meet(&mut self) {
        self.heaps.push(PeerHeap::default());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// The heap of a peer, which is in the dict from then on, as asking a `defaultdict` has it
    pub(super) fn of(&mut self, peer: PeerId) -> &mut Heap {
        let of_peer = &mut self.heaps[peer.index()];
        if of_peer.place.is_none() {
            of_peer.place = Some(self.came);
            self.listed.insert(self.came, peer);
            self.came += 1;
        }
        &mut of_peer.heap
    }

    /// Takes a peer out of the dict, with what is there
    pub(super) fn drop_peer(&mut self, peer: PeerId) -> Heap {
        let of_peer = &mut self.heaps[peer.index()];
        if let Some(place) = of_peer.place.take() {
            self.listed.remove(&place);
        }
        std::mem::take(&mut of_peer.heap)
    }

    /// Replaces the heap of a peer by one that Dask's state machine had, which is in the dict then
    pub(super) fn inherit(&mut self, peer: PeerId, heap: Heap) {
        *self.of(peer) = heap;
    }

    fn heap(&mut self, peer: PeerId) -> &mut Heap {
        &mut self.heaps[peer.index()].heap
    }

    /// The dict: each peer with its heap, in order
    pub(super) fn listed(&self) -> impl Iterator<Item = (PeerId, &Heap)> {
        let peers = self.listed.values();
        peers.map(|&peer| (peer, &self.heaps[peer.index()].heap))
    }
}

/// A peer that may be asked; the least is asked first
type Candidate = Reverse<(Option<Priority>, bool, i64, Tie, PeerId)>;

/// A random number, to tell apart what is equal otherwise
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tie(f64);

impl Eq for Tie {}

impl Ord for Tie {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Tie {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl WorkerCore {
    /// Recommends what is to be fetched now, until there is no more or a limit is reached
    pub(super) fn ensure_communicating(
        &mut self,
        host: &mut impl Host,
        found: &mut Recommendations,
    ) -> Result<(), Refused> {
        if !self.running || self.needed.is_empty() || self.throttles() {
            return Ok(());
        }
        let mut candidates = self.candidates(host);
        while let Some(Reverse((_, is_remote, length, tie, peer))) = candidates.pop() {
            let tasks = &self.tasks;
            let heap = self.needed.heap(peer);
            if heap.is_empty() {
                self.needed.drop_peer(peer);
                continue;
            }
            if -length != heap.len() as i64 {
                if let Some((task, _)) = heap.peek(|task| tasks[task.index()].life) {
                    let length = -(heap.len() as i64);
                    let priority = self.task(task).priority.clone();
                    candidates.push(Reverse((priority, is_remote, length, tie, peer)));
                }
                continue;
            }
            let (chosen, total_bytes) = self.choose(peer)?;
            if chosen.is_empty() {
                if self.counters.incoming_bytes == 0 {
                    return Err(Refused::Assertion(
                        "nothing to fetch, and nothing on its way",
                    ));
                }
                break;
            }
            for &task in &chosen {
                found.set(task, Finish::Flight(peer));
            }
            host.gather(peer, &chosen, total_bytes);
            self.in_flight_workers.insert(peer);
            self.counters.incoming_total += 1;
            self.counters.incoming_bytes += total_bytes;
            if self.throttles() {
                break;
            }
            if self.needed.heap(peer).is_empty() {
                self.needed.drop_peer(peer);
            }
        }
        Ok(())
    }

    /// Returns whether nothing more is to be fetched for now
    fn throttles(&self) -> bool {
        let limits = &self.limits;
        let bytes = self.counters.incoming_bytes as f64;
        let has_many = self.in_flight_workers.len() as f64 >= limits.transfers;
        has_many && bytes >= limits.throttle_bytes || bytes >= limits.incoming_bytes
    }

    /// Peers that may be asked
    fn candidates(&mut self, host: &mut impl Host) -> BinaryHeap<Candidate> {
        let mut candidates = Vec::new();
        let listed: Vec<PeerId> = self.needed.listed.values().copied().collect();
        for peer in listed {
            let tasks = &self.tasks;
            let heap = self.needed.heap(peer);
            if heap.is_empty() {
                self.needed.drop_peer(peer);
                continue;
            }
            if self.in_flight_workers.contains(peer) || self.busy.contains(peer) {
                continue;
            }
            let length = -(heap.len() as i64);
            let Some((task, _)) = heap.peek(|task| tasks[task.index()].life) else {
                continue;
            };
            // Which may be another by now than the one for which the heap has its place
            let priority = self.task(task).priority.clone();
            let is_remote = self.peers[peer.index()];
            let tie = Tie(host.random());
            candidates.push(Reverse((priority, is_remote, length, tie, peer)));
        }
        candidates.into()
    }

    /// Takes the tasks of one fetch from a peer, and returns their size
    fn choose(&mut self, peer: PeerId) -> Result<(Vec<TaskId>, i64), Refused> {
        let mut chosen = Vec::new();
        let mut total_bytes = 0;
        loop {
            let tasks = &self.tasks;
            let heap = self.needed.heap(peer);
            let Some((task, _)) = heap.peek(|task| tasks[task.index()].life) else {
                return Ok((chosen, total_bytes));
            };
            if self.exceeds(task, total_bytes) {
                return Ok((chosen, total_bytes));
            }
            for holder in self.task(task).who_has.clone() {
                if !self.needed.of(holder).discard(task) {
                    return Err(Refused::Assertion("to be fetched, and not from who has it"));
                }
            }
            total_bytes += self.bytes_of(task);
            chosen.push(task);
        }
    }

    fn exceeds(&self, task: TaskId, total_bytes: i64) -> bool {
        let under_way = self.counters.incoming_bytes;
        if under_way == 0 && total_bytes == 0 {
            return false;
        }
        let mut allowance = self.limits.incoming_bytes - under_way as f64;
        if total_bytes != 0 {
            allowance = allowance.min(self.limits.message_bytes) - total_bytes as f64;
        }
        self.bytes_of(task) as f64 > allowance
    }

    fn bytes_of(&self, task: TaskId) -> i64 {
        self.task(task).nbytes.unwrap_or(self.limits.default_bytes)
    }
}

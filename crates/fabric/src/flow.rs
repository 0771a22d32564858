//! Flows: what each peer process has sent us over each lane, by size of message.
//!
//! Messages are counted where they are received, so each is counted once. Several connections to
//! one process are one flow. Long messages are timed, by a clock that all connections of a flow
//! share: of a moment in which two messages are on their way each gets half. So the sum is the time
//! in which the flow was busy, whatever overlapped, and bytes over time is what the lane did.
//!
//! From the long messages the link is estimated, too: as if each had been alone, though others came
//! through the same NIC (`backhaul_placement::links`). For connections within a host each flow stands
//! for a NIC of its own.
//!
//! The time of a message runs from when this side is ready for its bytes (a long one is asked for
//! then, so one round trip is part of it) until the last of them is in its place. Waiting for a
//! receive to be posted, before or after, is no part of it, nor is anything that Python does.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use backhaul_placement::links::{
    Begun, BusyClock, Estimator, LinkEstimate, Memory, NicClock, SizeClass, TIMED_BYTES_MIN,
};
use backhaul_proto::{ArrivalId, LaneKind};

use crate::connection::About;
use crate::link::{Meter, Now};
use crate::runtime::lock;
use crate::statistics::Count;

/// Amounts that one peer process has sent to this one over one lane, at one instant
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FlowStatistics {
    /// The token of the peer process; `None` for the sum over processes of a host that are too
    /// long gone to be kept apart
    pub peer_process: Option<[u8; 16]>,
    /// Process id of the peer, in its own namespace; 0 for such a sum
    pub peer_pid: u32,
    /// Address of its host, as seen on the first connection
    pub peer_host: IpAddr,
    /// The lane
    pub lane: LaneKind,
    /// Connections that are open
    pub connections: usize,
    /// Amounts that came, by size class
    pub sizes: [SizeStatistics; SizeClass::COUNT],
    /// How fast the link is, by memory and size class, as the last messages tell
    pub links: Vec<LinkEstimate>,
    /// Messages that say nothing of that, as no link can have moved them so: a clock has jumped
    pub ignored: u32,
}

/// Amounts that came in messages of one size class
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct SizeStatistics {
    /// Messages received
    pub messages: u64,
    /// Their payload, in bytes
    pub bytes: u64,
    /// The part of it that the peer lent: read where it lay, not moved through the lane
    pub lent_bytes: u64,
    /// Time in which they were on their way, overlaps counted once; zero for classes that are not
    /// timed
    pub time: Duration,
}

impl SizeStatistics {
    fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.lent_bytes += other.lent_bytes;
        self.time += other.time;
    }
}

type Totals = [SizeStatistics; SizeClass::COUNT];

fn add_all(totals: &mut Totals, others: &Totals) {
    for (total, other) in totals.iter_mut().zip(others) {
        total.add(other);
    }
}

/// The flows of one context
///
/// Bounded: of peers that have gone the last [`ENDED_FLOWS_MAX`] are kept apart, the others are
/// summed up by host. Lock order: the table, then the state of a flow.
#[derive(Default)]
pub(crate) struct Flows {
    table: Mutex<Table>,
    /// Clocks of the messages from other hosts, by the local address
    nics: Mutex<HashMap<IpAddr, Arc<Nic>>>,
}

/// Told apart by the address of the host that sends
type Nic = Mutex<NicClock<IpAddr>>;

fn idle_nic() -> Arc<Nic> {
    Arc::new(Mutex::new(NicClock::new(Instant::now())))
}

#[derive(Default)]
struct Table {
    flows: HashMap<FlowKey, Arc<Flow>>,
    /// Sums over flows that were forgotten
    hosts: HashMap<(IpAddr, LaneKind), Totals>,
    /// Flows that have ended so far
    endings: u64,
}

type FlowKey = ([u8; 16], LaneKind);

/// State that the connections to one process over one lane share
struct Flow {
    key: FlowKey,
    pid: u32,
    host: IpAddr,
    /// Clock of the messages from this host
    within_host: Arc<Nic>,
    state: Mutex<FlowState>,
}

struct FlowState {
    /// Counts of the open connections
    open: Vec<Arc<Tally>>,
    /// Sum of those that are closed
    closed: Totals,
    /// Which ending of a flow its last one was
    ended: u64,
    clock: BusyClock,
    estimator: Estimator,
}

impl Flows {
    /// The state of each flow
    pub(crate) fn snapshot(&self) -> Vec<FlowStatistics> {
        let table = lock(&self.table);
        let told_apart = table.flows.values().map(|flow| {
            let state = lock(&flow.state);
            FlowStatistics {
                peer_process: Some(flow.key.0),
                peer_pid: flow.pid,
                peer_host: flow.host,
                lane: flow.key.1,
                connections: state.open.len(),
                sizes: state.totals(),
                links: state.estimator.estimates().collect(),
                ignored: state.estimator.ignored(),
            }
        });
        let summed = table
            .hosts
            .iter()
            .map(|(&(peer_host, lane), &sizes)| FlowStatistics {
                peer_process: None,
                peer_pid: 0,
                peer_host,
                lane,
                connections: 0,
                sizes,
                links: Vec::new(),
                ignored: 0,
            });
        told_apart.chain(summed).collect()
    }

    fn open(&self, about: &About) -> (Arc<Flow>, Arc<Tally>) {
        let key = (about.peer_hello.process_token, about.lane);
        let tally = Arc::new(Tally::default());
        let mut table = lock(&self.table);
        if !table.flows.contains_key(&key) && table.flows.len() >= ENDED_FLOWS_MAX {
            table.forget_one();
        }
        let flow = table.flows.entry(key).or_insert_with(|| {
            Arc::new(Flow {
                key,
                pid: about.peer_hello.pid,
                host: about.peer.ip(),
                within_host: idle_nic(),
                state: Mutex::new(FlowState {
                    open: Vec::new(),
                    closed: Totals::default(),
                    ended: 0,
                    clock: BusyClock::new(Instant::now()),
                    estimator: Estimator::default(),
                }),
            })
        });
        lock(&flow.state).open.push(Arc::clone(&tally));
        (Arc::clone(flow), tally)
    }

    /// Returns the clock that the messages of a connection share
    fn nic(&self, flow: &Flow, about: &About) -> Arc<Nic> {
        let (local, peer) = (about.local.ip(), about.peer.ip());
        let is_within_host = matches!(about.lane, LaneKind::Inproc | LaneKind::Shm);
        if is_within_host || local == peer || peer.is_loopback() {
            return Arc::clone(&flow.within_host);
        }
        let mut nics = lock(&self.nics);
        Arc::clone(nics.entry(local).or_insert_with(idle_nic))
    }

    fn close(&self, flow: &Flow, tally: &Arc<Tally>) {
        let mut table = lock(&self.table);
        let mut state = lock(&flow.state);
        state.open.retain(|other| !Arc::ptr_eq(other, tally));
        add_all(&mut state.closed, &tally.totals());
        if state.open.is_empty() {
            table.endings += 1;
            state.ended = table.endings;
        }
    }
}

impl Table {
    /// Adds the flow that ended first to the sum of its host; does nothing if none has ended
    fn forget_one(&mut self) {
        let ended = self.flows.values().filter_map(|flow| {
            let state = lock(&flow.state);
            state.open.is_empty().then_some((state.ended, flow.key))
        });
        let Some((_, key)) = ended.min_by_key(|&(ended, _)| ended) else {
            return;
        };
        if let Some(flow) = self.flows.remove(&key) {
            let mut at = (flow.host, key.1);
            if self.hosts.len() >= HOSTS_MAX && !self.hosts.contains_key(&at) {
                at.0 = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
            }
            let totals = lock(&flow.state).totals();
            add_all(self.hosts.entry(at).or_default(), &totals);
        }
    }
}

impl FlowState {
    fn totals(&self) -> Totals {
        let mut totals = self.closed;
        for tally in &self.open {
            add_all(&mut totals, &tally.totals());
        }
        totals
    }
}

/// Received amounts of one connection; written by the holder of its link
#[derive(Debug, Default)]
struct Tally([SizeTally; SizeClass::COUNT]);

#[derive(Debug, Default)]
struct SizeTally {
    messages: Count,
    bytes: Count,
    lent_bytes: Count,
    time_ns: Count,
}

impl Tally {
    fn totals(&self) -> Totals {
        std::array::from_fn(|class| {
            let tally = &self.0[class];
            SizeStatistics {
                messages: tally.messages.value(),
                bytes: tally.bytes.value(),
                lent_bytes: tally.lent_bytes.value(),
                time: Duration::from_nanos(tally.time_ns.value()),
            }
        })
    }
}

/// Counts what one connection receives; lives under the lock of its link
///
/// A short message costs a few plain additions: no clock, no lock, no locked instruction.
pub(crate) struct Inflow {
    flows: Arc<Flows>,
    flow: Arc<Flow>,
    nic: Arc<Nic>,
    tally: Arc<Tally>,
    /// Long messages that are on their way, or here but not received
    timed: Vec<Timed>,
}

struct Timed {
    arrival: ArrivalId,
    bytes: u64,
    missing_bytes: u64,
    lent_bytes: u64,
    memory: Memory,
    time: Time,
}

#[derive(Clone, Copy)]
enum Time {
    /// Began at this reading of the flow's clock, and of the NIC's
    Since(Duration, Begun<IpAddr>),
    /// Is here, after so long
    Took(Duration),
}

impl Inflow {
    /// Begins to count for a connection
    pub(crate) fn open(flows: &Arc<Flows>, about: &About) -> Self {
        let (flow, tally) = flows.open(about);
        Self {
            flows: Arc::clone(flows),
            nic: flows.nic(&flow, about),
            flow,
            tally,
            timed: Vec::new(),
        }
    }
}

impl Meter for Inflow {
    fn begin(&mut self, now: &Now, arrival: ArrivalId, bytes: u64, is_on_device: bool) {
        if bytes < TIMED_BYTES_MIN {
            return;
        }
        let now = now.get();
        let began = lock(&self.flow.state).clock.begin(now);
        let begun = lock(&self.nic).begin(now, self.flow.host);
        self.timed.push(Timed {
            arrival,
            bytes,
            missing_bytes: bytes,
            lent_bytes: 0,
            memory: if is_on_device {
                Memory::Device
            } else {
                Memory::Host
            },
            time: Time::Since(began, begun),
        });
    }

    fn stored(&mut self, now: &Now, arrival: ArrivalId, bytes: u64, is_lent: bool) {
        let Some(timed) = self.timed.iter_mut().find(|timed| timed.arrival == arrival) else {
            return;
        };
        timed.lent_bytes += if is_lent { bytes } else { 0 };
        timed.missing_bytes = timed.missing_bytes.saturating_sub(bytes);
        let Time::Since(began, begun) = timed.time else {
            return;
        };
        let mut nic = lock(&self.nic);
        if !is_lent {
            nic.moved(&begun, bytes);
        }
        if timed.missing_bytes > 0 {
            return;
        }
        let now = now.get();
        let moved_bytes = timed.bytes.saturating_sub(timed.lent_bytes);
        let alone = nic.end(now, &begun, moved_bytes);
        drop(nic);
        let mut state = lock(&self.flow.state);
        timed.time = Time::Took(state.clock.end(now, began));
        let estimator = &mut state.estimator;
        // The estimator counts the messages that it leaves out.
        let _ =
            estimator.handle_message(timed.memory, timed.bytes, timed.lent_bytes, alone.seconds());
    }

    fn received_inline(&mut self, bytes: u64) {
        let tally = &self.tally.0[SizeClass::of(bytes).index()];
        tally.messages.bump(1);
        tally.bytes.bump(bytes);
    }

    fn received(&mut self, now: &Now, arrival: ArrivalId, bytes: u64) {
        self.received_inline(bytes);
        if bytes >= TIMED_BYTES_MIN
            && let Some(timed) = self.forget(now, arrival)
        {
            let tally = &self.tally.0[SizeClass::of(bytes).index()];
            tally.lent_bytes.bump(timed.lent_bytes);
            if let Time::Took(took) = timed.time {
                let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                tally.time_ns.bump(nanos);
            }
        }
    }

    fn discard(&mut self, now: &Now, arrival: ArrivalId) {
        self.forget(now, arrival);
    }

    fn stop(&mut self) {
        let now = Instant::now();
        let (flow, nic) = (&self.flow, &self.nic);
        self.timed.retain(|timed| match timed.time {
            Time::Took(_) => true,
            Time::Since(began, begun) => {
                give_up(flow, nic, now, began, &begun);
                false
            }
        });
    }
}

impl Inflow {
    fn forget(&mut self, now: &Now, arrival: ArrivalId) -> Option<Timed> {
        let at = self
            .timed
            .iter()
            .position(|timed| timed.arrival == arrival)?;
        let timed = self.timed.swap_remove(at);
        if let Time::Since(began, begun) = timed.time {
            give_up(&self.flow, &self.nic, now.get(), began, &begun);
        }
        Some(timed)
    }
}

/// Stops the clocks of a message that will not come
fn give_up(flow: &Flow, nic: &Nic, now: Instant, began: Duration, begun: &Begun<IpAddr>) {
    lock(&flow.state).clock.end(now, began);
    lock(nic).end(now, begun, 0);
}

impl Drop for Inflow {
    fn drop(&mut self) {
        self.stop();
        self.flows.close(&self.flow, &self.tally);
    }
}

impl fmt::Debug for Inflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inflow")
            .field("tally", &self.tally)
            .finish_non_exhaustive()
    }
}

/// Peers, those that are connected among them, up to which none is forgotten: about 2 MB
const ENDED_FLOWS_MAX: usize = 4096;

/// Hosts, for each lane, of which forgotten peers are kept apart
const HOSTS_MAX: usize = 1024;

#[cfg(test)]
mod tests;

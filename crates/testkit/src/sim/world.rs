//! One run: two sides, what lies between them, and what is done to them, from one seed.

mod act;
mod fault;

use std::sync::Arc;
use std::time::{Duration, Instant};

use backhaul::seams::{Carriers, Counters, Held, Link, LinkMemory, LinkParts, Meter, Now};
use backhaul::{CarrierKind, CloseReason, KeepAlive, Limits, Tag, TagMask};
use backhaul_proto::{ArrivalId, Connection, Selector};
use backhaul_shm::pool::Pool;

use self::fault::{FAULTS, Fault};
use super::carrier::{Exchange, SimCarrier};
use super::lane::Wire;
use super::model::{Direction, is_said};
use super::node::{Node, Surroundings};
use crate::random::Random;
use crate::toy::ToyDevice;

/// Two sides and all that lies between them
pub(super) struct World {
    random: Random,
    started: Instant,
    now: u64,
    nodes: [Node; 2],
    /// Bytes that each side writes
    wires: [Wire; 2],
    /// Messages that each side sends
    directions: [Direction; 2],
    device: ToyDevice,
    has_device_carrier: bool,
    keeps_alive: bool,
    delay_max: u64,
    limits: Limits,
    /// Something was done that ends the connection, or may
    is_faulty: bool,
    fault: Option<(usize, Fault)>,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let started = start_of_time();
        let pool = Pool::new(1 << 20);
        let eager_bytes_max = *random.choose(&[0, 40, 300, 2000]);
        let keeps_alive = random.below(3) == 0;
        let limits = Limits {
            eager_bytes_max,
            credit_bytes: eager_bytes_max + *random.choose(&[64, 500, 10_000]),
            credit_messages: *random.choose(&[4, 5, 16, 100]),
            data_chunk_bytes: *random.choose(&[9, 64, 500, 4000]),
            early_accept_bytes_max: *random.choose(&[0, 300, 5000]),
            keep_alive: keeps_alive.then_some(KeepAlive {
                interval: Duration::from_millis(100),
                timeout: Duration::from_millis(400),
            }),
            ..Limits::default()
        };
        // A lane so slow that a ping takes longer than the keep-alive is no lane.
        let most = if keeps_alive { 3 } else { 4 };
        let delay_max = *random.choose(&[0, 5, 100, 900][..most]);
        let kinds = [
            CarrierKind::Lease,
            CarrierKind::SingleCopy,
            CarrierKind::Experimental,
        ];
        let kinds: Vec<_> = kinds.into_iter().filter(|_| random.below(3) > 0).collect();
        let is_unreliable = random.below(2) == 0;
        let exchanges =
            [(); 2].map(|()| Exchange::new(&mut random, delay_max, &pool, is_unreliable));
        let device = ToyDevice::new(0, 1 << 30);
        let wires = [(); 2].map(|()| {
            let least = usize::from(keeps_alive);
            let capacity = *random.choose(&[40, 100, 4000, 64 << 10][least..]);
            Wire::new(capacity, delay_max, &limits)
        });
        let give_bytes_min = *random.choose(&[1, 100, 600]);
        let mut node = |side: usize| {
            let mut carriers = Carriers::default();
            for kind in &kinds {
                carriers.push(Box::new(SimCarrier {
                    kind: *kind,
                    ours: exchanges[side].clone(),
                    theirs: exchanges[1 - side].clone(),
                }));
            }
            let has_allocator = random.below(4) > 0;
            let link = Link::new(LinkParts {
                core: Connection::new(limits.clone(), limits.announced(), started),
                limits: limits.clone(),
                peer: ([127, 0, 0, 1], 1).into(),
                staged: Vec::new(),
                memory: LinkMemory {
                    pool: pool.clone(),
                    device_allocator: has_allocator.then(|| Arc::new(device.clone()) as _),
                    carriers: carriers.reach(),
                    give_bytes_min,
                },
                meter: Box::new(NoMeter),
                counters: Arc::new(Counters::new()),
                now: started,
            });
            Node::new(link, carriers, exchanges[side].clone())
        };
        let nodes = [node(0), node(1)];
        Self {
            started,
            now: 0,
            nodes,
            wires,
            directions: Default::default(),
            device,
            has_device_carrier: kinds.contains(&CarrierKind::Experimental),
            keeps_alive,
            delay_max,
            limits,
            is_faulty: false,
            fault: None,
            random,
        }
    }

    /// Runs to the end
    pub(super) fn run(mut self) {
        let steps = 20 + self.random.below(200);
        let fault_at = self.random.below(steps);
        let fault = *self.random.choose(&FAULTS);
        for step in 0..steps {
            if step == fault_at {
                self.do_fault(fault);
            }
            self.act();
        }
        if !self.is_faulty {
            self.finish_whole();
        }
        self.end();
        self.check_ended();
    }

    /// Runs a step of one side
    fn with<T>(
        &mut self,
        side: usize,
        step: impl FnOnce(&mut Node, &mut Surroundings<'_>) -> T,
    ) -> T {
        let is_corrupt = self.wires.iter().any(|wire| wire.is_corrupt);
        let [first, second] = &mut self.wires;
        let [sends, recvs] = &mut self.directions;
        let their_exchange = self.nodes[1 - side].exchange.clone();
        their_exchange.set_time(self.now);
        let (outgoing, incoming, sends, recvs) = match side {
            0 => (first, second, sends, recvs),
            _ => (second, first, recvs, sends),
        };
        let mut around = Surroundings {
            now: self.now,
            started: self.started,
            random: &mut self.random,
            incoming,
            outgoing,
            sends,
            recvs,
            their_exchange: &their_exchange,
            is_corrupt,
        };
        step(&mut self.nodes[side], &mut around)
    }

    fn close(&mut self, side: usize, linger: u64) {
        let linger = Duration::from_micros(linger);
        self.with(side, |node, around| {
            node.is_closing = true;
            node.link.close(&around.now(), linger);
            node.settle(around);
        });
    }

    /// Moves whatever can be moved now, returning whether anything could
    fn pump(&mut self) -> bool {
        let mut moved_any = false;
        for _ in 0..PUMPS_MAX {
            let mut moved = false;
            for side in 0..2 {
                moved |= self.with(side, |node, around| {
                    let instant = around.instant();
                    let was_open = node.closed.is_none();
                    if node.link.poll_timeout().is_some_and(|at| at <= instant) {
                        node.link.handle_timeout(instant);
                        node.settle(around);
                    }
                    let read = node.read(usize::MAX, around);
                    let written = node.write(usize::MAX, around);
                    let taken = node.take_all(around);
                    read | written | taken | (was_open && node.closed.is_some())
                });
            }
            if !moved {
                return moved_any;
            }
            moved_any = true;
        }
        panic!("it never comes to rest: {self:?}");
    }

    /// Lets time pass to when something happens, if that is soon
    fn advance(&mut self) {
        let arrivals = self.wires.iter().filter_map(Wire::next_arrival);
        let later = arrivals.filter(|at| *at > self.now).min();
        let step = 1 + self.random.below(self.delay_max as usize + 1) as u64;
        self.now = later.map_or(self.now + step, |at| at.min(self.now + step));
    }

    /// Moves everything until nothing moves any more
    fn come_to_rest(&mut self) {
        for _ in 0..PUMPS_MAX {
            self.pump();
            let is_busy = self.nodes.iter().any(Node::is_taking)
                || self.wires.iter().any(|wire| wire.next_arrival().is_some());
            if !is_busy {
                return;
            }
            self.advance();
        }
        panic!("it never comes to rest: {self:?}");
    }

    /// Receives all that was sent, and checks that nothing is missing
    fn finish_whole(&mut self) {
        self.come_to_rest();
        if !self.is_open() {
            return;
        }
        for direction in &self.directions {
            direction.check_at_rest();
        }
        for side in 0..2 {
            while let Some(recv) = self.directions[1 - side].some_recv(0) {
                self.with(side, |node, around| {
                    node.link.cancel(&around.now(), recv);
                    node.settle(around);
                });
            }
        }
        self.come_to_rest();
        let mut rounds = 0;
        while self.is_open()
            && self
                .directions
                .iter()
                .any(|direction| direction.waiting().1 > 0)
        {
            for side in 0..2 {
                self.post(side, ANY, None);
                self.post(side, Selector::Untagged, None);
            }
            self.come_to_rest();
            rounds += 1;
            assert!(rounds < ROUNDS_MAX, "messages stay: {self:?}");
        }
        if self.is_open() {
            for direction in &self.directions {
                direction.check_at_rest();
                direction.check_received();
            }
        }
    }

    /// Ends the connection, unless it has ended
    fn end(&mut self) {
        if self.is_open() {
            let side = self.random.below(2);
            let linger = if self.is_faulty { LINGER } else { PATIENCE };
            match self.random.below(4) {
                0 if self.is_faulty => {
                    self.with(side, |node, around| {
                        node.link.abort();
                        node.settle(around);
                    });
                }
                1 => (0..2).for_each(|side| self.close(side, linger)),
                _ => self.close(side, linger),
            }
        }
        for _ in 0..PUMPS_MAX {
            self.come_to_rest();
            if self.nodes.iter().all(|node| node.closed.is_some()) {
                return;
            }
            // Only time is left: a linger, or a keep-alive.
            let timeouts = self
                .nodes
                .iter()
                .filter_map(|node| node.link.poll_timeout());
            let Some(timeout) = timeouts.min() else {
                // The other side of a connection on which nothing more comes.
                let stuck = self.nodes.iter().position(|node| node.closed.is_none());
                let is_said = self.is_faulty && self.wires.iter().any(|wire| wire.is_silent);
                assert!(is_said || self.is_corrupt(), "{self:?} waits for nothing");
                if let Some(side) = stuck {
                    self.with(side, |node, around| {
                        node.link.abort();
                        node.settle(around);
                    });
                }
                continue;
            };
            let micros = timeout.saturating_duration_since(self.started).as_micros();
            self.now = self.now.max(u64::try_from(micros).unwrap_or(u64::MAX)) + 1;
        }
        panic!("it never ends: {self:?}");
    }

    fn check_ended(&mut self) {
        let is_corrupt = self.is_corrupt();
        for side in 0..2 {
            let is_said = self.nodes[side].closed.as_ref().is_some_and(is_said);
            assert!(is_said || self.is_faulty, "{:?}", self.nodes[side].closed);
            let held = self.nodes[side].link.held();
            let left = Held {
                arrivals: 0,
                ..held
            };
            assert_eq!(left, Held::default(), "side {side}");
            if !is_corrupt {
                self.receive_rest(side);
            }
        }
        if is_corrupt {
            return;
        }
        for side in 0..2 {
            self.directions[side].check_over();
            let held = self.nodes[side].link.held().arrivals;
            let unmet = self.directions[1 - side].waiting().1;
            assert!(
                held <= unmet,
                "side {side} holds {held} of {unmet} messages"
            );
            // The peer has said that all is out, so all is here.
            if matches!(self.nodes[side].closed, Some(CloseReason::Peer { .. })) {
                self.directions[1 - side].check_sent_is_received();
                assert_eq!(held, 0, "side {side} holds messages that were received");
            }
        }
    }

    /// Receives what came whole before the end
    fn receive_rest(&mut self, side: usize) {
        for selector in [ANY, Selector::Untagged] {
            for _ in 0..ROUNDS_MAX {
                let before = self.directions[1 - side].waiting().1;
                self.post(side, selector, None);
                if self.directions[1 - side].waiting().1 == before {
                    break;
                }
            }
        }
    }

    /// Checks that the sender keeps to what its peer allows
    fn check_credit(&self) {
        for direction in &self.directions {
            if !direction.has_returned() {
                let (bytes, messages) = direction.waiting();
                assert!(
                    bytes as u64 <= self.limits.credit_bytes,
                    "{bytes} bytes wait"
                );
                let most = self.limits.credit_messages;
                assert!(messages as u64 <= most, "{messages} messages wait");
            }
        }
    }

    fn is_open(&self) -> bool {
        self.nodes.iter().any(|node| node.closed.is_none())
    }

    fn is_corrupt(&self) -> bool {
        self.wires.iter().any(|wire| wire.is_corrupt)
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes = [0, 1].map(|side| {
            let node = &self.nodes[side];
            (node.link.held(), &node.closed, node.is_closing)
        });
        f.debug_struct("World")
            .field("now", &self.now)
            .field("fault", &self.fault)
            .field("nodes", &nodes)
            .field("wires", &self.wires)
            .finish_non_exhaustive()
    }
}

/// A time to count from, which means nothing
fn start_of_time() -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *START.get_or_init(Instant::now)
}

struct NoMeter;

impl Meter for NoMeter {
    fn begin(&mut self, _now: &Now, _arrival: ArrivalId, _bytes: u64, _is_on_device: bool) {}
    fn stored(&mut self, _now: &Now, _arrival: ArrivalId, _bytes: u64, _is_lent: bool) {}
    fn received(&mut self, _now: &Now, _arrival: ArrivalId, _bytes: u64) {}
    fn received_inline(&mut self, _bytes: u64) {}
    fn discard(&mut self, _now: &Now, _arrival: ArrivalId) {}
    fn stop(&mut self) {}
}

/// Any tagged message
const ANY: Selector = Selector::Tagged {
    tag: Tag(0),
    mask: TagMask::ANY,
};

/// A time to linger in which much can be sent, in microseconds
const LINGER: u64 = 50_000;

/// A time to linger that is never over, in microseconds
const PATIENCE: u64 = 1 << 40;

/// Far more than any run needs
const PUMPS_MAX: usize = 200_000;
const ROUNDS_MAX: usize = 2000;

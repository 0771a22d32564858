//! Two sides, the lanes between them, a clock, and a workload drawn from a seed.

use std::time::{Duration, Instant};

use backhaul_proto::{Capacity, KeepAlive, Limits, RecvRefused, Selector, Tag, TagMask};

use crate::lane::{Fate, Lane};
use crate::message::{Journal, Message, Shared};
use crate::node::{Node, Tally};
use crate::rng::Rng;

pub(crate) struct World {
    seed: u64,
    rng: Rng,
    start: Instant,
    now_ns: u64,
    pub(crate) nodes: [Node; 2],
    /// From the side of the same index to the other
    lanes: [Lane; 2],
    steps: u64,
    /// The last step in which bytes moved
    moved_step: u64,
    /// Steps in which callers still ask for things
    workload_steps: u64,
}

/// Fault, and its time
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) step: u64,
    pub(crate) fate: Fate,
}

impl World {
    pub(crate) fn new(seed: u64, workload_steps: u64, keep_alive: bool) -> Self {
        let mut rng = Rng::new(seed);
        let start = Instant::now();
        let mut limits = [any_limits(&mut rng), any_limits(&mut rng)];
        if keep_alive {
            for limits in &mut limits {
                limits.keep_alive = Some(KEEP_ALIVE);
            }
        }
        let journals = [Journal::default(), Journal::default()];
        let shared = [Shared::default(), Shared::default()];
        let node = |this: usize, other: usize| {
            Node::new(
                limits[this].clone(),
                limits[other].announced(),
                journals[this].clone(),
                journals[other].clone(),
                [shared[this].clone(), shared[other].clone()],
                seed ^ (1 + this as u64) << 32,
                start,
            )
        };
        Self {
            seed,
            start,
            now_ns: 0,
            nodes: [node(0, 1), node(1, 0)],
            lanes: [Lane::new(&mut rng), Lane::new(&mut rng)],
            rng,
            steps: 0,
            moved_step: 0,
            workload_steps,
        }
    }

    /// Runs the workload and then until everything is over, returning the number of steps
    pub(crate) fn run(&mut self) -> u64 {
        while self.steps < self.workload_steps {
            self.step();
        }
        self.settle();
        while !self.nodes.iter().all(Node::is_over) {
            self.step();
        }
        for node in &self.nodes {
            node.check_over();
        }
        self.steps
    }

    /// Runs until the fault, and on until both sides have noticed it and given up
    ///
    /// Returns whether the fault came before the end.
    pub(crate) fn run_with(&mut self, fault: Fault) -> bool {
        while self.steps < fault.step {
            if self.nodes.iter().all(Node::is_over) {
                return false;
            }
            self.step();
        }
        let lose = self.rng.chance(50);
        for lane in &mut self.lanes {
            lane.end(fault.fate, lose);
        }
        let mut alive = [true, true];
        while alive != [false, false] {
            self.steps += 1;
            assert!(self.steps < fault.step + 10_000, "the fault is not noticed");
            self.pass_time();
            for (this, alive) in alive.iter_mut().enumerate() {
                if !*alive {
                    continue;
                }
                self.carry(this);
                let now = self.now();
                let node = &mut self.nodes[this];
                // A peer that says nothing for ever is noticed only with a keep-alive.
                let expired = node.handle_timeout(now).is_err();
                if expired || self.lanes[1 - this].is_at_end() {
                    *alive = false;
                    node.fail();
                }
            }
        }
        true
    }

    pub(crate) fn tally(&self) -> [Tally; 2] {
        [self.nodes[0].tally, self.nodes[1].tally]
    }

    /// Lets what is under way arrive, and checks that only what must wait still waits
    fn settle(&mut self) {
        let pings = self.nodes.iter().any(|n| n.limits.keep_alive.is_some());
        if pings {
            // Never quiet.
            return;
        }
        self.moved_step = self.steps;
        while self.steps < self.moved_step + 60
            || self.lanes.iter().any(|lane| lane.next_at().is_some())
            || self.nodes.iter().any(|node| !node.works.is_empty())
        {
            self.steps += 1;
            let this = self.rng.below(2) as usize;
            self.carry(this);
            self.pass_time();
        }
        let [first, second] = &self.nodes;
        first.check_quiet(second);
        second.check_quiet(first);
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.now_ns)
    }

    fn step(&mut self) {
        self.steps += 1;
        assert!(
            self.steps < self.workload_steps + STEPS_TO_END_MAX,
            "hangs: {:?}",
            self.nodes.each_ref().map(|n| n.connection.statistics())
        );
        let this = self.rng.below(2) as usize;
        if self.steps < self.workload_steps {
            self.ask(this);
        } else {
            self.wind_up(this);
        }
        self.carry(this);
        self.pass_time();
        for node in &mut self.nodes {
            let now = self.start + Duration::from_nanos(self.now_ns);
            node.handle_timeout(now).expect("both sides live");
        }
    }

    /// Time passes by itself, and jumps to where something happens if nothing else does
    fn pass_time(&mut self) {
        self.now_ns += self.rng.below(1000);
        let deliveries = self.lanes.iter().filter_map(Lane::next_at);
        let timers = self.nodes.iter().filter_map(|node| {
            let at = node.connection.poll_timeout()?;
            Some((at - self.start).as_nanos() as u64)
        });
        let next = deliveries.chain(timers).min();
        if self.steps > self.moved_step + 8 {
            self.now_ns = self.now_ns.max(next.unwrap_or(0));
        }
    }

    /// Reads, writes or works on one side, or all
    fn carry(&mut self, this: usize) {
        let now = self.now();
        let (node, rng) = (&mut self.nodes[this], &mut self.rng);
        if rng.chance(70) {
            let bytes_max = rng.pick(&[1, 33, 64, 5000]);
            let bytes = self.lanes[1 - this].read(self.now_ns, bytes_max);
            if !bytes.is_empty() {
                node.read(now, &bytes);
                self.moved_step = self.steps;
            }
        }
        if rng.chance(50) {
            for _ in 0..rng.between(1, 4) {
                if !node.work(now) {
                    break;
                }
                self.moved_step = self.steps;
            }
        }
        if rng.chance(70) {
            for _ in 0..rng.between(1, 4) {
                if !node.write(self.now_ns, &mut self.lanes[this], rng) {
                    break;
                }
                self.moved_step = self.steps;
            }
        }
    }

    /// Makes the requests of callers while the workload lasts
    fn ask(&mut self, this: usize) {
        let now = self.now();
        let rng = &mut self.rng;
        match rng.below(100) {
            0..=34 => {
                let node = &mut self.nodes[this];
                let bytes = any_bytes(rng, node);
                let message = Message::any(rng, bytes, self.seed ^ self.steps, &node.lent);
                node.send(message);
            }
            35..=64 => {
                let selector = any_selector(rng);
                let capacity = if rng.chance(50) {
                    Capacity::Allocate
                } else {
                    Capacity::Into(any_bytes(rng, &self.nodes[this]))
                };
                let _ = self.nodes[this].post(selector, capacity);
            }
            65..=69 => self.nodes[this].cancel_any_send(rng),
            70..=77 => self.nodes[this].withdraw_any_recv(rng),
            78 if rng.chance(5) => self.nodes[this].close(now),
            _ => {}
        }
    }

    /// Closes, and keeps one receive for anything posted until nothing can come
    fn wind_up(&mut self, this: usize) {
        let now = self.now();
        let node = &mut self.nodes[this];
        if !node.closed {
            node.close(now);
        }
        for selector in [ANY, Selector::Untagged] {
            let posted = node.model.posted.iter().any(|posted| posted.0 == selector);
            if !posted
                && let Err(RecvRefused::QueueFull { .. }) = node.post(selector, Capacity::Allocate)
            {
                node.withdraw_any_recv(&mut self.rng);
            }
        }
    }
}

const ANY: Selector = Selector::Tagged {
    tag: Tag(0),
    mask: TagMask::ANY,
};

/// Far more than any workload takes to end: a lane of five bytes takes some 200,000 for tables of
/// many segments
const STEPS_TO_END_MAX: u64 = 2_000_000;

const KEEP_ALIVE: KeepAlive = KeepAlive {
    interval: Duration::from_millis(1),
    timeout: Duration::from_millis(50),
};

/// Limits so small that each of them is met often
fn any_limits(rng: &mut Rng) -> Limits {
    Limits {
        eager_bytes_max: rng.pick(&[0, 1, 30, 64]),
        credit_bytes: rng.pick(&[0, 20, 64, 300, 3000, 1 << 20]),
        credit_messages: rng.pick(&[1, 2, 3, 7, 12, 16, 1000]),
        message_bytes_max: rng.pick(&[200, 1000, 3000]),
        segments_max: rng.pick(&[2, 40, 200, 200]) as u32,
        sends_max: rng.pick(&[1, 4, 100]) as usize,
        recvs_max: rng.pick(&[3, 10, 100]) as usize,
        data_chunk_bytes: rng.pick(&[7, 50, 256, 1 << 20]),
        early_accept_bytes_max: rng.pick(&[0, 100, 1000, 1 << 20]),
        keep_alive: None,
    }
}

/// A size at or next to a limit of either side, or any
fn any_bytes(rng: &mut Rng, node: &Node) -> u64 {
    let limits = &node.limits;
    let edges = [
        0,
        1,
        limits.eager_bytes_max,
        limits.credit_bytes,
        limits.data_chunk_bytes,
        2 * limits.data_chunk_bytes,
        limits.early_accept_bytes_max,
        limits.message_bytes_max,
        node.peer.credit_bytes,
        node.peer.message_bytes_max,
    ];
    let bytes = if rng.chance(60) {
        (rng.pick(&edges) + rng.below(3)).saturating_sub(1)
    } else {
        rng.below(400)
    };
    bytes.min(4000)
}

fn any_selector(rng: &mut Rng) -> Selector {
    if rng.chance(40) {
        return Selector::Untagged;
    }
    Selector::Tagged {
        tag: Tag(rng.below(4)),
        mask: rng.pick(&[TagMask::FULL, TagMask::FULL, TagMask(1), TagMask::ANY]),
    }
}

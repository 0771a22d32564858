//! Blocks that are allocated, lent, freed and returned at random, and what must be so then.
//!
//! Each block and each message shows a pattern of its own, so a block that is handed out again
//! while a receiver looks at it is seen. How many bytes are live, lent and orphaned is known from
//! what the model did, so a block that is lost is seen too.

use std::collections::BTreeMap;

use backhaul::{
    Arena, ArenaConfig, Bytes, Context, Endpoint, Message, PoolBuf, RecvError, Segments, SendError,
    Tag, TagMask,
};

use crate::harness::LOOPBACK;
use crate::random::Random;
use crate::{Finish, Harness, Pair, assert_matches, pattern, wait_until};

/// Process that lends from an arena to several peers, all played by one thread
pub struct Player<'a> {
    harness: &'a Harness,
    arena: Arena,
    random: Random,
    /// Lends from the arena
    near: Context,
    /// Contexts that have had the place of `near`
    nears: usize,
    links: Vec<Link>,
    /// Over which what was borrowed is exported again
    onward: Pair,
    /// To look there what is back
    onward_arena: Arena,
    blocks: Vec<Block>,
    held: Vec<Held>,
    /// Seeds, which are the names of blocks too, given out so far
    seeds: u64,
    /// Sizes of the blocks, by seed
    sizes: BTreeMap<u64, usize>,
    /// No other player uses the arena, so it holds what the model says
    is_alone: bool,
}

struct Link {
    near: Endpoint,
    far: Endpoint,
    /// Of `far` alone
    far_context: Context,
}

/// A block that its owner has
struct Block {
    memory: Bytes,
    seed: u64,
}

/// A message that was received
struct Held {
    segments: Vec<Segment>,
    parts: Vec<Part>,
}

enum Segment {
    /// As it was received
    Writable(PoolBuf),
    /// Sent on, so that it may not be written to
    Frozen(Bytes),
}

/// Content of a segment of a message
#[derive(Clone, Copy)]
struct Part {
    seed: u64,
    /// Where it begins in the pattern, in bytes
    offset: usize,
    bytes: usize,
    /// Lent memory for it
    lent: Option<Lent>,
    /// It has pages that are not the exporter's
    is_written: bool,
}

#[derive(Clone, Copy)]
struct Lent {
    block: u64,
    /// Which of the contexts of the player lent it
    near: usize,
    /// How often it has been exported again
    hops: usize,
}

impl<'a> Player<'a> {
    /// Makes a player without blocks, connected to peers
    pub fn new(harness: &'a Harness, arena: &Arena, seed: u64, is_alone: bool) -> Self {
        let near = context(harness, arena);
        let links = (0..LINKS).map(|_| Link::new(harness, &near)).collect();
        let onward_arena = Arena::new(ArenaConfig::default());
        Self {
            onward: harness.pair_of(context(harness, &onward_arena), harness.context()),
            onward_arena,
            harness,
            arena: arena.clone(),
            random: Random::new(seed),
            near,
            nears: 0,
            links,
            blocks: Vec::new(),
            held: Vec::new(),
            seeds: seed << 16,
            sizes: BTreeMap::new(),
            is_alone,
        }
    }

    /// Does something random
    pub fn act(&mut self) {
        match self.random.below(20) {
            0..4 => self.allocate(),
            4..6 => self.free(),
            6..12 => self.deliver(),
            12 => self.deliver_and_abort(),
            13..16 => self.drop_held(),
            16 => self.write_to_held(),
            17 if self.random.below(2) == 0 => self.cancel(),
            17 => self.lend_on(),
            18 if self.random.below(8) == 0 => self.start_anew(),
            _ => self.check(),
        }
    }

    /// Frees and drops everything, in random order, checking what is left each time
    pub fn finish(mut self) {
        while !self.held.is_empty() || !self.blocks.is_empty() {
            match self.random.below(2) {
                0 => self.drop_held(),
                _ => self.free(),
            }
            self.check();
        }
    }

    fn allocate(&mut self) {
        let bytes = (64 << 10) << self.random.below(4);
        // Past the bound of the arena there is none.
        if let Some(mut memory) = self.arena.take(bytes) {
            self.seeds += 1;
            let seed = self.seeds;
            memory.copy_from_slice(&pattern::make(seed, bytes));
            self.sizes.insert(seed, bytes);
            let memory = Bytes::from_owner(memory);
            self.blocks.push(Block { memory, seed });
        }
    }

    fn free(&mut self) {
        if let Some(index) = self.choose(self.blocks.len()) {
            let block = self.blocks.swap_remove(index);
            pattern::check(block.seed, &block.memory);
        }
    }

    fn drop_held(&mut self) {
        if let Some(index) = self.choose(self.held.len()) {
            self.held.swap_remove(index).check();
        }
    }

    /// Writes to received memory; no other process sees the new bytes
    fn write_to_held(&mut self) {
        let Some(index) = self.choose(self.held.len()) else {
            return;
        };
        self.seeds += 1;
        let seed = self.seeds;
        let held = &mut self.held[index];
        for (part, segment) in held.parts.iter_mut().zip(&mut held.segments) {
            if let Segment::Writable(memory) = segment {
                memory.copy_from_slice(&pattern::make(seed, part.bytes));
                (part.seed, part.offset, part.is_written) = (seed, 0, true);
            }
        }
    }

    /// Sends what was received to another peer
    fn lend_on(&mut self) {
        let Some(index) = self.choose(self.held.len()) else {
            return;
        };
        let held = &mut self.held[index];
        held.freeze();
        let segments: Segments = held.segments.iter().map(Segment::to_bytes).collect();
        let mut parts = held.parts.clone();
        let bytes: usize = parts.iter().map(|part| part.bytes).sum();
        let config = self.onward.near_context.config();
        for part in &mut parts {
            let is_lent = bytes as u64 > config.limits.eager_bytes_max
                && part.bytes >= config.lease_bytes_min
                && !part.is_written;
            part.lent = part.lent.filter(|lent| is_lent && lent.hops < HOPS_MAX);
            if let Some(lent) = &mut part.lent {
                lent.hops += 1;
            }
            part.is_written = false;
        }
        let Pair { near, far, .. } = &self.onward;
        let posted = far.recv_message(Tag(1), TagMask::FULL);
        near.send_segments_shared(Tag(1), segments).done().unwrap();
        self.hold(posted.done().unwrap(), parts);
    }

    fn deliver(&mut self) {
        let Some(index) = self.choose(self.links.len()) else {
            return;
        };
        let (segments, parts) = self.segments();
        let Link { near, far, .. } = &self.links[index];
        let tagged = self.random.below(2) == 0;
        let early = self.random.below(2) == 0;
        if tagged && self.random.below(3) == 0 {
            return self.deliver_into(index, segments, &parts);
        }
        let post = || match tagged {
            true => far.recv_message(Tag(1), TagMask::FULL),
            false => far.recv_frames(),
        };
        let posted = early.then(post);
        let send = match tagged {
            true => near.send_segments_shared(Tag(1), segments),
            false => near.send_frames_shared(segments),
        };
        let message = posted.unwrap_or_else(post).done().unwrap();
        send.done().unwrap();
        self.hold(message, parts);
    }

    /// Into a buffer, which may be too short; nothing is lent afterwards
    fn deliver_into(&mut self, index: usize, segments: Segments, parts: &[Part]) {
        let Link { near, far, .. } = &self.links[index];
        let bytes: usize = segments.bytes() as usize;
        let short = self.random.below(4) == 0 && bytes > 0;
        let room = if short { bytes - 1 } else { bytes };
        let posted = far.recv(Tag(1), TagMask::FULL, vec![0; room]);
        near.send_segments_shared(Tag(1), segments).done().unwrap();
        match posted.done() {
            Err(RecvError::Truncated { .. }) => assert!(short),
            Err(error) => panic!("{error}"),
            Ok(received) => {
                let buffer = received.into_buffer::<Vec<u8>>().unwrap();
                let mut rest = &buffer[..];
                for part in parts {
                    let (now, later) = rest.split_at(part.bytes);
                    pattern::check_at(part.seed, part.offset, now);
                    rest = later;
                }
            }
        }
    }

    /// Several messages, in the middle of which one side ends
    fn deliver_and_abort(&mut self) {
        let Some(index) = self.choose(self.links.len()) else {
            return;
        };
        let messages: Vec<_> = (0..1 + self.random.below(4))
            .map(|_| self.segments())
            .collect();
        let link = std::mem::replace(&mut self.links[index], Link::new(self.harness, &self.near));
        let Link {
            near,
            far,
            far_context,
        } = link;
        let posted: Vec<_> = messages
            .iter()
            .map(|_| far.recv_message(Tag(1), TagMask::FULL))
            .collect();
        let (segments, parts): (Vec<_>, Vec<_>) = messages.into_iter().unzip();
        let sends: Vec<_> = segments
            .into_iter()
            .map(|segments| near.send_segments_shared(Tag(1), segments))
            .collect();
        for _ in 0..self.random.below(3000) {
            std::hint::spin_loop();
        }
        match self.random.below(6) {
            0 => near.abort(),
            1 => far.abort(),
            2 => near.close().done().unwrap(),
            3 => far.close().done().unwrap(),
            4 => far_context.close(),
            _ => drop(near),
        }
        for (request, parts) in posted.into_iter().zip(parts) {
            if let Ok(message) = request.done() {
                self.hold(message, parts);
            }
        }
        for send in sends {
            let _either = send.done();
        }
    }

    /// A send that is taken back, if it has not left
    fn cancel(&mut self) {
        let Some(index) = self.choose(self.links.len()) else {
            return;
        };
        let (segments, parts) = self.segments();
        let Link { near, far, .. } = &self.links[index];
        let send = near.send_segments_shared(Tag(2), segments);
        send.cancel();
        let posted = far.recv_message(Tag(2), TagMask::FULL);
        match send.done() {
            Ok(()) => self.hold(posted.done().unwrap(), parts),
            Err(SendError::Cancelled) => {
                posted.cancel();
                assert_matches!(posted.done(), Err(RecvError::Cancelled));
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Replaces the player's context by another: memory that the old one has lent is used no more
    fn start_anew(&mut self) {
        self.near.close();
        for link in &self.links {
            link.far.watch_close().done().unwrap();
        }
        self.nears += 1;
        self.near = context(self.harness, &self.arena);
        for link in &mut self.links {
            *link = Link::new(self.harness, &self.near);
        }
    }

    /// Segments of a random message, and what they show
    fn segments(&mut self) -> (Segments, Vec<Part>) {
        let mut segments = Segments::new();
        let mut parts = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            let (memory, part) = self.segment();
            segments.push(memory);
            parts.push(part);
        }
        let bytes: usize = segments.bytes() as usize;
        let limits = &self.near.config().limits;
        if bytes as u64 <= limits.eager_bytes_max || !self.harness.lends() {
            for part in &mut parts {
                part.lent = None;
            }
        }
        (segments, parts)
    }

    fn segment(&mut self) -> (Bytes, Part) {
        let private = self.blocks.is_empty() || self.random.below(4) == 0;
        if private {
            self.seeds += 1;
            let bytes = *self.random.choose(&[0, 10, 70_000, 200_000]);
            let part = Part {
                seed: self.seeds,
                offset: 0,
                bytes,
                lent: None,
                is_written: false,
            };
            return (Bytes::from(pattern::make(part.seed, bytes)), part);
        }
        let block = &self.blocks[self.random.below(self.blocks.len())];
        let (mut start, mut end) = (0, block.memory.len());
        if self.random.below(3) == 0 {
            let unit = *self.random.choose(&[1, 64, 4096]);
            start = self.random.below(end / 2) / unit * unit;
            end -= self.random.below(end / 2);
        }
        let memory = block.memory.slice(start..end);
        let lendable =
            start.is_multiple_of(64) && memory.len() >= self.near.config().lease_bytes_min;
        let part = Part {
            seed: block.seed,
            offset: start,
            bytes: memory.len(),
            lent: lendable.then_some(Lent {
                block: block.seed,
                near: self.nears,
                hops: 0,
            }),
            is_written: false,
        };
        (memory, part)
    }

    fn hold(&mut self, message: Message, parts: Vec<Part>) {
        let segments = message.segments.into_iter().map(Segment::Writable);
        let segments = segments.collect();
        let held = Held { segments, parts };
        held.check();
        self.held.push(held);
        if self.held.len() > HELD_MAX {
            self.drop_held();
        }
    }

    /// Checks every pattern there is, and the counts of the arena
    fn check(&self) {
        for block in &self.blocks {
            pattern::check(block.seed, &block.memory);
        }
        for held in &self.held {
            held.check();
        }
        if !self.is_alone {
            return;
        }
        let of = |seed: &u64| self.sizes[seed];
        let live: Vec<u64> = self.blocks.iter().map(|block| block.seed).collect();
        let mut leased: Vec<u64> = self
            .held
            .iter()
            .flat_map(|held| &held.parts)
            .filter_map(|part| part.lent)
            .filter(|lent| lent.near == self.nears)
            .map(|lent| lent.block)
            .collect();
        leased.sort_unstable();
        leased.dedup();
        let orphaned = leased.iter().filter(|block| !live.contains(block));
        let expected = (
            live.iter().map(of).sum::<usize>(),
            leased.iter().map(of).sum::<usize>(),
            orphaned.map(of).sum::<usize>(),
        );
        // Leases that an aborted connection had on its way come back when the engine gets to it.
        let mut looks = 0;
        wait_until(|| {
            // Leases that were exported again are back from there first, hop by hop.
            self.onward_arena.statistics();
            let found = self.arena.statistics();
            looks += 1;
            assert!(looks < LOOKS_MAX, "not {expected:?}, but {found:?}");
            (found.live_bytes, found.leased_bytes, found.orphaned_bytes) == expected
        });
    }

    fn choose(&mut self, count: usize) -> Option<usize> {
        (count > 0).then(|| self.random.below(count))
    }
}

impl Link {
    fn new(harness: &Harness, near_context: &Context) -> Self {
        let far_context = harness.context();
        let listener = far_context.listen(LOOPBACK).unwrap();
        let (near, far) = harness.connect(near_context, &listener);
        Self {
            near,
            far,
            far_context,
        }
    }
}

impl Held {
    #[track_caller]
    fn check(&self) {
        assert_eq!(self.segments.len(), self.parts.len());
        for (part, segment) in self.parts.iter().zip(&self.segments) {
            let memory = segment.memory();
            assert_eq!(memory.len(), part.bytes);
            pattern::check_at(part.seed, part.offset, memory);
        }
    }

    /// Makes it memory that is not written to any more
    fn freeze(&mut self) {
        let freeze = |segment| match segment {
            Segment::Writable(memory) => Segment::Frozen(Bytes::from_owner(memory)),
            frozen @ Segment::Frozen(_) => frozen,
        };
        self.segments = self.segments.drain(..).map(freeze).collect();
    }
}

impl Segment {
    fn memory(&self) -> &[u8] {
        match self {
            Self::Writable(memory) => memory,
            Self::Frozen(memory) => memory,
        }
    }

    fn to_bytes(&self) -> Bytes {
        match self {
            Self::Writable(_) => unreachable!("frozen before it is sent"),
            Self::Frozen(memory) => memory.clone(),
        }
    }
}

fn context(harness: &Harness, arena: &Arena) -> Context {
    harness.context_with(|config| config.arena = Some(arena.clone()))
}

/// Peers of a player
const LINKS: usize = 3;

/// How often something is exported again
const HOPS_MAX: usize = 7;

/// Messages that a player holds
const HELD_MAX: usize = 12;

/// Looks at counts that stay wrong, before they are shown; a bound on hanging, not on speed
const LOOKS_MAX: usize = 10_000;

//! Random sequences against a model: what owners and peers see of every block
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::completion::{
    CompletionTable, ExportedLeases, ImportedLeases, Ticket, table_in_process,
};
use crate::leased::Leased;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_block_is_reused_while_anybody_may_look_and_none_is_lost(
        cached_bytes_max in prop_oneof![0..8 * MIB, Just(usize::MAX)],
        bytes_max in prop_oneof![2 * MIB..32 * MIB, Just(usize::MAX)],
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut model = Model::new(bytes_max, cached_bytes_max);
        for (mark, step) in (1..).zip(steps) {
            model.take(step, mark);
            model.check();
        }
        model.end();
    }
}

/// An arena, and what must be true of it
struct Model {
    arena: Arena,
    exporter: Arc<Exporter>,
    imported: ImportedLeases,
    /// Where leases that were not entered in the completion table get their receipts
    unknown: ImportedLeases,
    _peers: [ExportedLeases; 2],
    blocks: Vec<Block>,
    leases: Vec<Exported>,
    /// Blocks that peers keep for ever
    abandoned: Vec<(usize, u64, Leased)>,
    receipts: u32,
    peak_bytes: usize,
    refused: u64,
}

/// A block that its owner has, or that a peer may look at
struct Block {
    address: usize,
    bytes: usize,
    /// Mark that the owner wrote last
    mark: u64,
    live: bool,
    /// Set by the first lease
    was_leased: bool,
    /// Set by a write of the owner after the first lease
    is_private: bool,
}

/// A lease, and what the peer has of it
struct Exported {
    /// Of the block
    address: usize,
    mark: u64,
    /// None: dropped, which the exporter has not noticed
    leased: Option<Leased>,
    /// None: entered in the completion table
    lease: Option<Lease>,
}

struct Exporter(Mutex<ExportedLeases>);

impl Sweep for Exporter {
    fn sweep(&self) {
        self.0.lock().unwrap().sweep();
    }
}

impl Model {
    fn new(bytes_max: usize, cached_bytes_max: usize) -> Self {
        let arena = Arena::new(ArenaConfig {
            bytes_max,
            cached_bytes_max,
            block_bytes_min: 64 * KIB,
        });
        let (
            CompletionTable { exported, .. },
            CompletionTable {
                imported,
                exported: peer,
            },
        ) = table_in_process().unwrap();
        let (
            CompletionTable {
                exported: other, ..
            },
            CompletionTable {
                imported: unknown, ..
            },
        ) = table_in_process().unwrap();
        let exporter = Arc::new(Exporter(Mutex::new(exported)));
        let sweep: Weak<Exporter> = Arc::downgrade(&exporter);
        arena.on_shortage(sweep);
        Self {
            arena,
            exporter,
            imported,
            unknown,
            _peers: [peer, other],
            blocks: Vec::new(),
            leases: Vec::new(),
            abandoned: Vec::new(),
            receipts: 0,
            peak_bytes: 0,
            refused: 0,
        }
    }

    fn take(&mut self, step: Step, mark: u64) {
        match step {
            Step::Allocate { bytes, zeroed } => self.allocate(bytes, zeroed, mark),
            Step::Free(at) => {
                let live: Vec<_> = (0..self.blocks.len())
                    .filter(|at| self.blocks[*at].live)
                    .collect();
                if !live.is_empty() {
                    self.free(*at.get(&live));
                }
            }
            Step::Lease { at, in_table } => {
                let live = (0..self.blocks.len()).filter(|at| self.blocks[*at].live);
                let live: Vec<_> = live.collect();
                if !live.is_empty() {
                    self.lease(*at.get(&live), in_table);
                }
            }
            Step::Write(at) => {
                let live: Vec<_> = self.blocks.iter().filter(|block| block.live).collect();
                if !live.is_empty() {
                    let address = at.get(&live).address;
                    self.write(address, mark);
                }
            }
            Step::Return(at) => {
                if !self.leases.is_empty() {
                    let at = at.index(self.leases.len());
                    self.leases[at].leased = None;
                    if self.leases[at].lease.is_some() {
                        self.leases.swap_remove(at);
                        self.forget();
                    }
                }
            }
            Step::Abandon(at) => {
                let alone: Vec<_> = (0..self.leases.len())
                    .filter(|at| self.leases[*at].lease.is_some())
                    .collect();
                if !alone.is_empty() {
                    let removed = self.leases.swap_remove(*at.get(&alone));
                    let leased = removed.leased.unwrap();
                    self.abandoned.push((removed.address, removed.mark, leased));
                    removed.lease.unwrap().abandon();
                    self.forget();
                }
            }
            Step::Keep {
                committed_bytes,
                floor_bytes,
            } => {
                self.arena.adjust_kept(|demand| {
                    assert!(demand.used_peak_bytes >= demand.used_bytes);
                    Kept {
                        committed_bytes,
                        floor_bytes,
                    }
                });
                self.note_returned();
            }
            Step::Trim(cached_bytes) => {
                self.arena.trim(cached_bytes);
                let statistics = self.arena.shared.lock().unwrap().statistics();
                assert!(statistics.cached_bytes <= cached_bytes);
            }
            Step::SetBytesMax(bytes_max) => self.arena.set_bytes_max(bytes_max),
            Step::Sweep => {
                self.exporter.sweep();
                self.note_returned();
            }
        }
    }

    /// Notes that the exporter has noticed all returned leases
    fn note_returned(&mut self) {
        self.leases.retain(|exported| exported.leased.is_some());
        self.forget();
    }

    fn allocate(&mut self, bytes: usize, zeroed: bool, mark: u64) {
        let start = if zeroed {
            self.arena.allocate_zeroed(bytes)
        } else {
            self.arena.allocate(bytes)
        };
        // After a shortage returned leases are noticed; otherwise a block was free without.
        let noticed = self.exporter.0.lock().unwrap().outstanding();
        let known = |exported: &&Exported| exported.lease.is_none();
        if noticed < self.leases.iter().filter(known).count() {
            self.leases.retain(|exported| exported.leased.is_some());
            self.forget();
        }
        let Some(start) = start else {
            let class = SizeClass::for_bytes(bytes).unwrap().bytes();
            let statistics = self.arena.shared.lock().unwrap().statistics();
            self.refused += 1;
            // Never refused without need.
            let needed = statistics.live_bytes
                + statistics.orphaned_bytes
                + statistics.abandoned_bytes
                + class;
            assert!(needed > self.arena.shared.lock().unwrap().bytes_max);
            return;
        };
        let address = start.as_ptr().addr();
        let class = self.arena.usable_bytes(start).unwrap();
        assert!(class >= bytes && address.is_multiple_of(page_size()));
        for other in &self.blocks {
            let apart = address + class <= other.address || other.address + other.bytes <= address;
            assert!(apart, "a block was handed out twice");
        }
        if zeroed {
            // SAFETY: a live block of at least that many bytes.
            let content = unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) };
            assert!(content.iter().all(|byte| *byte == 0));
        }
        self.blocks.push(Block {
            address,
            bytes: class,
            mark,
            live: true,
            was_leased: false,
            is_private: false,
        });
        self.write(address, mark);
    }

    fn write(&mut self, address: usize, mark: u64) {
        let start = self.start(address);
        let mut live = self.blocks.iter_mut().filter(|block| block.live);
        let block = live.find(|block| block.address == address).unwrap();
        for place in places(block.bytes) {
            // SAFETY: within the block, which is ours alone, and aligned as the place is.
            unsafe { start.add(place).cast::<u64>().write(mark) };
        }
        block.mark = mark;
        block.is_private = block.was_leased;
    }

    fn free(&mut self, at: usize) {
        let start = self.start(self.blocks[at].address);
        assert!(!self.arena.free(start.map_addr(|address| address | 1)));
        assert!(self.arena.free(start));
        assert!(!self.arena.free(start), "a block was freed twice");
        self.blocks[at].live = false;
        self.forget();
    }

    fn lease(&mut self, at: usize, in_table: bool) {
        let block = &self.blocks[at];
        let (address, bytes, mark) = (block.address, block.bytes, block.mark);
        let start = self.start(address).as_ptr();
        assert!(self.arena.lease(start, bytes + 1).is_none());
        assert!(self.arena.lease(start, 0).is_none());
        if block.is_private {
            assert!(self.arena.lease(start, bytes).is_none());
            return;
        }
        self.blocks[at].was_leased = true;
        let lease = self.arena.lease(start, bytes).unwrap();
        let fd = lease.descriptor().try_clone_to_owned().unwrap();
        let offset = lease.offset();
        let (receipt, lease) = if in_table {
            let ticket = self.exporter.0.lock().unwrap().issue(lease).unwrap();
            (self.imported.receipt(ticket, Arc::new(())).unwrap(), None)
        } else {
            let ticket = Ticket {
                slot: self.receipts,
                generation: 1,
            };
            self.receipts += 1;
            let receipt = self.unknown.receipt(ticket, Arc::new(())).unwrap();
            (receipt, Some(lease))
        };
        self.leases.push(Exported {
            address,
            mark,
            leased: Some(Leased::map(fd, offset, bytes, false, receipt).unwrap()),
            lease,
        });
    }

    /// Drops blocks that have no holder any more
    fn forget(&mut self) {
        let leases = &self.leases;
        self.blocks.retain(|block| {
            let leased = leases
                .iter()
                .any(|exported| exported.address == block.address);
            block.live || leased
        });
    }

    fn check(&mut self) {
        self.arena.shared.lock().unwrap().check_invariants();
        let looking = self
            .leases
            .iter()
            .filter_map(|exported| Some((exported.mark, exported.leased.as_ref()?)));
        let forever = self
            .abandoned
            .iter()
            .map(|(_, mark, leased)| (*mark, leased));
        for (mark, leased) in looking.chain(forever) {
            for place in places(leased.len()) {
                let seen = leased[place..place + 8].try_into().unwrap();
                assert_eq!(u64::from_ne_bytes(seen), mark, "leased bytes changed");
            }
        }
        for block in self.blocks.iter().filter(|block| block.live) {
            for place in places(block.bytes) {
                // SAFETY: within a live block, and aligned as the place is.
                let seen = unsafe { self.start(block.address).add(place).cast::<u64>().read() };
                assert_eq!(seen, block.mark, "the owner's bytes changed");
            }
        }
        let sum = |wanted: &dyn Fn(&&Block) -> bool| {
            let bytes = self.blocks.iter().filter(wanted).map(|block| block.bytes);
            bytes.sum::<usize>()
        };
        let leased = |block: &&Block| {
            self.leases
                .iter()
                .any(|exported| exported.address == block.address)
        };
        let statistics = self.arena.shared.lock().unwrap().statistics();
        let live_bytes = sum(&|block| block.live);
        self.peak_bytes = self.peak_bytes.max(live_bytes);
        assert_eq!(statistics.live_bytes, live_bytes);
        assert_eq!(statistics.peak_bytes, self.peak_bytes);
        assert_eq!(statistics.leased_bytes, sum(&leased));
        assert_eq!(statistics.orphaned_bytes, sum(&|block| !block.live));
        assert_eq!(statistics.refused, self.refused);
    }

    /// Frees every block and returns every lease
    fn end(mut self) {
        for at in (0..self.blocks.len()).rev() {
            if self.blocks[at].live {
                self.free(at);
            }
        }
        self.leases.clear();
        // Sweeps.
        let statistics = self.arena.statistics();
        assert_eq!(statistics.live_bytes, 0);
        assert_eq!(statistics.leased_bytes, 0);
        assert_eq!(statistics.orphaned_bytes, 0);
        assert_eq!(statistics.abandoned_bytes, 0);
        self.blocks.clear();
        self.check();
    }

    fn start(&self, address: usize) -> NonNull<u8> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap()
    }
}

/// Where a block of some size is marked
fn places(bytes: usize) -> [usize; 3] {
    [0, bytes / 16 * 8, bytes - 8]
}

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        bytes: usize,
        zeroed: bool,
    },
    Free(Index),
    Write(Index),
    Lease {
        at: Index,
        in_table: bool,
    },
    Return(Index),
    Abandon(Index),
    Sweep,
    Trim(usize),
    SetBytesMax(usize),
    Keep {
        committed_bytes: usize,
        floor_bytes: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![
        4 => 64 * KIB..300 * KIB,
        2 => Just(MIB),
        1 => MIB..5 * MIB,
    ];
    prop_oneof![
        6 => (bytes, any::<bool>()).prop_map(|(bytes, zeroed)| Step::Allocate { bytes, zeroed }),
        4 => any::<Index>().prop_map(Step::Free),
        3 => any::<Index>().prop_map(Step::Write),
        4 => (any::<Index>(), any::<bool>()).prop_map(|(at, in_table)| Step::Lease { at, in_table }),
        3 => any::<Index>().prop_map(Step::Return),
        1 => any::<Index>().prop_map(Step::Abandon),
        1 => Just(Step::Sweep),
        1 => (0..4 * MIB).prop_map(Step::Trim),
        1 => (0..32 * MIB).prop_map(Step::SetBytesMax),
        1 => (0..32 * MIB, prop_oneof![Just(0), 0..8 * MIB]).prop_map(
            |(committed_bytes, floor_bytes)| Step::Keep { committed_bytes, floor_bytes },
        ),
    ]
}

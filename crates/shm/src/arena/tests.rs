#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;

const MIB: usize = 1 << 20;

#[test]
fn recycled_block_comes_back_with_its_pages() {
    let arena = arena(usize::MAX, usize::MAX);
    for bytes in [64 << 10, 100_000, MIB, 5 * MIB, 100 * MIB] {
        let mut first = arena.take(bytes).unwrap();
        assert_eq!(first.len(), bytes);
        assert!(first.as_ptr().addr().is_multiple_of(page_size()));
        first[bytes - 1] = 7;
        let address = first.as_ptr();
        drop(first);
        let second = arena.take(bytes).unwrap();
        assert_eq!(second.as_ptr(), address);
        // The old bytes are there, so the page was not given back.
        assert_eq!(second[bytes - 1], 7);
    }
    let statistics = arena.statistics();
    assert_eq!((statistics.hits, statistics.misses), (5, 5));
}

#[test]
fn leased_block_is_not_handed_out_until_the_lease_is_returned() {
    let arena = arena(usize::MAX, usize::MAX);
    let mut buffer = arena.take(MIB).unwrap();
    buffer.fill(3);
    let start = buffer.as_ptr();
    let lease = arena.lease(start.wrapping_add(10), 100).unwrap();
    assert_eq!(lease.bytes(), 100);
    drop(buffer);
    let other = arena.take(MIB).unwrap();
    assert_ne!(other.as_ptr(), start);
    let statistics = arena.statistics();
    assert_eq!(
        (statistics.leased_bytes, statistics.orphaned_bytes),
        (MIB, MIB)
    );
    let mut seen = [0; 100];
    File::from(lease.descriptor().try_clone_to_owned().unwrap())
        .read_exact_at(&mut seen, lease.offset())
        .unwrap();
    assert_eq!(seen, [3; 100]);
    drop(lease);
    assert_eq!(arena.statistics().leased_bytes, 0);
    assert_eq!(arena.take(MIB).unwrap().as_ptr(), start);
}

#[test]
fn block_freed_longest_ago_gives_its_pages_back_first() {
    let arena = arena(usize::MAX, 3 * MIB);
    let buffers: Vec<_> = (0..4).map(|_| arena.take(MIB).unwrap()).collect();
    let addresses: Vec<_> = buffers.iter().map(|buffer| buffer.as_ptr()).collect();
    for mut buffer in buffers {
        buffer.fill(1);
    }
    assert_eq!(arena.statistics().cached_bytes, 3 * MIB);
    let taken: Vec<_> = (0..4).map(|_| arena.take(MIB).unwrap()).collect();
    let found: Vec<_> = taken.iter().map(|buffer| buffer.as_ptr()).collect();
    assert_eq!(
        found,
        [addresses[3], addresses[2], addresses[1], addresses[0]]
    );
    assert!(taken[3].iter().all(|byte| *byte == 0));
    assert!(taken[2].iter().all(|byte| *byte == 1));
}

#[test]
fn trimming_gives_back_free_pages_and_no_others() {
    let arena = arena(usize::MAX, usize::MAX);
    let mut kept = arena.take(8 * MIB).unwrap();
    kept.fill(1);
    for _ in 0..2 {
        let buffers = [arena.take(MIB).unwrap(), arena.take(MIB).unwrap()];
        for mut buffer in buffers {
            buffer.fill(1);
        }
        let before = arena.resident_bytes();
        assert!(before >= 10 * MIB);
        arena.trim(MIB);
        assert_eq!(arena.statistics().cached_bytes, MIB);
        assert_eq!(arena.resident_bytes(), before - MIB);
        arena.trim(0);
        assert_eq!(arena.statistics().cached_bytes, 0);
        assert_eq!(arena.resident_bytes(), before - 2 * MIB);
    }
    assert!(kept.iter().all(|byte| *byte == 1));
}

#[test]
fn abandoned_block_is_used_no_more_and_its_segment_goes_with_the_rest() {
    let arena = arena(usize::MAX, usize::MAX);
    let first = arena.take(MIB).unwrap();
    let second = arena.take(MIB).unwrap();
    let start = first.as_ptr();
    first.lease().unwrap().abandon();
    drop(first);
    assert_eq!(arena.statistics().abandoned_bytes, MIB);
    let third = arena.take(MIB).unwrap();
    assert_ne!(third.as_ptr(), start);
    drop(second);
    assert_eq!(arena.statistics().abandoned_bytes, 0);
}

#[test]
fn past_the_bound_nothing_is_handed_out_and_cached_blocks_give_way() {
    let arena = arena(4 * MIB, usize::MAX);
    let first = arena.take(3 * MIB).unwrap();
    assert!(arena.take(2 * MIB).is_none());
    assert_eq!(arena.statistics().refused, 1);
    drop(first);
    assert_eq!(arena.statistics().cached_bytes, 3 * MIB);
    let _second = arena.take(2 * MIB).unwrap();
    assert_eq!(arena.statistics().cached_bytes, 0);
}

#[test]
fn pages_of_evicted_blocks_go_back_to_the_system() {
    for bytes in [MIB, 3 * MIB, 16 * MIB] {
        let arena = arena(usize::MAX, usize::MAX);
        let mut keeper = arena.take(bytes).unwrap();
        keeper.fill(1);
        let lease = keeper.lease().unwrap();
        let resident = || rustix::fs::fstat(lease.descriptor()).unwrap().st_blocks * 512;
        let mut others: Vec<_> = (0..3).map(|_| arena.take(bytes).unwrap()).collect();
        others.iter_mut().for_each(|buffer| buffer.fill(1));
        assert!(resident() >= 4 * bytes as i64);
        drop(others);
        assert!(resident() >= 4 * bytes as i64);
        arena.trim(0);
        assert_eq!(arena.statistics().cached_bytes, 0);
        // Less than a huge page may be left at each end.
        assert!(resident() < bytes as i64 + 2 * HUGE_PAGE_BYTES as i64);
        assert!(keeper.iter().all(|byte| *byte == 1));
    }
}

#[test]
fn growing_class_gets_huge_pages_with_no_block_to_spare() {
    let arena = arena(usize::MAX, 0);
    for (bytes, huge) in [(MIB, false), (5 * MIB, true), (20 * MIB, true)] {
        let class = SizeClass::for_bytes(bytes).unwrap();
        for _ in 0..4 {
            let mut deferred = DeferredWork::default();
            let fresh = arena.shared.allocate_cold(class, &mut deferred).unwrap();
            assert_eq!((fresh.ahead_bytes, fresh.huge), (0, huge));
            arena.shared.finish(deferred);
        }
    }
}

#[test]
fn free_blocks_never_make_the_arena_larger_than_its_use() {
    let arena = arena(usize::MAX, usize::MAX);
    let kept = Kept {
        committed_bytes: 0,
        floor_bytes: 4 * MIB,
    };
    arena.adjust_kept(|_| kept);
    let take = |count: usize, bytes| -> Vec<_> {
        let buffers = (0..count).map(|_| arena.take(bytes).unwrap());
        buffers.collect()
    };
    drop(take(16, 4 * MIB));
    // Below the peak everything is kept, for blocks of the same size.
    assert_eq!(arena.statistics().cached_bytes, 64 * MIB);
    // Those of another size take their place.
    let other = take(12, 5 * MIB);
    let found = arena.statistics();
    assert!(
        found.live_bytes + found.cached_bytes <= 68 * MIB,
        "{found:?}"
    );
    assert!(arena.resident_bytes() <= 70 * MIB);
    drop(other);
    // A new peak counts immediately, an old one until the next choice.
    drop(take(20, 4 * MIB));
    assert!(arena.statistics().cached_bytes > 76 * MIB);
    let mut seen = Demand::default();
    arena.adjust_kept(|demand| {
        seen = demand;
        kept
    });
    assert_eq!(seen.used_bytes, 0);
    assert_eq!(seen.used_peak_bytes, 80 * MIB);
    assert_eq!(seen.taken_bytes, (64 + 60 + 80) * MIB);
    assert_eq!(arena.statistics().cached_bytes, 4 * MIB);
    arena.adjust_kept(|_| Kept {
        floor_bytes: 0,
        ..kept
    });
    let held = take(4, 4 * MIB);
    drop(held);
    assert_eq!(arena.statistics().cached_bytes, 0);
}

#[test]
fn lowered_bound_evicts_cached_blocks_and_keeps_used_ones() {
    let arena = arena(64 * MIB, usize::MAX);
    let mut buffers: Vec<_> = (0..6).map(|_| arena.take(8 * MIB).unwrap()).collect();
    buffers.iter_mut().for_each(|buffer| buffer.fill(1));
    buffers.truncate(3);
    assert!(arena.statistics().cached_bytes >= 24 * MIB);
    arena.set_bytes_max(32 * MIB);
    assert_eq!(arena.statistics().cached_bytes, 8 * MIB);
    // Below what is in use: the blocks stay, no other is handed out, and a freed one is not cached.
    arena.set_bytes_max(16 * MIB);
    assert_eq!(arena.statistics().cached_bytes, 0);
    assert!(arena.resident_bytes() < 24 * MIB + 2 * HUGE_PAGE_BYTES);
    assert!(arena.take(8 * MIB).is_none());
    buffers.pop();
    assert_eq!(arena.statistics().cached_bytes, 0);
    assert_eq!(arena.statistics().live_bytes, 16 * MIB);
    assert!(
        buffers
            .iter()
            .all(|buffer| buffer.iter().all(|byte| *byte == 1))
    );
    arena.set_bytes_max(usize::MAX);
    buffers.push(arena.take(8 * MIB).unwrap());
    buffers.clear();
    assert!(arena.statistics().cached_bytes >= 24 * MIB);
}

#[test]
fn segment_goes_with_its_last_page() {
    let arena = arena(usize::MAX, usize::MAX);
    let buffers: Vec<_> = (0..5).map(|_| arena.take(40 * MIB).unwrap()).collect();
    assert!(arena.statistics().mapped_bytes >= 200 * MIB);
    drop(buffers);
    assert!(arena.statistics().mapped_bytes >= 200 * MIB);
    arena.trim(0);
    assert_eq!(arena.statistics().mapped_bytes, 0);
}

#[test]
fn class_that_is_used_much_gets_pages_ahead() {
    let arena = arena(usize::MAX, 100 * MIB);
    let buffers: Vec<_> = (0..20).map(|_| arena.take(MIB).unwrap()).collect();
    let statistics = arena.statistics();
    assert_eq!(statistics.hits + statistics.misses, 20);
    assert!(statistics.misses < 8, "{statistics:?}");
    assert!(statistics.cached_bytes <= statistics.live_bytes);
    drop(buffers);
}

#[test]
fn process_with_many_blocks_has_few_descriptors() {
    let arena = arena(usize::MAX, usize::MAX);
    let before = descriptors();
    // Without pages: they are never touched.
    let blocks: Vec<_> = (0..400)
        .map(|_| arena.allocate(320 * MIB).unwrap())
        .collect();
    let added = descriptors() - before;
    assert!(
        added < 100,
        "{added} descriptors for {} blocks",
        blocks.len()
    );
    assert!(blocks.into_iter().all(|start| arena.free(start)));
}

#[test]
fn shortage_makes_the_exporters_sweep_for_returned_leases() {
    struct Exporter(Mutex<Vec<Lease>>);
    impl Sweep for Exporter {
        fn sweep(&self) {
            self.0.lock().unwrap().clear();
        }
    }
    let arena = arena(usize::MAX, usize::MAX);
    let exporter = Arc::new(Exporter(Mutex::default()));
    let weak: Weak<Exporter> = Arc::downgrade(&exporter);
    arena.on_shortage(weak);
    // Of a class of which nothing is made ahead
    let buffer = arena.take(40 * MIB).unwrap();
    let start = buffer.as_ptr();
    exporter.0.lock().unwrap().push(buffer.lease().unwrap());
    drop(buffer);
    assert_eq!(arena.take(40 * MIB).unwrap().as_ptr(), start);
    drop(exporter);
    assert_eq!(arena.statistics().live_bytes, 0);
}

#[test]
fn blocks_and_leases_outlive_the_last_clone() {
    let arena = arena(usize::MAX, usize::MAX);
    let start = arena.allocate(MIB).unwrap();
    let mut buffer = arena.take(MIB).unwrap();
    let lease = buffer.lease().unwrap();
    drop(arena);
    buffer.fill(1);
    drop(buffer);
    drop(lease);
    // SAFETY: a block that was never freed.
    unsafe { start.write_bytes(1, MIB) };
}

#[test]
fn threads_share_an_arena_and_lease_to_each_other() {
    let arena = arena(64 * MIB, 8 * MIB);
    let (send, receive) = std::sync::mpsc::sync_channel::<(Lease, u8)>(4);
    std::thread::scope(|scope| {
        for mark in 1..4_u8 {
            let (arena, send) = (&arena, send.clone());
            scope.spawn(move || {
                for round in 0..300_usize {
                    let bytes = (64 << 10) + round * 4321 % 500_000;
                    let Some(mut buffer) = arena.take(bytes) else {
                        continue;
                    };
                    buffer.fill(mark);
                    if round % 3 == 0 {
                        send.send((buffer.lease().unwrap(), mark)).unwrap();
                    }
                    assert!(buffer.iter().all(|byte| *byte == mark));
                }
            });
        }
        drop(send);
        for (lease, mark) in receive {
            let mut seen = vec![0; lease.bytes()];
            crate::leased::read_leased(lease.descriptor(), lease.offset(), &mut seen).unwrap();
            assert!(seen.iter().all(|byte| *byte == mark));
        }
    });
    let statistics = arena.statistics();
    assert_eq!((statistics.live_bytes, statistics.leased_bytes), (0, 0));
    assert_eq!(statistics.orphaned_bytes, 0);
    arena.shared.lock().unwrap().check_invariants();
}

#[test]
fn zeroed_block_is_zero_fresh_and_recycled() {
    let arena = arena(usize::MAX, usize::MAX);
    for _ in 0..2 {
        let start = arena.allocate_zeroed(MIB).unwrap();
        // SAFETY: a block of that size, ours alone.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), MIB) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes.fill(1);
        assert!(arena.free(start));
        assert!(!arena.free(start));
    }
}

#[test]
fn what_is_too_small_or_absurd_is_refused() {
    let arena = arena(usize::MAX, usize::MAX);
    for bytes in [0, 1, 65_535, usize::MAX, isize::MAX as usize] {
        assert!(arena.allocate(bytes).is_none());
    }
    assert!(arena.allocate(1 << 60).is_none());
    assert!(arena.unavailable().is_some());
    assert!(arena.allocate(MIB).is_some());
}

fn arena(bytes_max: usize, cached_bytes_max: usize) -> Arena {
    Arena::new(ArenaConfig {
        bytes_max,
        cached_bytes_max,
        block_bytes_min: 64 << 10,
    })
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use proptest::prelude::*;

use super::*;

#[test]
fn recycled_block_comes_back_with_its_pages() {
    for bytes in [1, 4096, 64 * 1024, 64 * 1024 + 1, 8 << 20] {
        let pool = Pool::new(usize::MAX);
        let mut first = pool.take(bytes).unwrap();
        assert!(first.iter().all(|byte| *byte == 0));
        first[bytes - 1] = 7;
        let address = first.as_ptr();
        drop(first);
        let second = pool.take(bytes).unwrap();
        assert_eq!(second.as_ptr(), address);
        // The old bytes are there, so the page was not given back.
        assert_eq!(second[bytes - 1], 7);
        let PoolStatistics { hits, misses, .. } = pool.statistics();
        assert_eq!((hits, misses), (1, 1));
    }
}

#[test]
fn empty_buffer_is_aligned_and_costs_nothing() {
    let pool = Pool::new(1 << 20);
    let buffer = pool.take(0).unwrap();
    assert!(buffer.is_empty());
    assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT_BYTES));
    assert_eq!(pool.statistics().live_bytes, 0);
    // Nor is it kept: what has no bytes would never give way to anything.
    drop(buffer);
    drop(pool.take(0).unwrap());
    assert_eq!(pool.statistics().hits, 0);
}

#[test]
fn many_small_buffers_share_few_blocks() {
    let pool = Pool::new(usize::MAX);
    let mut buffers = pool.take_many(&[1; 65_536]).unwrap();
    assert_eq!(buffers.len(), 65_536);
    let PoolStatistics {
        live_bytes, misses, ..
    } = pool.statistics();
    // A line each, and nothing else.
    assert_eq!((live_bytes, misses), (65_536 * 64, 16));
    for (at, buffer) in buffers.iter_mut().enumerate() {
        assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT_BYTES));
        buffer.fill(at as u8);
    }
    let is_marked = |(at, buffer): (usize, &PoolBuf)| **buffer == [at as u8];
    assert!(buffers.iter().enumerate().all(is_marked));
    // One keeps the block that it shares, and no other.
    buffers.truncate(1);
    assert_eq!(pool.statistics().live_bytes, PARTED_BYTES_MAX);
    drop(buffers);
    let PoolStatistics {
        live_bytes,
        cached_bytes,
        ..
    } = pool.statistics();
    assert_eq!((live_bytes, cached_bytes), (0, 65_536 * 64));
}

#[test]
fn large_and_empty_ones_of_many_share_no_block() {
    let arena = Arena::new(crate::arena::ArenaConfig::default());
    let pool = Pool::with_arena(usize::MAX, Some(arena.clone()));
    let part = PART_BYTES_MAX as u64;
    let buffers = pool.take_many(&[0, 3, 100_000, part + 1, 0, 64]).unwrap();
    let lengths: Vec<_> = buffers.iter().map(|buffer| buffer.len()).collect();
    assert_eq!(lengths, [0, 3, 100_000, 4097, 0, 64]);
    assert!(arena.holds(&buffers[2]));
    let end = buffers[1].as_ptr().wrapping_add(ALIGNMENT_BYTES);
    assert_eq!(buffers[5].as_ptr(), end, "two parts of a block");
    assert_eq!(pool.statistics().live_bytes, 128 + 5 * 1024);
    assert_eq!(pool.take_many(&[]).unwrap().len(), 0);
    // Of one small one a block of its own is made.
    let one = pool.take_many(&[0, 7, 1 << 20]).unwrap();
    assert!(matches!(one[1].home, Home::Pool(..)));
    drop((buffers, one));
    assert_eq!(pool.statistics().live_bytes, 0);
    assert_eq!(arena.statistics().live_bytes, 0);
}

#[test]
fn private_block_is_not_kept_where_the_arena_has_reached_its_bound() {
    let config = crate::arena::ArenaConfig {
        bytes_max: 1 << 20,
        ..Default::default()
    };
    let pool = Pool::with_arena(usize::MAX, Some(Arena::new(config)));
    drop(pool.take(2 << 20).unwrap());
    assert_eq!(pool.statistics().cached_bytes, 0);
    assert_eq!(pool.statistics().live_bytes, 0);
    // Too small for the arena, whatever its bound.
    drop(pool.take(1000).unwrap());
    assert!(pool.statistics().cached_bytes >= 1000);
}

#[test]
fn refusal_of_one_of_many_gives_the_others_back() {
    let pool = Pool::new(1 << 20);
    for bytes in [u64::MAX, 1 << 60] {
        let error = pool.take_many(&[5, 5, 1 << 16, bytes, 5]).unwrap_err();
        assert_eq!(error.bytes, bytes as usize);
        assert_eq!(pool.statistics().live_bytes, 0);
    }
}

#[test]
fn parts_outlive_their_pool_and_are_dropped_by_any_thread() {
    let pool = Pool::new(1 << 20);
    let mut buffers = pool.take_many(&[100, 1, 4096, 77]).unwrap();
    drop(pool);
    std::thread::scope(|scope| {
        for (mark, mut buffer) in (1..).zip(buffers.drain(..)) {
            scope.spawn(move || {
                buffer.fill(mark);
                assert!(buffer.iter().all(|byte| *byte == mark));
            });
        }
    });
}

#[test]
fn bound_of_the_cache_counts_what_the_heap_adds() {
    let pool = Pool::new(1 << 20);
    let buffers: Vec<_> = (0..10_000).map(|_| pool.take(1).unwrap()).collect();
    drop(buffers);
    let cached_bytes = pool.statistics().cached_bytes;
    assert!((200_000..400_000).contains(&cached_bytes), "{cached_bytes}");
}

#[test]
fn impossible_size_is_refused_and_not_counted() {
    let pool = Pool::new(1 << 20);
    for bytes in [usize::MAX, isize::MAX as usize, 1 << 60] {
        assert_eq!(pool.take(bytes).unwrap_err(), OutOfMemory { bytes });
    }
    assert_eq!(pool.statistics().live_bytes, 0);
}

#[test]
fn buffer_outlives_its_pool() {
    let pool = Pool::new(1 << 20);
    let mut buffers = [pool.take(100).unwrap(), pool.take(100_000).unwrap()];
    drop(pool);
    for buffer in &mut buffers {
        buffer.fill(1);
    }
    std::thread::spawn(move || drop(buffers)).join().unwrap();
}

#[test]
fn block_unused_for_longest_is_freed_first() {
    let pool = Pool::new(3 << 20);
    let buffers: Vec<_> = (0..4).map(|_| pool.take(1 << 20).unwrap()).collect();
    let addresses: Vec<_> = buffers.iter().map(|buffer| buffer.as_ptr()).collect();
    for buffer in buffers {
        drop(buffer);
    }
    assert_eq!(pool.statistics().cached_bytes, 3 << 20);
    let taken: Vec<_> = (0..3).map(|_| pool.take(1 << 20).unwrap()).collect();
    let taken: Vec<_> = taken.iter().map(|buffer| buffer.as_ptr()).collect();
    assert_eq!(taken, [addresses[3], addresses[2], addresses[1]]);
}

#[test]
fn block_above_the_bound_displaces_nothing() {
    let pool = Pool::new(1 << 20);
    drop(pool.take(1 << 20).unwrap());
    drop(pool.take(2 << 20).unwrap());
    assert_eq!(pool.statistics().cached_bytes, 1 << 20);
    assert_eq!(pool.statistics().peak_bytes, 2 << 20);
}

#[test]
fn threads_share_a_pool() {
    let pool = Pool::new(1 << 20);
    std::thread::scope(|scope| {
        for mark in 0..4_u8 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..500_usize {
                    let mut buffer = pool.take(1 + round * 401 % 200_000).unwrap();
                    buffer.fill(mark);
                    assert!(buffer.iter().all(|byte| *byte == mark));
                }
            });
        }
    });
    assert_eq!(pool.statistics().live_bytes, 0);
}

proptest! {
    #[test]
    fn live_buffers_never_overlap_and_bounds_are_kept(
        cached_bytes_max in 0_usize..500_000,
        steps in prop::collection::vec(step(), 1..100),
    ) {
        let pool = Pool::new(cached_bytes_max);
        let mut live: Vec<(u8, PoolBuf)> = Vec::new();
        let (mut peak_bytes, mut takes) = (0, 0);
        for (mark, step) in (0_u8..).zip(steps) {
            match step {
                Step::Take(bytes) => {
                    let mut buffer = pool.take(bytes).unwrap();
                    takes += 1;
                    prop_assert_eq!(buffer.len(), bytes);
                    prop_assert!(buffer.as_ptr().addr().is_multiple_of(ALIGNMENT_BYTES));
                    buffer.fill(mark);
                    live.push((mark, buffer));
                }
                Step::Drop(at) => {
                    if !live.is_empty() {
                        let (mark, buffer) = live.swap_remove(at.index(live.len()));
                        prop_assert!(buffer.iter().all(|byte| *byte == mark));
                    }
                }
            }
            let mut spans: Vec<_> = live
                .iter()
                .filter(|(_, buffer)| !buffer.is_empty())
                .map(|(_, buffer)| (buffer.as_ptr().addr(), buffer.len()))
                .collect();
            spans.sort_unstable();
            prop_assert!(spans.is_sorted_by(|(a, bytes), (b, _)| a + bytes <= *b));
            let class_bytes = |bytes| SizeClass::for_bytes(bytes).unwrap().bytes();
            let live_bytes: usize = live.iter().map(|(_, buffer)| class_bytes(buffer.len())).sum();
            peak_bytes = peak_bytes.max(live_bytes);
            let statistics = pool.statistics();
            prop_assert_eq!(statistics.live_bytes, live_bytes);
            prop_assert_eq!(statistics.peak_bytes, peak_bytes);
            prop_assert!(statistics.cached_bytes <= cached_bytes_max);
            prop_assert_eq!(statistics.hits + statistics.misses, takes);
        }
        for (mark, buffer) in live {
            prop_assert!(buffer.iter().all(|byte| *byte == mark));
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize),
    Drop(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![0_usize..2000, 0_usize..200_000];
    prop_oneof![
        bytes.prop_map(Step::Take),
        any::<prop::sample::Index>().prop_map(Step::Drop)
    ]
}

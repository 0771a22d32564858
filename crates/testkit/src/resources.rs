//! Descriptors and memory that this process holds.

use crate::wait_until;

/// Open descriptors of this process
///
/// # Panics
///
/// If the system has no procfs.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Threads of this process
///
/// # Panics
///
/// If the system has no procfs.
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Memory of this process that is in use, in bytes
///
/// # Panics
///
/// If the system has no procfs.
pub fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = statm.split_whitespace().nth(1).unwrap();
    pages.parse::<usize>().unwrap() * rustix::param::page_size()
}

/// Address space of this process, in bytes
///
/// # Panics
///
/// If the system has no procfs.
pub fn address_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = statm.split_whitespace().next().unwrap();
    pages.parse::<usize>().unwrap() * rustix::param::page_size()
}

/// Mappings of segments of arenas in this process, its own and those of peers
///
/// # Panics
///
/// If the system has no procfs.
pub fn arena_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_of_arena = |line: &&str| line.contains("memfd:backhaul-arena");
    maps.lines().filter(is_of_arena).count()
}

/// Repeats something and asserts that it leaves no descriptor behind and little memory
///
/// Only meaningful while nothing else runs in this process.
///
/// # Panics
///
/// If memory grows. If descriptors stay open, it waits for ever.
pub fn assert_leaves_nothing(rounds: usize, mut work: impl FnMut()) {
    // Pools fill and lazy things start.
    for _ in 0..rounds / 4 + 2 {
        work();
    }
    let before = descriptors();
    let resident_before = resident_bytes();
    for _ in 0..rounds {
        work();
    }
    // Engines close what they own when they get to it.
    wait_until(|| descriptors() <= before);
    let grown = resident_bytes().saturating_sub(resident_before);
    assert!(
        grown < GROWTH_BYTES_MAX,
        "memory grew by {grown} bytes in {rounds} rounds"
    );
}

/// Below what any object of a connection costs over the rounds, above the noise of allocators
const GROWTH_BYTES_MAX: usize = 24 << 20;

//! Watch over the memory of this process, which shrinks its arena where memory is short
//!
//! A thread looks at the resident memory at an interval, whatever the other threads of the process
//! do. Each look
//!
//! - bounds the arena by the limit less the memory outside the arena, so that free blocks give way
//!   before the process exceeds the limit;
//! - chooses how many free blocks stay, by demand and by shortage (`retention.rs`), and gives the
//!   others back;
//! - writes the result into a file in memory, from which a supervisor of the process can read it
//!   ([`REPORT_NAME`]);
//! - wakes a thread that waits until the process uses more than so much ([`MemoryWatch::wait_above`]).

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use backhaul_shm::arena::{Arena, Kept};
use backhaul_shm::leased::{borrowed_bytes, borrowed_mapping_bytes, orphaned_bytes};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::pwrite;
use rustix::time::{ClockId, clock_gettime};

use crate::host_memory::HostMemory;
use crate::retention::{Retention, RetentionConfig};

/// Name of the memfd of the report
///
/// Four numbers of 64 bits in the byte order of the host: the time of the last look on the
/// monotonic clock in nanoseconds, the resident bytes, how many of these do not count, and the
/// number of [`MemoryWatch::set_stage`].
const REPORT_NAME: &str = "backhaul-memory";

/// Time between two looks at the memory of the host
const SHORTAGE_INTERVAL: Duration = Duration::from_millis(500);

/// Time between two looks while the process is about to exceed what a thread waits for
const NEAR_INTERVAL: Duration = Duration::from_millis(10);

/// Bounds and times of a [`MemoryWatch`]
#[derive(Clone, Copy, Debug)]
pub struct MemoryWatchConfig {
    /// Bound on the counted and the cached memory of the process; `usize::MAX` for none
    pub limit_bytes: usize,
    /// Free blocks that stay whatever the demand is, until none is taken for `idle`
    pub kept_bytes: usize,
    /// Time for which a peak of the use counts as demand
    pub window: Duration,
    /// See `kept_bytes`
    pub idle: Duration,
    /// Time between two looks
    pub interval: Duration,
}

/// Memory of this process at one moment
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MemoryLook {
    /// Resident memory as the system counts it
    pub resident_bytes: usize,
    /// Memory that this process uses
    ///
    /// Private memory and mapped files; blocks of its arena that are in use; borrowed memory that
    /// its owner has freed; other shared memory. Free blocks do not count, nor does borrowed memory
    /// that its owner uses, nor freed blocks that peers borrow.
    pub counted_bytes: usize,
    /// Pages of no file, which no other process maps but for forks
    pub private_bytes: usize,
    /// Mapped pages of files, as those of libraries; other processes may map them too
    pub file_bytes: usize,
    /// Pages of the blocks of the arena that are in use here
    pub arena_used_bytes: usize,
    /// Pages of the blocks of the arena that are freed here, but lent or inherited by a fork
    pub arena_orphaned_bytes: usize,
    /// Pages of the other free blocks of the arena
    pub arena_free_bytes: usize,
    /// Blocks of the arena that peers have leases on, in use here or not
    pub lent_bytes: usize,
    /// Memory of peers that is mapped here
    pub borrowed_bytes: usize,
    /// Part of `borrowed_bytes` that its owner has freed, so that it counts here
    pub borrowed_orphaned_bytes: usize,
    /// Other shared memory
    pub other_shared_bytes: usize,
}

/// Watches the memory of this process until it is dropped
#[derive(Debug)]
pub struct MemoryWatch {
    watched: Arc<Watched>,
}

impl MemoryWatch {
    /// Starts the thread
    ///
    /// # Errors
    ///
    /// The error of the system, when it has no descriptor, memory or thread left.
    pub fn start(arena: &Arena, config: MemoryWatchConfig) -> io::Result<Self> {
        let watched = Arc::new(Watched {
            arena: arena.clone(),
            config,
            retention: Mutex::new(Retention::new(RetentionConfig {
                limit_bytes: config.limit_bytes,
                floor_bytes: config.kept_bytes,
                window: config.window,
                idle: config.idle,
            })),
            host: HostMemory::new(),
            shortage: Mutex::default(),
            report: memfd_create(REPORT_NAME, MemfdFlags::CLOEXEC)?,
            stage: AtomicU64::new(0),
            alarm: Mutex::default(),
            looked: Condvar::new(),
            process: process::id(),
        });
        let weak = Arc::downgrade(&watched);
        thread::Builder::new()
            .name("backhaul-memory".to_owned())
            .spawn(move || watch(&weak, config.interval))?;
        Ok(Self { watched })
    }

    /// Looks now, as the thread does
    ///
    /// # Errors
    ///
    /// The error of the system where `/proc` cannot be read.
    pub fn look(&self) -> io::Result<MemoryLook> {
        self.watched.look()
    }

    /// Waits until a look finds that the process uses more than so many bytes
    ///
    /// Returns the bytes that it uses then; `None` if the time is over. From the first call on the
    /// thread looks every 10 ms while the process uses more than three quarters of that.
    #[must_use]
    pub fn wait_above(&self, counted_bytes: usize, timeout: Duration) -> Option<usize> {
        let watched = &*self.watched;
        let mut alarm = watched.alarm();
        alarm.above_bytes = counted_bytes;
        let (alarm, _) = watched
            .looked
            .wait_timeout_while(alarm, timeout, |alarm| !alarm.is_exceeded())
            .unwrap_or_else(PoisonError::into_inner);
        alarm.is_exceeded().then_some(alarm.counted_bytes)
    }

    /// Sets the number that the report of the next look has for a supervisor of the process
    pub fn set_stage(&self, stage: u64) {
        self.watched.stage.store(stage, Ordering::Relaxed);
    }
}

/// Memory that a thread waits for in [`MemoryWatch::wait_above`]
#[derive(Debug, Default)]
struct Alarm {
    /// Use that is waited for; 0 for none
    above_bytes: usize,
    /// Use as of the last look
    counted_bytes: usize,
}

impl Alarm {
    fn is_exceeded(&self) -> bool {
        self.above_bytes > 0 && self.counted_bytes > self.above_bytes
    }

    fn is_near(&self) -> bool {
        self.above_bytes > 0 && self.counted_bytes > self.above_bytes / 4 * 3
    }
}

#[derive(Debug)]
struct Watched {
    arena: Arena,
    config: MemoryWatchConfig,
    retention: Mutex<Retention>,
    host: HostMemory,
    /// Last look at the memory of the host, and the shortage that it found
    shortage: Mutex<Option<(Instant, bool)>>,
    report: OwnedFd,
    /// Number in the report for a supervisor
    stage: AtomicU64,
    /// Innermost lock, held for no call
    alarm: Mutex<Alarm>,
    /// Notified after each look that finds more than `alarm` says
    looked: Condvar,
    /// The process that is watched; a forked child is another
    process: u32,
}

impl Watched {
    fn look(&self) -> io::Result<MemoryLook> {
        let config = &self.config;
        let mut found = self.measure()?;
        if process::id() != self.process {
            return Ok(found.look);
        }
        if config.limit_bytes < usize::MAX {
            let left_bytes = config.limit_bytes.saturating_sub(found.outside_bytes);
            self.arena
                .set_bytes_max(left_bytes.min(self.arena.config().bytes_max));
        }
        let is_host_short = self.is_host_short();
        self.arena.adjust_kept(|demand| {
            let mut retention = self
                .retention
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            retention.handle_look(Instant::now(), demand, found.outside_bytes, is_host_short)
        });
        if self.arena.statistics().cached_bytes < found.cached_bytes {
            found = self.measure()?;
        }
        self.write_report(found.look)?;
        let mut alarm = self.alarm();
        alarm.counted_bytes = found.look.counted_bytes;
        if alarm.is_exceeded() {
            self.looked.notify_all();
        }
        drop(alarm);
        Ok(found.look)
    }

    fn alarm(&self) -> MutexGuard<'_, Alarm> {
        self.alarm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the host is short of memory, as of the last half second
    fn is_host_short(&self) -> bool {
        let mut shortage = self.shortage.lock().unwrap_or_else(PoisonError::into_inner);
        match *shortage {
            Some((at, is_short)) if at.elapsed() < SHORTAGE_INTERVAL => is_short,
            _ => {
                let is_short = self.host.is_short();
                *shortage = Some((Instant::now(), is_short));
                is_short
            }
        }
    }

    fn measure(&self) -> io::Result<Measured> {
        // Blocks may be taken, lent, returned and freed meanwhile. Memory of the arena that was
        // mapped before or after is no other memory.
        let mapped_before = self.mapped_bytes_max();
        let status = fs::read_to_string("/proc/self/status")?;
        let mapped_bytes = self.mapped_bytes_max().max(mapped_before);
        let resident_bytes = status_bytes(&status, "VmRSS:");
        let shared_bytes = status_bytes(&status, "RssShmem:");
        let statistics = self.arena.statistics();
        let arena_bytes = self.arena.resident_bytes();
        // A block counts whole, though it may have fewer pages.
        let used_bytes = statistics.live_bytes + statistics.abandoned_bytes;
        let arena_used_bytes = used_bytes.min(arena_bytes);
        let arena_orphaned_bytes = statistics
            .orphaned_bytes
            .min(arena_bytes - arena_used_bytes);
        let other_shared_bytes = shared_bytes.saturating_sub(mapped_bytes);
        let borrowed_orphaned_bytes = orphaned_bytes();
        let outside_bytes = resident_bytes.saturating_sub(shared_bytes)
            + other_shared_bytes
            + borrowed_orphaned_bytes;
        Ok(Measured {
            look: MemoryLook {
                resident_bytes,
                counted_bytes: outside_bytes + arena_used_bytes,
                private_bytes: status_bytes(&status, "RssAnon:"),
                file_bytes: status_bytes(&status, "RssFile:"),
                arena_used_bytes,
                arena_orphaned_bytes,
                arena_free_bytes: arena_bytes - arena_used_bytes - arena_orphaned_bytes,
                lent_bytes: statistics.leased_bytes,
                borrowed_bytes: borrowed_bytes(),
                borrowed_orphaned_bytes,
                other_shared_bytes,
            },
            outside_bytes,
            cached_bytes: statistics.cached_bytes,
        })
    }

    /// Most that the pages of the arena and of leases can be of the resident memory
    ///
    /// A page of a copy-on-write block may be mapped twice. Not all that is mapped has been touched,
    /// so this may hide as much shared memory of others, but no page counts twice.
    fn mapped_bytes_max(&self) -> usize {
        // Asked for first: it notices leases that were returned.
        let copy_on_write_bytes = self.arena.statistics().copy_on_write_bytes;
        self.arena.resident_bytes() + copy_on_write_bytes + borrowed_mapping_bytes()
    }

    fn write_report(&self, look: MemoryLook) -> io::Result<()> {
        let now = clock_gettime(ClockId::Monotonic);
        let words = [
            now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64,
            look.resident_bytes as u64,
            look.resident_bytes.saturating_sub(look.counted_bytes) as u64,
            self.stage.load(Ordering::Relaxed),
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        pwrite(&self.report, &bytes, 0)?;
        Ok(())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.arena.set_bytes_max(self.arena.config().bytes_max);
        self.arena.adjust_kept(|_| Kept::default());
    }
}

/// A look, and what it is made of
struct Measured {
    look: MemoryLook,
    /// Counted memory outside the arena
    outside_bytes: usize,
    /// Free blocks of the arena
    cached_bytes: usize,
}

fn watch(watched: &Weak<Watched>, interval: Duration) {
    while let Some(watched) = watched.upgrade() {
        // Where `/proc` is not mounted, the next look fails as well, and nothing is bounded.
        let _ = watched.look();
        let is_near = watched.alarm().is_near();
        drop(watched);
        thread::sleep(if is_near {
            interval.min(NEAR_INTERVAL)
        } else {
            interval
        });
    }
}

/// Value of a line of `/proc/PID/status`, which is in KiB
fn status_bytes(status: &str, name: &str) -> usize {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.map_or(0, |kib: usize| kib * 1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

    use std::env;
    use std::process::Command;

    use backhaul_shm::arena::ArenaConfig;
    use rustix::io::pread;

    use super::*;

    const MIB: usize = 1 << 20;

    /// Runs the test of this name in a process of its own, as others take memory at the same time
    ///
    /// Returns whether this is that process.
    fn is_alone(name: &str) -> bool {
        const ALONE: &str = "BACKHAUL_TEST_ALONE";
        if env::var_os(ALONE).is_some() {
            return true;
        }
        let status = Command::new(env::current_exe().unwrap())
            .args(["--exact", name])
            .env(ALONE, "1")
            .status();
        assert!(status.unwrap().success());
        false
    }

    #[test]
    fn free_blocks_give_way_to_memory_outside_the_arena() {
        if !is_alone("memory_watch::tests::free_blocks_give_way_to_memory_outside_the_arena") {
            return;
        }
        let arena = Arena::new(ArenaConfig::default());
        let outside_bytes = {
            let watch = MemoryWatch::start(&arena, config(usize::MAX)).unwrap();
            watch.watched.measure().unwrap().outside_bytes
        };
        let limit_bytes = outside_bytes + 100 * MIB;
        let watch = MemoryWatch::start(&arena, config(limit_bytes)).unwrap();
        let mut used = arena.take(16 * MIB).unwrap();
        used.fill(1);
        let mut freed = arena.take(32 * MIB).unwrap();
        freed.fill(1);
        drop(freed);
        let look = watch.look().unwrap();
        assert!(
            look.resident_bytes >= look.counted_bytes + 30 * MIB,
            "{look:?}"
        );
        assert_eq!(arena.statistics().cached_bytes, 32 * MIB);
        // So much that what is used has room, and what is free has not.
        let private = vec![1_u8; 70 * MIB];
        assert_eq!(look.arena_used_bytes, 16 * MIB);
        assert_eq!(look.arena_free_bytes, 32 * MIB);
        assert_eq!(look.arena_orphaned_bytes, 0);
        let parts = look.private_bytes + look.file_bytes + look.other_shared_bytes;
        assert_eq!(
            parts + look.arena_used_bytes,
            look.counted_bytes,
            "{look:?}"
        );
        let look = watch.look().unwrap();
        assert_eq!(arena.statistics().cached_bytes, 0);
        assert_eq!(arena.statistics().live_bytes, 16 * MIB);
        assert!(
            look.resident_bytes < look.counted_bytes + 8 * MIB,
            "{look:?}"
        );
        let mut report = [0; 32];
        assert_eq!(pread(&watch.watched.report, &mut report, 0).unwrap(), 32);
        let uncounted = u64::from_ne_bytes(report[16..24].try_into().unwrap()) as usize;
        assert!(uncounted < 8 * MIB, "{uncounted}");
        assert!(used.iter().chain(&private).all(|byte| *byte == 1));
        drop(private);
        assert!(arena.take(16 * MIB).is_none());
        watch.look().unwrap();
        assert!(arena.take(16 * MIB).is_some());
    }

    fn config(limit_bytes: usize) -> MemoryWatchConfig {
        MemoryWatchConfig {
            limit_bytes,
            kept_bytes: usize::MAX,
            window: Duration::from_secs(3600),
            idle: Duration::from_secs(3600),
            // Only looks of the tests count.
            interval: Duration::from_secs(3600),
        }
    }
}

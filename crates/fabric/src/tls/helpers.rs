//! Threads that write to the sockets of encrypted connections, while another encrypts.
//!
//! There are a few for a process, from when the first is needed until none has been for a while. They
//! know nothing of the connections: each does one piece of work after another, and only what its
//! caller could do itself. A piece that none is free for is refused, so nothing queues up here.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backhaul_sys::forks::PerProcess;

use crate::runtime::lock;

/// Work of a helper
pub(super) trait Work: Send + Sync + 'static {
    /// Does what is there to be done, which may be nothing any more
    fn help(&self);
}

/// Has a helper do some work soon; `false` if there is none for it
pub(super) fn call(work: Arc<dyn Work>) -> bool {
    POOL.value().call(work)
}

/// Counts a buffer that a helper has written
pub(super) fn count_written() {
    // A count that nothing is ordered by.
    WRITTEN.fetch_add(1, Ordering::Relaxed);
}

/// Buffers that helpers have written for encrypted connections of this process: for tests
pub fn tls_buffers_helped() -> u64 {
    WRITTEN.load(Ordering::Relaxed)
}

static WRITTEN: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Default)]
struct State {
    /// At most one for each thread that sleeps
    work: VecDeque<Arc<dyn Work>>,
    threads: usize,
    sleeping: usize,
}

impl Pool {
    fn call(&'static self, work: Arc<dyn Work>) -> bool {
        let mut state = lock(&self.state);
        if state.work.len() < state.sleeping {
            state.work.push_back(work);
            drop(state);
            self.news.notify_one();
            return true;
        }
        if state.threads == THREADS_MAX {
            return false;
        }
        state.threads += 1;
        drop(state);
        let thread = std::thread::Builder::new().name("backhaul-tls".to_owned());
        let started = thread.spawn(move || self.serve(work));
        if let Err(error) = started {
            tracing::debug!(%error, "no thread to share the work of an encrypted connection");
            lock(&self.state).threads -= 1;
            return false;
        }
        true
    }

    fn serve(&self, mut work: Arc<dyn Work>) {
        loop {
            work.help();
            // Perhaps the last reference to a socket.
            drop(work);
            let mut state = lock(&self.state);
            state.sleeping += 1;
            state = self.sleep(state);
            state.sleeping -= 1;
            match state.work.pop_front() {
                Some(next) => work = next,
                None => {
                    state.threads -= 1;
                    return;
                }
            }
        }
    }

    /// Sleeps until there is work, or has been none for long
    fn sleep<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let slept = self
            .news
            .wait_timeout_while(state, IDLE_MAX, |state| state.work.is_empty());
        slept.unwrap_or_else(PoisonError::into_inner).0
    }
}

static POOL: PerProcess<Pool> = PerProcess::new();

/// As many connections at once as one engine keeps busy, which encrypts for one at a time
const THREADS_MAX: usize = 4;

/// How long a thread stays that has nothing to do
const IDLE_MAX: Duration = Duration::from_secs(5);

//! Ends a test that hangs, saying which; fails one that hung for seconds.

use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use backhaul::seams::overlooked_in_process;

/// Aborts the process if it lives for too long
///
/// A bound on hanging, not on speed: it is far above what any test takes on a busy machine.
#[derive(Debug)]
pub struct Watchdog {
    /// Disconnected when the test is over
    _alive: Sender<()>,
}

impl Watchdog {
    /// Starts watching; dropping it ends that
    ///
    /// # Panics
    ///
    /// If the system gives no thread.
    pub fn start(name: &str) -> Self {
        let (alive, over) = channel();
        let name = name.to_owned();
        std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(move || {
                if over.recv_timeout(limit()) == Err(RecvTimeoutError::Timeout) {
                    // Not with eprintln!, whose output is captured and lost.
                    let line = format!("\nwatchdog: {name} hangs\n");
                    let _ = std::io::stderr().write_all(line.as_bytes());
                    std::process::abort();
                }
            })
            .expect("the system has threads left");
        Self { _alive: alive }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // Of this case or of one beside it: the log says on which connection.
        let overlooked = overlooked_in_process();
        assert!(
            overlooked == 0 || std::thread::panicking(),
            "{overlooked} wake-ups were lost: something waited until an inspection found it"
        );
    }
}

/// How long a test may hang; `BACKHAUL_WATCHDOG_S` overrides it
fn limit() -> Duration {
    let seconds = std::env::var("BACKHAUL_WATCHDOG_S").ok();
    let seconds = seconds.and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(LIMIT_S))
}

const LIMIT_S: u64 = 180;

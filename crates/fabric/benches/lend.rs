//! Cost of a large message when it is lent, and when it is copied: from the send to the answer
//! of another process, which looks at nothing of it, at a byte of each page, or at all bytes.
//!
//! ```text
//! cargo bench -p backhaul --bench lend
//! ```

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::env;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use backhaul::{Arena, ArenaConfig, Bytes, Config, Context, LaneKind, Segments, Tag, TagMask};

const SIZES: [usize; 4] = [512 << 10, 4 << 20, 16 << 20, 128 << 20];
/// How the receiver looks at what it gets
const LOOKS: [&str; 3] = ["nothing", "pages", "bytes"];
/// Bytes sent for each case, within bounds
const BYTES: usize = 8 << 30;
const TAG: Tag = Tag(1);

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|a| a != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["borrow", address, look, populate] = arguments[..] {
        return borrow(address, look, populate == "true");
    }
    let arena = Arena::new(ArenaConfig::default());
    say("    bytes  seen      copied       lent   lent and populated (median, us)");
    for bytes in SIZES {
        let mut memory = arena.take(bytes).unwrap();
        memory.fill(1);
        let memory = Bytes::from_owner(memory);
        for look in LOOKS {
            let copied = time(&arena, &memory, look, false, false);
            let [lent, populated] =
                [false, true].map(|populate| time(&arena, &memory, look, true, populate));
            let [copied, lent, populated] =
                [copied, lent, populated].map(|time| time.as_nanos() as f64 / 1e3);
            say(&format!(
                "{bytes:>9}  {look:<7} {copied:>10.1} {lent:>10.1} {populated:>10.1}"
            ));
        }
    }
}

/// Time from a send to its answer
fn time(arena: &Arena, memory: &Bytes, look: &str, shared: bool, populate: bool) -> Duration {
    let context = context(Some(arena), false);
    let listener = context.listen("127.0.0.1:0").unwrap();
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["borrow", &listener.local_address().to_string(), look])
        .arg(populate.to_string())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let endpoint = listener.accept().wait(None).unwrap().unwrap();
    let rounds = (BYTES / memory.len()).clamp(50, 2000);
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds + rounds / 10 {
        let segments = Segments::from_iter([memory.clone()]);
        let answer = endpoint.recv(TAG, TagMask::FULL, vec![0; 8]);
        let started = Instant::now();
        let send = match shared {
            true => endpoint.send_frames_shared(segments),
            false => endpoint.send_frames(segments),
        };
        answer.wait(None).unwrap().unwrap();
        times.push(started.elapsed());
        send.wait(None).unwrap().unwrap();
    }
    endpoint.close().wait(Some(Duration::from_secs(5)));
    child.wait().unwrap();
    times.drain(..rounds / 10);
    times.sort_unstable();
    times[times.len() / 2]
}

/// Receives, looks and answers
fn borrow(address: &str, look: &str, populate: bool) {
    let context = context(None, populate);
    let endpoint = context.connect(address).wait(None).unwrap().unwrap();
    while let Ok(message) = endpoint.recv_frames().wait(None).unwrap() {
        let segment = &message.segments[0];
        let seen: u64 = match look {
            "pages" => segment
                .iter()
                .step_by(4096)
                .map(|byte| u64::from(*byte))
                .sum(),
            "bytes" => {
                let (words, _) = segment.as_chunks();
                words
                    .iter()
                    .map(|word| u64::from_ne_bytes(*word))
                    .fold(0, u64::wrapping_add)
            }
            _ => 0,
        };
        endpoint.send(TAG, seen.to_ne_bytes().to_vec()).detach();
    }
}

fn context(arena: Option<&Arena>, populate: bool) -> Context {
    let mut config = Config::default();
    config.lanes = vec![LaneKind::Shm];
    config.arena = arena.cloned();
    config.populate_leases = populate;
    Context::new(config).unwrap()
}

fn say(line: &str) {
    let mut out = std::io::stdout();
    writeln!(out, "{line}").unwrap();
}

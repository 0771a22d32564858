//! Speed of one side of an encrypted stream, where the other costs next to nothing: with one CPU,
//! and with another for the calls of the system.
//!
//! The sender's peer throws away what comes without copying it (`MSG_TRUNC`). The receiver's has
//! encrypted all before, and has the kernel send it from memory (`sendfile`).
//!
//! ```text
//! cargo bench -p backhaul-testkit --bench tls_one_side
//! cargo bench -p backhaul-testkit --bench tls_one_side -- send always 0,1     # one of them
//! ```
//!
//! Needs two CPUs; the peer shares the second.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::env;
use std::fs::File;
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use backhaul::fuzzing::{TlsSession, tls_buffers_helped};
use backhaul::{Config, Tls, TlsHelpers};
use backhaul_testkit::tls;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use rustix::net::RecvFlags;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Bytes for each measurement
const TOTAL_BYTES: usize = 1 << 30;

/// Of a message, and what the link offers of it at once
const MESSAGE_BYTES: usize = 16 << 20;
const OFFERED_BYTES: usize = 1 << 20;

/// Bytes of one read: a frame of data
const FRAME_BYTES: usize = 256 << 10;

const ROUNDS: usize = 7;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|a| a != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["drain", address] => drain(address),
        ["pour", address] => pour(address),
        [direction, helpers, cpus] => measure(direction, helpers, cpus),
        _ => compare(),
    }
}

/// Each way by turns, in processes of their own
fn compare() {
    const WAYS: [(&str, &str); 3] = [("never", "0"), ("never", "0,1"), ("always", "0,1")];
    for direction in ["send", "receive"] {
        // A receiver has no help.
        let ways = if direction == "send" {
            &WAYS[..]
        } else {
            &WAYS[..1]
        };
        let mut rates = vec![Vec::new(); ways.len()];
        for _ in 0..ROUNDS {
            for ((helpers, cpus), rates) in ways.iter().zip(&mut rates) {
                let output = Command::new(env::current_exe().unwrap())
                    .args([direction, helpers, cpus])
                    .envs(tls::environment())
                    .stderr(Stdio::inherit())
                    .output()
                    .unwrap();
                let text = String::from_utf8(output.stdout).unwrap();
                let numbers = text.split_whitespace();
                rates.push(
                    numbers
                        .map(|text| text.parse::<f64>().unwrap())
                        .collect::<Vec<_>>(),
                );
            }
        }
        let alone = median(&rates[0], 0);
        for ((helpers, cpus), rates) in ways.iter().zip(&rates) {
            let rate = median(rates, 0);
            let mut all: Vec<f64> = rates.iter().map(|rates| rates[0]).collect();
            all.sort_by(f64::total_cmp);
            println!(
                "{direction}, helpers {helpers}, CPUs {cpus}: {rate:.2} GB/s ({:.2} to {:.2}), {:.2} times \
                 alone; a byte takes {:.3} ns of CPU time, {:.0} % of buffers by helpers",
                all[0],
                all[all.len() - 1],
                rate / alone,
                median(rates, 1),
                100.0 * median(rates, 2),
            );
        }
    }
}

fn median(rates: &[Vec<f64>], which: usize) -> f64 {
    let mut values: Vec<f64> = rates.iter().map(|rates| rates[which]).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One way: prints GB/s, nanoseconds of CPU time for a byte, and the share of buffers that helpers moved
fn measure(direction: &str, helpers: &str, cpus: &str) {
    let mut set = CpuSet::new();
    cpus.split(',')
        .for_each(|cpu| set.set(cpu.parse().unwrap()));
    sched_setaffinity(None, &set).unwrap();
    let helpers = match helpers {
        "never" => TlsHelpers::Never,
        _ => TlsHelpers::Always,
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let peer = if direction == "send" { "drain" } else { "pour" };
    let mut child = Command::new(env::current_exe().unwrap())
        .args([peer, &address])
        .envs(tls::environment())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let socket = listener.accept().unwrap().0;
    socket.set_nonblocking(true).unwrap();
    socket.set_nodelay(true).unwrap();
    let watched = socket.try_clone().unwrap();
    let mut session = TlsSession::accept(&side(), socket).unwrap();
    while !session.shake_hands().unwrap() {
        wait(&watched, PollFlags::IN);
    }
    session.share(helpers);
    let mut ready = [0];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    child.stdin.as_mut().unwrap().write_all(b"!").unwrap();

    let (began, used) = (Instant::now(), cpu_time());
    if direction == "send" {
        send(&mut session, &watched);
    } else {
        receive(&mut session, &watched);
    }
    let (took, used) = (began.elapsed(), cpu_time() - used);
    child.kill().unwrap();
    child.wait().unwrap();
    let buffers = TOTAL_BYTES as f64 / FRAME_BYTES as f64;
    println!(
        "{} {} {}",
        TOTAL_BYTES as f64 / took.as_nanos() as f64,
        used.as_nanos() as f64 / TOTAL_BYTES as f64,
        tls_buffers_helped() as f64 / buffers,
    );
}

fn send(session: &mut TlsSession, watched: &TcpStream) {
    let message = vec![7_u8; MESSAGE_BYTES];
    for _ in 0..TOTAL_BYTES / MESSAGE_BYTES {
        let mut sent = 0;
        while sent < MESSAGE_BYTES {
            let end = (sent + OFFERED_BYTES).min(MESSAGE_BYTES);
            match session.write(&[IoSlice::new(&message[sent..end])]) {
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    wait(watched, PollFlags::OUT);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn receive(session: &mut TlsSession, watched: &TcpStream) {
    let mut message = vec![0_u8; MESSAGE_BYTES];
    for _ in 0..TOTAL_BYTES / MESSAGE_BYTES {
        let mut received = 0;
        while received < MESSAGE_BYTES {
            let end = (received / FRAME_BYTES + 1) * FRAME_BYTES;
            let mut targets = [IoSliceMut::new(&mut message[received..end])];
            match session.read(&mut targets).unwrap().unwrap() {
                0 if session.holds_news() => {}
                0 => wait(watched, PollFlags::IN),
                bytes => received += bytes,
            }
        }
    }
    assert!(message.iter().all(|byte| *byte == 7));
}

/// Throws away what comes
fn drain(address: &str) {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut session = TlsSession::connect(&side(), socket.try_clone().unwrap()).unwrap();
    while !session.shake_hands().unwrap() {
        wait(&socket, PollFlags::IN);
    }
    go();
    socket.set_nonblocking(false).unwrap();
    let mut nowhere = vec![0; 4 << 20];
    while rustix::net::recv(&socket, &mut nowhere[..], RecvFlags::TRUNC).is_ok_and(|(_, n)| n > 0) {
    }
}

/// Sends what has been encrypted before
fn pour(address: &str) {
    let outside = TcpStream::connect(address).unwrap();
    outside.set_nonblocking(true).unwrap();
    let (inner, between) = UnixStream::pair().unwrap();
    inner.set_nonblocking(true).unwrap();
    between.set_nonblocking(true).unwrap();
    let mut session = TlsSession::connect(&side(), TcpStream::from(OwnedFd::from(inner))).unwrap();
    let mut is_over = false;
    while !is_over {
        is_over = session.shake_hands().unwrap();
        carry(&between, &outside);
        carry(&outside, &between);
    }
    let mut sealed = File::from(memfd_create("sealed", MemfdFlags::empty()).unwrap());
    let plain = vec![7_u8; FRAME_BYTES];
    for _ in 0..TOTAL_BYTES / FRAME_BYTES {
        let mut sent = 0;
        while sent < FRAME_BYTES {
            match session.write(&[IoSlice::new(&plain[sent..])]) {
                Ok(bytes) => sent += bytes,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            carry(&between, &sealed);
        }
    }
    carry(&between, &sealed);
    sealed.flush().unwrap();
    go();
    outside.set_nonblocking(false).unwrap();
    let mut offset = 0;
    while sendfile(&outside, &sealed, Some(&mut offset), 8 << 20).is_ok_and(|bytes| bytes > 0) {}
    std::thread::sleep(Duration::from_secs(60));
}

/// Moves what is there
fn carry(mut from: impl Read, mut to: impl Write) {
    let mut bytes = vec![0; 1 << 20];
    while let Ok(count) = from.read(&mut bytes)
        && count > 0
    {
        to.write_all(&bytes[..count]).unwrap();
    }
}

/// Says that this side is ready, and waits for the other
fn go() {
    println!();
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let mut set = CpuSet::new();
    set.set(1);
    sched_setaffinity(None, &set).unwrap();
}

fn side() -> Tls {
    let mut config = Config::default();
    tls::configure(&mut config);
    config.tls.unwrap()
}

fn wait(socket: &TcpStream, flags: PollFlags) {
    poll(&mut [PollFd::new(socket, flags)], None).unwrap();
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

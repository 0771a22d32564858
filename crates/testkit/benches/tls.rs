//! Cost of encryption on a stream: messages one way between two processes, over tls and tcp, with
//! the CPU time of each side, beside the time that AES-256-GCM takes alone on one core.
//!
//! ```text
//! cargo bench -p backhaul-testkit --bench tls
//! cargo bench -p backhaul-testkit --bench tls -- tls 16777216 2000     # one of them, for perf
//! ```
//!
//! CPU time is what says where a core is the limit: it is the same on a machine that others use, which
//! the rate is not.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::collections::VecDeque;
use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use backhaul::{Config, Context, LaneKind, Tag, TagMask};
use backhaul_testkit::tls;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustix::time::{ClockId, clock_gettime};

const TAG: Tag = Tag(1);

/// Messages under way
const DEPTH: usize = 4;

/// Bytes for each measurement
const TOTAL_BYTES: usize = 4 << 30;

/// Of a full record
const RECORD_BYTES: usize = 16 << 10;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).filter(|a| a != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["take", address, lane, bytes, messages] => {
            take(
                address,
                lane,
                bytes.parse().unwrap(),
                messages.parse().unwrap(),
            );
        }
        [lane, bytes, messages] => {
            send(lane, bytes.parse().unwrap(), messages.parse().unwrap());
        }
        _ => {
            let alone = aes_gcm();
            for bytes in [1 << 20, 16 << 20] {
                for lane in ["tcp", "tls"] {
                    let [sender, receiver] = send(lane, bytes, TOTAL_BYTES / bytes);
                    if lane == "tls" {
                        println!(
                            "      of the sender's time {:.0} % are AES-GCM, of the receiver's {:.0} %",
                            100.0 * alone[0] / sender,
                            100.0 * alone[1] / receiver,
                        );
                    }
                }
            }
        }
    }
}

fn context(lane: &str) -> Context {
    let mut config = Config::default();
    if lane == "tls" {
        tls::configure(&mut config);
    } else {
        config.lanes = vec![LaneKind::Tcp];
    }
    Context::new(config).unwrap()
}

/// Sends messages to a process of its own; nanoseconds of CPU time for a byte, of both sides
fn send(lane: &str, bytes: usize, messages: usize) -> [f64; 2] {
    let context = context(lane);
    let listener = context.listen("127.0.0.1:0").unwrap();
    let address = listener.local_address().to_string();
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["take", &address, lane])
        .args([bytes.to_string(), messages.to_string()])
        .envs(tls::environment())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let endpoint = listener.accept().wait(None).unwrap().unwrap();
    let payload = backhaul::Bytes::from(vec![7_u8; bytes]);
    // Until the other side has its memory, and each its buffers.
    for _ in 0..DEPTH {
        endpoint
            .send(TAG, payload.clone())
            .wait(None)
            .unwrap()
            .unwrap();
    }
    let (began, used) = (Instant::now(), cpu_time());
    let mut under_way = VecDeque::new();
    for _ in 0..messages {
        if under_way.len() == DEPTH {
            let oldest: backhaul::Request<_, _> = under_way.pop_front().unwrap();
            oldest.wait(None).unwrap().unwrap();
        }
        under_way.push_back(endpoint.send(TAG, payload.clone()));
    }
    for sent in under_way {
        sent.wait(None).unwrap().unwrap();
    }
    let used = cpu_time() - used;
    let mut line = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    let took = began.elapsed();
    child.wait().unwrap();

    let total = (bytes * messages) as f64;
    let sender = used.as_nanos() as f64 / total;
    let receiver = line.trim().parse::<f64>().unwrap() / total;
    println!(
        "{lane}, {bytes:>8} bytes: {:.2} GB/s; a byte takes the sender {sender:.3} ns of CPU time, the \
         receiver {receiver:.3}",
        total / took.as_nanos() as f64,
    );
    [sender, receiver]
}

/// Takes messages, and prints the nanoseconds of CPU time that took
fn take(address: &str, lane: &str, bytes: usize, messages: usize) {
    let context = context(lane);
    let endpoint = context.connect(address).wait(None).unwrap().unwrap();
    let mut posted: VecDeque<_> = (0..DEPTH)
        .map(|_| endpoint.recv(TAG, TagMask::FULL, vec![0_u8; bytes]))
        .collect();
    let mut began = Duration::ZERO;
    for number in 0..DEPTH + messages {
        if number == DEPTH {
            began = cpu_time();
        }
        let received = posted.pop_front().unwrap().wait(None).unwrap().unwrap();
        let buffer: Vec<u8> = received.into_buffer().unwrap();
        if number < messages {
            posted.push_back(endpoint.recv(TAG, TagMask::FULL, buffer));
        }
    }
    println!("{}", (cpu_time() - began).as_nanos());
}

/// Nanoseconds that encrypting and decrypting a byte takes, in full records, by the code that TLS uses
fn aes_gcm() -> [f64; 2] {
    let key = || LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[1; 32]).unwrap());
    let (key, nonce) = (key(), || Nonce::assume_unique_for_key([2; 12]));
    let records = (1 << 30) / RECORD_BYTES;
    let mut plain = vec![3_u8; RECORD_BYTES];
    let began = cpu_time();
    for _ in 0..records {
        let tag = key.seal_in_place_separate_tag(nonce(), Aad::empty(), &mut plain);
        let _ = std::hint::black_box(tag.unwrap());
    }
    let sealed_at = cpu_time();
    let mut record = vec![3_u8; RECORD_BYTES];
    key.seal_in_place_append_tag(nonce(), Aad::empty(), &mut record)
        .unwrap();
    let mut place = record.clone();
    let mut opening = Duration::ZERO;
    for _ in 0..records {
        place.copy_from_slice(&record);
        let began = cpu_time();
        std::hint::black_box(
            key.open_in_place(nonce(), Aad::empty(), &mut place)
                .unwrap(),
        );
        opening += cpu_time() - began;
    }
    let times = [sealed_at - began, opening];
    let [seal, open] = times.map(|time| time.as_nanos() as f64 / (records * RECORD_BYTES) as f64);
    println!(
        "AES-256-GCM alone, records of {RECORD_BYTES} bytes: {:.2} GB/s to encrypt, {:.2} GB/s to decrypt",
        1.0 / seal,
        1.0 / open,
    );
    [seal, open]
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

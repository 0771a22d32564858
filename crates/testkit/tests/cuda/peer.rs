//! Another process with the driver, which runs commands and reports the results.

use std::process::{Child, Stdio};
use std::sync::Arc;

use backhaul::{
    Bytes, CarrierKind, Config, Context, Endpoint, LaneKind, Segment, Segments, Tag, TagMask, cuda,
};
use backhaul_testkit::harness::LOOPBACK;
use backhaul_testkit::{Finish, pattern, ucx};

use crate::driver::{self, Kind, Memory};

/// A process that runs [`serve`], ended when it is dropped
pub(crate) struct Peer {
    child: Child,
    pub(crate) endpoint: Endpoint,
}

/// Result of a peer's receive: the bytes, or the error text
pub(crate) type Answer = Result<Vec<u8>, String>;

/// The lane between a test and its peer: that in memory of the host, or what `LANE` names
pub(crate) fn lane() -> LaneKind {
    match std::env::var("LANE").as_deref() {
        Ok("ucx") => LaneKind::Ucx,
        _ => LaneKind::Shm,
    }
}

/// The carrier of devices on that lane
pub(crate) fn carrier() -> CarrierKind {
    match lane() {
        LaneKind::Ucx => CarrierKind::UcxCuda,
        _ => CarrierKind::Cuda,
    }
}

pub(crate) fn config(lane: LaneKind) -> Config {
    let mut config = Config::default();
    config.lanes = vec![lane];
    config.carriers = if lane == LaneKind::Ucx {
        // Over which transports is in the environment of both sides.
        ucx::configure(&mut config);
        vec![CarrierKind::Ucx, CarrierKind::UcxCuda]
    } else {
        vec![
            CarrierKind::Lease,
            CarrierKind::SingleCopy,
            CarrierKind::Cuda,
        ]
    };
    if std::env::var("SPIN").is_ok() {
        config.spin = std::time::Duration::from_micros(50);
    } else {
        config.spin = std::time::Duration::ZERO;
    }
    config
}

impl Peer {
    pub(crate) fn start(context: &Context) -> Self {
        Self::start_with(context, &[])
    }

    pub(crate) fn start_with(context: &Context, environment: &[(&str, &str)]) -> Self {
        let listener = context.listen(LOOPBACK).unwrap();
        let child = driver::command("peer", environment)
            .env(ADDRESS, listener.local_address().to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let endpoint = listener.accept().done().unwrap();
        assert_eq!(endpoint.lane(), lane(), "{}", endpoint.info().reason);
        assert!(endpoint.info().carriers.contains(&carrier()));
        Self { child, endpoint }
    }

    /// Has it do something
    pub(crate) fn tell(&self, what: &str) {
        let text = Bytes::copy_from_slice(what.as_bytes());
        self.endpoint.send(COMMAND, text).done().unwrap();
    }

    /// Returns its report on the last message that it received
    pub(crate) fn answer(&self) -> Answer {
        let message = self
            .endpoint
            .recv_message(GOOD, TagMask(!1))
            .done()
            .unwrap();
        let bytes = message.segments[0].to_vec();
        match message.tag {
            Some(GOOD) => Ok(bytes),
            _ => Err(String::from_utf8(bytes).unwrap()),
        }
    }

    /// Has it receive what is sent, and say what that was
    pub(crate) fn echo(&self, how: &str, segments: Segments) -> Answer {
        self.tell(how);
        self.endpoint.send_segments(DATA, segments).done().unwrap();
        self.answer()
    }

    /// Returns whether it has pinned memory of the host, which only the fake driver shows
    pub(crate) fn has_pinned(&self) -> bool {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap();
        maps.contains("memfd:fake_cuda:host")
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs commands until the other side closes
pub(crate) fn serve() {
    let context = Context::new(config(lane())).unwrap();
    let address = std::env::var(ADDRESS).unwrap();
    let endpoint = context.connect(&address).done().unwrap();
    driver::enter(0);
    while let Ok(message) = endpoint.recv_message(COMMAND, TagMask::FULL).done() {
        let text = String::from_utf8(message.segments[0].to_vec()).unwrap();
        let words: Vec<_> = text.split_whitespace().collect();
        let number = |index: usize| words[index].parse::<usize>().unwrap();
        if words[0] == "send" {
            send(&endpoint, Kind::ALL[number(1)], number(2));
            continue;
        }
        let received = match words[0] {
            "into" => into(&endpoint, number(1), None),
            // Its own work on the memory is not over when the message comes.
            "into-busy" => into(&endpoint, number(1), Some(driver::stream())),
            "host" => {
                let request = endpoint.recv(DATA, TagMask::FULL, vec![0; number(1)]);
                let received = request.done();
                received
                    .map(|received| received.into_buffer::<Vec<u8>>().unwrap())
                    .map_err(|error| error.to_string())
            }
            "message" => message_bytes(&endpoint),
            other => panic!("told to {other}"),
        };
        let (tag, bytes) = match received {
            Ok(bytes) => (GOOD, bytes),
            Err(text) => (BAD, text.into_bytes()),
        };
        if endpoint.send(tag, Bytes::from(bytes)).done().is_err() {
            return;
        }
    }
}

/// Receives into memory of a device
fn into(endpoint: &Endpoint, bytes: usize, stream: Option<u64>) -> Answer {
    let memory = Arc::new(Memory::new(Kind::Plain, bytes));
    if let Some(stream) = stream {
        memory.fill_later(0xEE, stream);
    }
    let target = memory.part(0, bytes, stream);
    let received = endpoint
        .recv_boxed(DATA, TagMask::FULL, Box::new(target))
        .done();
    let received = received.map_err(|error| error.to_string())?;
    assert_eq!(received.bytes, bytes);
    Ok(memory.read())
}

/// Receives whatever comes, and puts its segments in a row
fn message_bytes(endpoint: &Endpoint) -> Answer {
    let message = endpoint.recv_message(DATA, TagMask::FULL).done();
    let message = message.map_err(|error| error.to_string())?;
    let mut parts: Vec<_> = message.segments.iter().map(|host| host.to_vec()).collect();
    for (place, memory) in &message.device_segments {
        let mut bytes = vec![0; memory.len()];
        cuda::download(memory, &mut bytes).unwrap();
        parts[*place] = bytes;
    }
    Ok(parts.concat())
}

/// Sends memory, and then overwrites it, as a program may
fn send(endpoint: &Endpoint, kind: Kind, bytes: usize) {
    let memory = Arc::new(Memory::new(kind, bytes));
    memory.fill(&pattern::make(1, bytes));
    let sent = endpoint.send(DATA, Segment::Device(memory.whole())).done();
    memory.fill(&vec![0xAA; bytes]);
    sent.unwrap();
}

const ADDRESS: &str = "CUDA_TEST_PEER";
pub(crate) const COMMAND: Tag = Tag(100);
pub(crate) const DATA: Tag = Tag(1);
const GOOD: Tag = Tag(2);
const BAD: Tag = Tag(3);

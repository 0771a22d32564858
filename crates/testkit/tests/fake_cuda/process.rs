//! Processes that find the fake driver, and the wire between two of them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use backhaul_testkit::fake_cuda::library_folder;
use backhaul_testkit::watchdog::Watchdog;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Returns whether this is the process that a test is to run in; if not, it has run there
pub(crate) fn is_within(path: &str, environment: &[(&str, &str)]) -> bool {
    if std::env::var(WITHIN).is_ok_and(|within| within == path) {
        return true;
    }
    let _watchdog = Watchdog::start(path);
    let output = command(path, environment).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    // A name that no test has would run none, and well.
    assert!(
        output.status.success() && told.contains(" 1 passed"),
        "{path}: {}\n{told}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr),
    );
    false
}

/// Another process of a test, which runs a function of it at the other end of a wire
pub(crate) struct Peer {
    child: Child,
    pub(crate) wire: Wire,
}

impl Peer {
    /// Starts the process of a test again, as a peer
    pub(crate) fn start(environment: &[(&str, &str)]) -> Self {
        let path = std::env::var(WITHIN).expect("a test runs in a process of its own");
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let child = command(&path, environment)
            .env(PEER, "1")
            .stdin(Stdio::from(theirs))
            .spawn()
            .unwrap();
        let wire = Wire(ours);
        Self { child, wire }
    }

    /// The wire to the process that started this one, if it is a peer
    pub(crate) fn here() -> Option<Wire> {
        std::env::var_os(PEER)?;
        Some(Wire(std::io::stdin().as_fd().try_clone_to_owned().unwrap()))
    }

    /// Waits until it has ended, and well
    pub(crate) fn end(mut self) {
        assert!(self.child.wait().unwrap().success(), "the peer failed");
    }

    /// Ends it where it is
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Messages between two processes
pub(crate) struct Wire(OwnedFd);

impl Wire {
    pub(crate) fn send(&self, bytes: &[u8]) {
        self.send_with(bytes, &[]);
    }

    /// Sends bytes with descriptors
    pub(crate) fn send_with(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let flags = SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags).unwrap();
    }

    pub(crate) fn recv(&self) -> Vec<u8> {
        self.recv_with().0
    }

    /// Receives bytes with descriptors
    pub(crate) fn recv_with(&self) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut bytes = [0; 256];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
        .unwrap();
        assert!(received.bytes > 0, "the other process is gone");
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        (bytes[..received.bytes].to_vec(), descriptors)
    }
}

/// This program, as one test of it, with the driver where a program finds one
fn command(path: &str, environment: &[(&str, &str)]) -> Command {
    // The name of a test has no crate in front.
    let (_, name) = path.split_once("::").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    for (key, _) in std::env::vars() {
        if key.starts_with("FAKE_CUDA_") || key == "CUDA_VISIBLE_DEVICES" {
            command.env_remove(key);
        }
    }
    command
        .args([name, "--exact", "--nocapture"])
        .env(WITHIN, path)
        .env("LD_LIBRARY_PATH", library_folder())
        .envs(environment.iter().copied());
    command
}

const WITHIN: &str = "BACKHAUL_FAKE_CUDA_TEST";
const PEER: &str = "BACKHAUL_FAKE_CUDA_PEER";

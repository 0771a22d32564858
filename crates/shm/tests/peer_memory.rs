//! The memory of another process, which may name wrong addresses, forbid it, or be killed
//!
//! The other process is this test binary, started again for `other_process` alone; it inherits a
//! Unix socket as its standard input, over which it says where its memory is.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::io::{IoSliceMut, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use backhaul_shm::peer_memory::{PeerMemory, PeerMemoryError, Probe, TOKEN_BYTES};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

const PART: &str = "BACKHAUL_SHM_TEST_PART";
const PAGE_BYTES: usize = 64 << 10;
const DATA_BYTES: usize = 64 * PAGE_BYTES;

#[test]
fn bytes_of_another_process_fill_the_targets_in_order() {
    let other = Other::start("show");
    let Some(memory) = other.open() else { return };
    let mut all = vec![0; DATA_BYTES];
    assert_eq!(
        memory
            .read(other.data, &mut [IoSliceMut::new(&mut all)])
            .unwrap(),
        DATA_BYTES
    );
    assert!(all.iter().copied().eq((0..DATA_BYTES).map(byte_at)));
    let mut parts = [vec![0; 3], vec![], vec![0; 100_000], vec![0; 1]];
    let bytes = 3 + 100_000 + 1;
    assert_eq!(
        memory
            .read(other.data + 5, &mut slices(&mut parts))
            .unwrap(),
        bytes
    );
    assert!(
        parts
            .iter()
            .flatten()
            .copied()
            .eq((5..5 + bytes).map(byte_at))
    );
    assert!(memory.is_alive());
    assert_eq!(memory.pid(), other.pid());
}

#[test]
fn targets_may_be_more_than_the_kernel_takes_at_once() {
    let other = Other::start("show");
    let Some(memory) = other.open() else { return };
    let mut parts: Vec<Vec<u8>> = (0..5000).map(|at| vec![0; at % 3]).collect();
    // More empty ones than the kernel takes.
    parts.splice(0..0, (0..2000).map(|_| Vec::new()));
    let bytes: usize = parts.iter().map(Vec::len).sum();
    assert_eq!(
        memory.read(other.data, &mut slices(&mut parts)).unwrap(),
        bytes
    );
    assert!(parts.iter().flatten().copied().eq((0..bytes).map(byte_at)));
}

#[test]
fn reading_nothing_succeeds_anywhere() {
    let other = Other::start("show");
    let Some(memory) = other.open() else { return };
    for address in [0, other.data, u64::MAX] {
        assert_eq!(memory.read(address, &mut []).unwrap(), 0);
        assert_eq!(
            memory
                .read(address, &mut [IoSliceMut::new(&mut [])])
                .unwrap(),
            0
        );
    }
}

#[test]
fn address_without_readable_memory_is_named() {
    let other = Other::start("show");
    let Some(memory) = other.open() else { return };
    let end = other.data + DATA_BYTES as u64;
    let kernel = u64::MAX - (1 << 20);
    // Where the read starts, and where it fails.
    for (from, failing, bytes) in [
        (end, end, 8),
        (end - 3 * PAGE_BYTES as u64 - 1, end, 7 * PAGE_BYTES),
        (0, 0, 8),
        (u64::MAX - 2, u64::MAX - 2, 8),
        (kernel, kernel, 8),
    ] {
        let mut target = vec![0; bytes];
        let error = memory
            .read(from, &mut [IoSliceMut::new(&mut target)])
            .unwrap_err();
        let PeerMemoryError::BadAddress {
            address,
            bytes: left,
            ..
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!(address, failing);
        assert_eq!(left, bytes as u64 - (failing - from));
    }
    // The next read is none the worse for it.
    assert_eq!(
        memory
            .read(other.data, &mut [IoSliceMut::new(&mut [0; 8])])
            .unwrap(),
        8
    );
}

#[test]
fn process_without_the_probe_is_refused() {
    let other = Other::start("show");
    if other.open().is_none() {
        return;
    }
    let ours = Probe::of_this_process().unwrap();
    let third = Other::start("show");
    for (pid, address, token) in [
        (other.pid(), other.probe, ours.token()),
        (other.pid(), other.data, other.token),
        (other.pid(), 8, other.token),
        (other.pid(), u64::MAX, other.token),
        (std::process::id(), ours.address(), other.token),
        (third.pid(), other.probe, other.token),
    ] {
        let error = PeerMemory::open(pid, address, &token).unwrap_err();
        assert!(
            matches!(error, PeerMemoryError::WrongProcess { pid: of, address: at }
                if (of, at) == (pid, address)),
            "{error}"
        );
    }
}

#[test]
fn process_id_that_is_none_is_refused() {
    for pid in [0, u32::MAX, 1 << 31, i32::MAX as u32] {
        let error = PeerMemory::open(pid, 8, &[0; TOKEN_BYTES]).unwrap_err();
        assert!(
            matches!(error, PeerMemoryError::Gone { pid: of } if of == pid),
            "{error}"
        );
    }
}

#[test]
fn killed_process_is_gone_before_and_after_it_is_waited_for() {
    let mut other = Other::start("show");
    let Some(memory) = other.open() else { return };
    other.child.kill().unwrap();
    // The kernel closes the socket after it has given the memory back, and before its parent is
    // told: a zombie by then, or about to be one.
    assert_eq!(other.socket.read(&mut [0]).unwrap_or(0), 0);
    let is_gone = |error| matches!(error, PeerMemoryError::Gone { .. });
    let read = || memory.read(other.data, &mut [IoSliceMut::new(&mut [0; 8])]);
    assert!(is_gone(read().unwrap_err()));
    other.child.wait().unwrap();
    assert!(!memory.is_alive());
    assert!(is_gone(read().unwrap_err()));
    let again = PeerMemory::open(memory.pid(), other.probe, &other.token);
    assert!(is_gone(again.unwrap_err()));
}

#[test]
fn process_killed_while_it_is_read_gives_its_own_bytes_or_none() {
    for round in 0..10 {
        let mut other = Other::start("show");
        let Some(memory) = other.open() else { return };
        let mut target = vec![0; DATA_BYTES];
        let mut reads = 0;
        let error = loop {
            match memory.read(other.data, &mut [IoSliceMut::new(&mut target)]) {
                Ok(_) => assert!(target.iter().copied().eq((0..DATA_BYTES).map(byte_at))),
                Err(error) => break error,
            }
            reads += 1;
            if reads == 1 + round % 3 {
                other.child.kill().unwrap();
            }
        };
        // Its memory goes page by page.
        assert!(
            matches!(
                error,
                PeerMemoryError::Gone { .. } | PeerMemoryError::BadAddress { .. }
            ),
            "{error}"
        );
    }
}

#[test]
fn process_that_forbids_it_is_not_read() {
    let other = Other::start("forbid");
    // A thread that is not of the superuser, if this process is.
    let (pid, probe, token) = (other.pid(), other.probe, other.token);
    let opened = std::thread::spawn(move || {
        let nobody: libc::c_long = 65534;
        // SAFETY: changes the user of this thread, which nothing else in the process relies on.
        unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) };
        PeerMemory::open(pid, probe, &token)
    });
    let error = opened.join().unwrap().unwrap_err();
    assert!(
        matches!(error, PeerMemoryError::NotPermitted { .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("kernel.yama.ptrace_scope") && text.contains("container"),
        "{text}"
    );
}

#[test]
fn probe_is_one_for_each_process_and_stays_where_it_is() {
    let probe = Probe::of_this_process().unwrap();
    let threads: Vec<_> = (0..4)
        .map(|_| std::thread::spawn(|| Probe::of_this_process().unwrap().address()))
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), probe.address());
    }
    assert_eq!(Probe::of_this_process().unwrap().token(), probe.token());
    assert_ne!(Other::start("show").token, probe.token());
}

#[test]
#[ignore = "the other process of these tests"]
fn other_process() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    match part.as_str() {
        "show" => (),
        "forbid" => set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap(),
        other => panic!("unknown part {other:?}"),
    }
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let probe = Probe::of_this_process().unwrap();
    let mut said = [0; 16 + TOKEN_BYTES];
    said[..8].copy_from_slice(&probe.address().to_ne_bytes());
    said[8..16].copy_from_slice(&(data() as u64).to_ne_bytes());
    said[16..].copy_from_slice(&probe.token());
    socket.write_all(&said).unwrap();
    // Until the other side is gone.
    let _ended = socket.read(&mut [0]);
}

/// Memory that is followed by none, returning its address
fn data() -> usize {
    let (flags, readable) = (MapFlags::PRIVATE, ProtFlags::READ | ProtFlags::WRITE);
    let bytes = DATA_BYTES + 16 * PAGE_BYTES;
    // SAFETY: a null hint without MAP_FIXED replaces no mapping there is.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, readable, flags) }.unwrap();
    // SAFETY: the end of what was just mapped, of which there is no reference.
    unsafe { munmap(start.add(DATA_BYTES), bytes - DATA_BYTES) }.unwrap();
    // SAFETY: mapped, zero, and never unmapped.
    let data = unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), DATA_BYTES) };
    for (at, byte) in data.iter_mut().enumerate() {
        *byte = byte_at(at);
    }
    data.as_ptr().expose_provenance()
}

fn byte_at(position: usize) -> u8 {
    (position % 251) as u8
}

fn slices(parts: &mut [Vec<u8>]) -> Vec<IoSliceMut<'_>> {
    parts.iter_mut().map(|part| IoSliceMut::new(part)).collect()
}

/// A process that shows its memory until this is dropped
struct Other {
    child: Child,
    socket: UnixStream,
    probe: u64,
    data: u64,
    token: [u8; TOKEN_BYTES],
}

impl Other {
    fn start(part: &str) -> Self {
        let (mut socket, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "other_process"])
            .env(PART, part)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = [0; 16 + TOKEN_BYTES];
        socket.read_exact(&mut said).unwrap();
        Self {
            child,
            socket,
            probe: u64::from_ne_bytes(said[..8].try_into().unwrap()),
            data: u64::from_ne_bytes(said[8..16].try_into().unwrap()),
            token: said[16..].try_into().unwrap(),
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// None, with the reason, where the system does not let a process read its own child
    fn open(&self) -> Option<PeerMemory> {
        match PeerMemory::open(self.pid(), self.probe, &self.token) {
            Err(error @ (PeerMemoryError::NotPermitted { .. } | PeerMemoryError::Unsupported)) => {
                eprintln!("skipped: {error}");
                None
            }
            opened => Some(opened.unwrap()),
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

//! Two peers that encrypt, and an attacker in between who changes the bytes.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::LazyLock;

use backhaul::fuzzing::TlsSession;
use backhaul::{Tls, TlsFailure, TlsVersion};

use super::tls::{VERSIONS, side, sockets};
use crate::Input;

/// The bytes read are the bytes sent, from their beginning, however many were changed; all of them
/// if none was
pub(super) fn tls_between(data: &[u8]) {
    let mut input = Input::new(data);
    let settings = &SIDES[input.below(2)];
    let read_bytes = 64 + 97 * usize::from(input.byte());
    let piece_bytes = 16 + 13 * usize::from(input.byte());
    let mut routes = [Route::default(), Route::default()];
    let mut ends = [false, true].map(|accepts| {
        let (socket, middle) = sockets();
        (End::new(settings, accepts, socket, &mut input), middle)
    });
    while !input.is_empty() {
        let change = Change::read(&mut input);
        routes[input.below(2)].changes.push(change);
    }
    for route in &mut routes {
        route.changes.sort_by_key(|change| change.at);
    }

    let mut rounds = 0;
    loop {
        let mut has_moved = false;
        for (end, _) in &mut ends {
            has_moved |= end.go_on(read_bytes);
        }
        let [(_, near), (_, far)] = &mut ends;
        has_moved |= routes[0].carry(near, far, piece_bytes);
        has_moved |= routes[1].carry(far, near, piece_bytes);
        if !has_moved {
            break;
        }
        rounds += 1;
        assert!(rounds < ROUNDS_MAX, "it comes to no end");
    }

    let [(near, _), (far, _)] = &ends;
    for (from, to) in [(near, far), (far, near)] {
        assert!(from.says.starts_with(&to.heard), "it was not said");
        if routes.iter().all(|route| route.changed == 0) {
            assert!(to.is_open && to.failure.is_none(), "{:?}", to.failure);
            assert_eq!(to.heard.len(), from.says.len());
        }
    }
}

/// One of the two
struct End {
    session: TlsSession,
    socket: TcpStream,
    /// The handshake is over
    is_open: bool,
    is_over: bool,
    failure: Option<io::ErrorKind>,
    says: Vec<u8>,
    /// Of what it says, so much has been taken
    said_bytes: usize,
    /// Bytes that it offers at once
    part_bytes: usize,
    heard: Vec<u8>,
}

impl End {
    fn new(settings: &Tls, accepts: bool, socket: TcpStream, input: &mut Input<'_>) -> Self {
        let (bytes, part_bytes) = (usize::from(input.short()), 1 + usize::from(input.short()));
        let own = socket.try_clone().unwrap();
        Self {
            session: match accepts {
                true => TlsSession::accept(settings, socket).unwrap(),
                false => TlsSession::connect(settings, socket).unwrap(),
            },
            socket: own,
            is_open: false,
            is_over: false,
            failure: None,
            says: (0..bytes).map(|at| (at % 251) as u8).collect(),
            said_bytes: 0,
            part_bytes,
            heard: Vec::new(),
        }
    }

    /// Does what there is to do; whether that was anything
    fn go_on(&mut self, read_bytes: usize) -> bool {
        if self.is_over {
            return false;
        }
        match self.exchange(read_bytes) {
            Ok(has_moved) => has_moved,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                let is_typed = error.get_ref().is_none_or(|inner| inner.is::<TlsFailure>());
                assert!(is_typed, "{error:?}");
                self.failure = Some(error.kind());
                self.end();
                true
            }
        }
    }

    fn exchange(&mut self, read_bytes: usize) -> io::Result<bool> {
        if !self.is_open {
            self.is_open = self.session.shake_hands()?;
            return Ok(self.is_open);
        }
        let mut has_moved = false;
        if self.said_bytes < self.says.len() {
            let rest = &self.says[self.said_bytes..];
            let parts = rest.chunks(self.part_bytes).take(PARTS_MAX);
            let parts: Vec<_> = parts.map(IoSlice::new).collect();
            match self.session.write(&parts) {
                Ok(bytes) => {
                    assert!(bytes <= rest.len());
                    self.said_bytes += bytes;
                    has_moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        let mut memory = vec![0; read_bytes];
        let (first, second) = memory.split_at_mut(read_bytes / 3);
        let mut buffers = [IoSliceMut::new(first), IoSliceMut::new(second)];
        match self.session.read(&mut buffers)? {
            Some(0) => assert!(
                !self.session.holds_news(),
                "there is more, and it is not given"
            ),
            Some(bytes) => {
                self.heard.extend_from_slice(&memory[..bytes]);
                has_moved = true;
            }
            None => {
                self.end();
                has_moved = true;
            }
        }
        Ok(has_moved)
    }

    /// Is asked for more, as a peer that has failed may be: what came before is there still
    fn end(&mut self) {
        let mut memory = [0; 4096];
        let mut is_told = false;
        while self.is_open {
            match self.session.read(&mut [IoSliceMut::new(&mut memory)]) {
                Ok(Some(bytes @ 1..)) => {
                    assert!(!is_told, "more comes after the end");
                    self.heard.extend_from_slice(&memory[..bytes]);
                }
                Ok(None) if !is_told => is_told = true,
                _ => break,
            }
        }
        self.session.say_end();
        let _ = self.socket.shutdown(Shutdown::Write);
        self.is_over = true;
    }
}

/// Bytes on their way in one direction
#[derive(Default)]
struct Route {
    passed: u64,
    /// A piece, or what there was no room for of it
    held: Vec<u8>,
    changes: Vec<Change>,
    /// Changes that have been made
    changed: usize,
    is_cut: bool,
}

/// Change at some byte of a route
#[derive(Clone, Copy, Debug)]
struct Change {
    at: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Alter(u8),
    Leave(u16),
    Insert(u8, u16),
    Cut,
}

impl Change {
    fn read(input: &mut Input<'_>) -> Self {
        let at = match input.flag() {
            // A handshake, then a few records
            true => u64::from(input.short()) % 2048,
            false => u64::from(input.short()),
        };
        let kind = match input.below(8) {
            0..=3 => Kind::Alter(input.byte().max(1)),
            4 => Kind::Leave(1 + input.short() % 512),
            5 | 6 => Kind::Insert(input.byte(), 1 + input.short() % 512),
            _ => Kind::Cut,
        };
        Self { at, kind }
    }
}

impl Route {
    /// Carries what is there on, changed; whether there was anything
    fn carry(&mut self, from: &mut TcpStream, to: &mut TcpStream, piece_bytes: usize) -> bool {
        let mut bytes = vec![0; piece_bytes];
        let mut has_moved = false;
        while !self.is_cut {
            while !self.held.is_empty() {
                match to.write(&self.held) {
                    Ok(went) => drop(self.held.drain(..went)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return has_moved,
                    // The peer is gone.
                    Err(_) => self.held.clear(),
                }
                has_moved = true;
            }
            let is_last = match from.read(&mut bytes) {
                Ok(0) => true,
                Ok(came) => {
                    self.held.extend(&bytes[..came]);
                    self.change()
                }
                Err(_) => return has_moved,
            };
            if is_last {
                // Little is left of it, and there is room.
                let _ = to.write_all(&self.held);
                self.cut(to);
            }
            has_moved = true;
        }
        has_moved
    }

    fn cut(&mut self, to: &TcpStream) {
        self.is_cut = true;
        let _ = to.shutdown(Shutdown::Write);
    }

    /// Makes the changes that are within the piece held; whether nothing comes after it
    fn change(&mut self) -> bool {
        let piece = &mut self.held;
        let end = self.passed + piece.len() as u64;
        // From behind, so that what comes before keeps its place.
        let mine = self.changes.partition_point(|change| change.at < end);
        let mut is_cut = false;
        for change in self.changes.drain(..mine).rev() {
            let Some(at) = change.at.checked_sub(self.passed) else {
                continue;
            };
            let at = (at as usize).min(piece.len());
            self.changed += 1;
            match change.kind {
                Kind::Alter(by) => {
                    if let Some(byte) = piece.get_mut(at) {
                        *byte ^= by;
                    }
                }
                Kind::Leave(bytes) => {
                    piece.drain(at..piece.len().min(at + usize::from(bytes)));
                }
                Kind::Insert(byte, bytes) => {
                    piece.splice(at..at, std::iter::repeat_n(byte, bytes.into()));
                }
                Kind::Cut => {
                    piece.truncate(at);
                    is_cut = true;
                }
            }
        }
        self.passed = end;
        is_cut
    }
}

/// Settings of both, for each version
static SIDES: LazyLock<[Tls; 2]> =
    LazyLock::new(|| VERSIONS.map(|version: TlsVersion| side([version; 2])));

const PARTS_MAX: usize = 64;

/// Each says at most 64 KiB, and each round carries some of it or is the last
const ROUNDS_MAX: usize = 1 << 18;

//! Encrypted sessions over a socket, without an engine.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{IoSlice, IoSliceMut};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use backhaul::fuzzing::TlsSession;
use backhaul_testkit::tls::Authority;

#[test]
fn a_side_that_has_ended_still_gets_what_the_other_side_sends() {
    let tls = Authority::new("authority").side();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    for socket in [&near, &far] {
        socket.set_nonblocking(true).unwrap();
    }
    let mut near = TlsSession::connect(&tls, near).unwrap();
    let mut far = TlsSession::accept(&tls, far).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let (mut near_is_open, mut far_is_open) = (false, false);
    while !(near_is_open && far_is_open) {
        assert!(Instant::now() < deadline);
        near_is_open = near_is_open || near.shake_hands().unwrap();
        far_is_open = far_is_open || far.shake_hands().unwrap();
    }
    near.say_end();
    let mut memory = [0; 100];
    assert_eq!(heard(&mut far, &mut memory), None);
    assert_eq!(far.write(&[IoSlice::new(b"the rest")]).unwrap(), 8);
    assert_eq!(heard(&mut near, &mut memory), Some(8));
    assert_eq!(memory[..8], *b"the rest");
}

/// Reads until something has come, or the end
fn heard(session: &mut TlsSession, memory: &mut [u8]) -> Option<usize> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let found = session.read(&mut [IoSliceMut::new(memory)]).unwrap();
        if found != Some(0) {
            return found;
        }
        assert!(Instant::now() < deadline);
    }
}

//! Connections of other programs to the port: refused with a reason, and the listener goes on.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use backhaul::{ConnectError, Context, HandshakeError, LaneKind, Listener, Tag, TagMask};
use backhaul_proto::Hello;

use crate::harness::LOOPBACK;
use crate::random::Random;
use crate::raw::{HELLO_PREFIX_BYTES, RawPeer, hello};
use crate::{Finish, Harness, assert_matches, wait_until};

/// Bytes of all kinds
pub fn random_bytes_are_rejected(harness: &Harness) {
    let host = Host::new(harness);
    let mut random = Random::new(1);
    for bytes in [3, 16, 100, 100_000] {
        let garbage = random.bytes(bytes);
        host.rejects("does not speak backhaul", |peer| peer.say(&garbage));
    }
    host.still_accepts(harness);
}

/// A browser
pub fn an_http_request_is_rejected(harness: &Harness) {
    let host = Host::new(harness);
    host.rejects("GET / HT", |peer| {
        peer.say(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    });
    host.still_accepts(harness);
}

/// A port scanner
pub fn connections_closed_at_once_are_rejected(harness: &Harness) {
    let host = Host::new(harness);
    for _ in 0..5 {
        host.rejects("", |_| {});
    }
    host.still_accepts(harness);
}

/// A Hello cut off anywhere by the end of the connection
pub fn a_hello_that_breaks_off_is_rejected(harness: &Harness) {
    let host = Host::new(harness);
    let hello = hello(&[LaneKind::Tcp]).encode();
    for bytes in [1, 7, 8, 10, 16, 19, 20, 21, hello.len() - 1] {
        host.rejects("", |peer| peer.say(&hello[..bytes]));
    }
    host.still_accepts(harness);
}

/// A Hello cut off by silence: the time to wait for it is bounded
pub fn a_peer_that_falls_silent_is_rejected_in_time(harness: &Harness) {
    let host = Host::with(harness.context_with(|config| {
        config.handshake_timeout = Duration::from_millis(100);
    }));
    let complete = hello(&[LaneKind::Tcp]).encode();
    for bytes in [0, 5, 20, complete.len()] {
        let mut peer = RawPeer::connect(host.listener.local_address());
        let before = host.listener.statistics().rejected;
        peer.say(&complete[..bytes]);
        peer.hear_out();
        wait_until(|| host.listener.statistics().rejected == before + 1);
        let reason = host.listener.statistics().last_rejection.unwrap();
        assert!(reason.contains("not finished"), "{reason}");
    }
    // With time to spare, for a busy machine.
    Host::new(harness).still_accepts(harness);
}

/// One silent peer does not keep others waiting
pub fn silent_peers_do_not_hold_up_others(harness: &Harness) {
    let host = Host::new(harness);
    let silent: Vec<_> = (0..20)
        .map(|_| RawPeer::connect(host.listener.local_address()))
        .collect();
    host.still_accepts(harness);
    assert_eq!(host.listener.statistics().rejected, 0);
    drop(silent);
    wait_until(|| host.listener.statistics().rejected == 20);
}

/// Silent connections that take every place keep no peer out, however long they may stay
pub fn silent_strangers_give_way_to_peers(harness: &Harness) {
    let forever = Duration::from_secs(3600);
    let host = Host::with(harness.context_with(|config| {
        config.handshakes_max = 150;
        config.handshake_timeout = forever;
    }));
    let address = host.listener.local_address();
    let strangers: Vec<_> = (0..200).map(|_| RawPeer::connect(address)).collect();
    host.still_accepts(harness);
    let statistics = host.listener.statistics();
    assert!(statistics.handshakes < 150, "{statistics:?}");
    assert!(statistics.rejected >= 50, "{statistics:?}");
    let reason = statistics.last_rejection.unwrap();
    assert!(reason.contains("it had said nothing"), "{reason}");
    drop(strangers);
    wait_until(|| host.listener.statistics().rejected == 200);
}

/// Another version is distinguished from garbage
pub fn another_version_is_rejected_by_number(harness: &Harness) {
    let host = Host::new(harness);
    let mut hello = hello(&[LaneKind::Tcp]).encode();
    hello[VERSION_OFFSET] = 77;
    host.rejects("version 77", |peer| {
        peer.say(&hello);
        // It gets our version.
        peer.hear_hello();
    });
    host.still_accepts(harness);
}

/// A Hello that says it is long is not waited for
pub fn an_oversized_hello_is_rejected_at_once(harness: &Harness) {
    let host = Host::new(harness);
    let mut long = hello(&[LaneKind::Tcp]).encode();
    long[..2].copy_from_slice(&u16::MAX.to_le_bytes());
    // The connection stays open: only the length can be the reason.
    let mut peer = RawPeer::connect(host.listener.local_address());
    peer.say(&long);
    peer.hear_out();
    wait_until(|| host.listener.statistics().rejected == 1);
    let reason = host.listener.statistics().last_rejection.unwrap();
    assert!(reason.contains("4096"), "{reason} does not say the limit");
    host.still_accepts(harness);
}

/// A Hello whose fields are nonsense
pub fn a_malformed_hello_is_rejected(harness: &Harness) {
    let host = Host::new(harness);
    let good = hello(&[LaneKind::Tcp]).encode();
    let mut random = Random::new(2);
    let prefix = HELLO_PREFIX_BYTES;
    let with_length = |mut bytes: Vec<u8>| {
        let length = bytes.len() as u64 - 8;
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        bytes
    };
    let without_fields = with_length(good[..prefix].to_vec());
    host.rejects("bad hello", |peer| peer.say(&without_fields));
    let mut noise = good.clone();
    noise[prefix..].copy_from_slice(&random.bytes(good.len() - prefix));
    host.rejects("bad hello", |peer| peer.say(&noise));
    let twice = with_length([&good[..], &good[prefix..]].concat());
    host.rejects("twice", |peer| peer.say(&twice));
    let takes_nothing = Hello {
        credit_messages: 0,
        ..hello(&[LaneKind::Tcp])
    };
    host.rejects("credit_messages", |peer| peer.say(&takes_nothing.encode()));
    host.still_accepts(harness);
}

/// After a good Hello, a bad selection
pub fn a_bad_selection_is_rejected(harness: &Harness) {
    let host = Host::new(harness);
    let hello = hello(&[LaneKind::Tcp]).encode();
    for (reason, selection) in [
        ("expected a message of type 0x51", &b"\x00\x00\x00\x00"[..]),
        ("lane 238, which is unknown here", b"\x51\xee\x00\x00"),
        // Lanes that our Hello did not offer.
        ("not offered by both sides", b"\x51\x01\x00\x00"),
        ("not offered by both sides", b"\x51\x02\x00\x00"),
        ("limit 512", b"\x51\x03\xff\xff"),
        ("not UTF-8", b"\x51\x03\x02\x00\xff\xfe"),
    ] {
        host.rejects(reason, |peer| {
            peer.say(&hello);
            peer.say(selection);
        });
    }
    host.still_accepts(harness);
}

/// Steps of the handshake that come twice, or before their turn
pub fn repeated_and_reordered_steps_are_rejected(harness: &Harness) {
    let host = Host::new(harness);
    let hello = hello(&[LaneKind::Tcp]).encode();
    let select = b"\x51\x03\x00\x00";
    let answer = b"\x52\x03\x00\x00";
    for (reason, steps) in [
        ("a second hello", [&hello[..], &hello].concat()),
        ("got 0x52", [&hello[..], answer].concat()),
        ("out of turn", [&hello[..], select, select].concat()),
        ("out of turn", [&hello[..], select, answer].concat()),
        ("out of turn", [&hello[..], select, &hello].concat()),
        ("does not speak backhaul", [&select[..], &hello].concat()),
    ] {
        host.rejects(reason, |peer| peer.say(&steps));
    }
    host.still_accepts(harness);
}

/// A program that does not speak the protocol gets no answer, and its socket is closed
pub fn strangers_hear_nothing(harness: &Harness) {
    let host = Host::new(harness);
    for (reason, words) in [
        ("does not speak backhaul", &b"GET / HTTP/1.1\r\n\r\n"[..]),
        ("the peer speaks TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01"),
        ("dask's tcp://", DASK_GREETING),
    ] {
        host.rejects(reason, |peer| {
            peer.say(words);
            assert_eq!(peer.hear_out(), 0);
        });
    }
    // Nor does who says nothing.
    let mut peer = RawPeer::connect(host.listener.local_address());
    host.still_accepts(harness);
    host.listener.close();
    host.context.close();
    assert_eq!(peer.hear_out(), 0);
}

/// A lane of a newer version is passed over by its number
pub fn a_lane_unknown_here_is_named_in_the_reason(harness: &Harness) {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let context = harness.context();
    let connect = context.connect(&listener.local_addr().unwrap().to_string());
    let (socket, _) = listener.accept().unwrap();
    let mut peer = RawPeer { socket, peer: None };
    peer.hear_hello();
    let newer = Hello {
        lanes_unknown: vec![77],
        ..hello(&[LaneKind::Tcp])
    };
    peer.say(&newer.encode());
    let (lane, reason) = peer.hear_select();
    assert_eq!(lane, LaneKind::Tcp.code());
    assert!(reason.contains("lane 77: not known here"), "{reason}");
    // And refused by it when it is answered.
    peer.say(b"\x52\x4d\x00\x00");
    assert_matches!(
        connect.done().unwrap_err(),
        ConnectError::Handshake {
            source: HandshakeError::UnknownLane { code: 77 },
            ..
        }
    );
}

/// A peer that promises shared memory and instead floods the socket is not listened to for ever
pub fn a_flood_before_the_handshake_is_over_is_not_stored(harness: &Harness) {
    if harness.lane != LaneKind::Shm {
        return;
    }
    let host = Host::new(harness);
    let mut peer = RawPeer::connect(host.listener.local_address());
    peer.say(&hello(&[LaneKind::Shm]).encode());
    // Shared memory is selected, and never offered.
    peer.say(b"\x51\x02\x00\x00");
    peer.socket.set_nonblocking(true).unwrap();
    let chunk = vec![0; 1 << 20];
    let mut taken = 0;
    let mut stalls = 0;
    // Until the socket is full for good, or the peer hangs up.
    while stalls < 100 {
        match peer.socket.write(&chunk) {
            Ok(bytes) => (taken, stalls) = (taken + bytes, 0),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                stalls += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(_) => break,
        }
        assert!(
            taken < 64 << 20,
            "{taken} bytes were taken from a peer that is not one yet"
        );
    }
    drop(peer);
    host.still_accepts(harness);
}

/// Connects to a program that is no listener of this project
pub fn connecting_to_a_stranger_is_an_error_that_shows_its_words(harness: &Harness) {
    let stranger = TcpListener::bind(LOOPBACK).unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    let context = harness.context();

    let connect = context.connect(&address);
    let (mut socket, _) = stranger.accept().unwrap();
    socket.write_all(b"SSH-2.0-OpenSSH_9.9\r\n").unwrap();
    let error = connect.done().unwrap_err();
    assert_matches!(
        &error,
        ConnectError::Handshake { source: HandshakeError::NotBackhaul { found }, .. }
            if found.starts_with("SSH-2.0")
    );
    assert!(error.to_string().contains(&address), "{error}");

    let connect = context.connect(&address);
    let (mut socket, _) = stranger.accept().unwrap();
    socket.write_all(DASK_GREETING).unwrap();
    assert_matches!(
        connect.done().unwrap_err(),
        ConnectError::Handshake {
            source: HandshakeError::SpeaksDask,
            ..
        }
    );

    let connect = context.connect(&address);
    drop(stranger.accept().unwrap());
    // An end, or a reset where our words were not read.
    assert_matches!(
        connect.done().unwrap_err(),
        ConnectError::Io { .. }
            | ConnectError::Handshake {
                source: HandshakeError::ClosedUnheard { has_secret: false },
                ..
            }
    );

    let connect = context.connect(&address);
    let (mut socket, _) = stranger.accept().unwrap();
    let mut hello = hello(&[LaneKind::Tcp]).encode();
    hello[VERSION_OFFSET] = 9;
    socket.write_all(&hello).unwrap();
    assert_matches!(
        connect.done().unwrap_err(),
        ConnectError::Handshake {
            source: HandshakeError::Version { peer: 9, .. },
            ..
        }
    );
}

/// Connecting to something that says nothing
pub fn connecting_to_silence_times_out(harness: &Harness) {
    let stranger = TcpListener::bind(LOOPBACK).unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    let context =
        harness.context_with(|config| config.handshake_timeout = Duration::from_millis(50));
    assert_matches!(
        context.connect(&address).done().unwrap_err(),
        ConnectError::Handshake {
            source: HandshakeError::TimedOut { .. },
            ..
        }
    );
}

/// Where the version is in a Hello
const VERSION_OFFSET: usize = 16;

/// How a connection of Dask's own protocol begins
const DASK_GREETING: &[u8] = b"\x3a\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x2a\0\0\0\0\0\0\0";

/// A listener and what it is put through
struct Host {
    context: Context,
    listener: Listener,
}

impl Host {
    fn new(harness: &Harness) -> Self {
        Self::with(harness.context())
    }

    fn with(context: Context) -> Self {
        let listener = context.listen(LOOPBACK).unwrap();
        Self { context, listener }
    }

    /// A connection that says something and then ends is counted, with a reason
    fn rejects(&self, reason: &str, talk: impl FnOnce(&mut RawPeer)) {
        let before = self.listener.statistics();
        let mut peer = RawPeer::connect(self.listener.local_address());
        let address = peer.socket.local_addr().unwrap().to_string();
        talk(&mut peer);
        peer.finish();
        peer.hear_out();
        wait_until(|| self.listener.statistics().rejected > before.rejected);
        let after = self.listener.statistics();
        assert_eq!(after.rejected, before.rejected + 1);
        assert_eq!(after.accepted, before.accepted);
        assert_eq!(after.handshakes, 0);
        let rejection = after.last_rejection.unwrap();
        assert!(
            rejection.contains(reason),
            "{rejection} does not say {reason:?}"
        );
        assert!(
            rejection.contains(&address),
            "{rejection} does not name {address}"
        );
    }

    fn still_accepts(&self, harness: &Harness) {
        let before = self.listener.statistics().accepted;
        let (near, far) = harness.connect(&harness.context(), &self.listener);
        let posted = far.recv_message(Tag(1), TagMask::FULL);
        near.send(Tag(1), &b"welcome"[..]).done().unwrap();
        assert_eq!(posted.done().unwrap().segments[0][..], *b"welcome");
        assert_eq!(self.listener.statistics().accepted, before + 1);
        assert_eq!(self.context.config().lanes, [harness.lane]);
    }
}

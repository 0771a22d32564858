//! A secret that both sides have, or one of them, or each another one.

use std::io::Read;
use std::time::{Duration, Instant};

use backhaul::{ConnectError, Context, HandshakeError, Secret, Tag, TagMask, Trust};
use backhaul_proto::{Handshake, HandshakeEvent, HandshakePhase, LaneKind, Role};

use crate::harness::LOOPBACK;
use crate::raw::{RawPeer, hello};
use crate::{Finish, Harness, assert_matches, wait_until};

/// With one secret all is as without one, and both sides say that it was asked for
pub fn sides_with_one_secret_are_peers(harness: &Harness) {
    let pair = harness.pair_with(|config| config.secret = Some(secret(1)));
    for (from, to) in [(&pair.near, &pair.far), (&pair.far, &pair.near)] {
        assert_eq!(from.info().trust, Trust::Secret);
        // Longer than what the handshake has.
        let message = vec![7; 300_000];
        let receive = to.recv_message(Tag(1), TagMask::FULL);
        let send = from.send(Tag(1), message.clone());
        assert_eq!(receive.done().unwrap().segments[0][..], message);
        send.done().unwrap();
    }
    let open = harness.pair();
    assert_eq!(open.near.info().trust, Trust::Anyone);
}

/// A secret on one side, or another one on each, is an error that says so, and the listener goes on
pub fn sides_without_one_secret_are_not_peers(harness: &Harness) {
    for (near, far, rejection) in [
        (None, Some(1), "the peer proves no secret"),
        (Some(2), Some(1), "does not prove the secret of this side"),
        (
            Some(1),
            None,
            "the peer proves a secret, and this side has none",
        ),
    ] {
        let host = with_secret(harness, far);
        let listener = host.listen(LOOPBACK).unwrap();
        let address = listener.local_address().to_string();
        let caller = with_secret(harness, near);
        let error = caller.connect(&address).done().unwrap_err();
        let ConnectError::Handshake { source, .. } = &error else {
            panic!("{error}");
        };
        // A side without a secret says so; a side with one says nothing to a side without.
        match far {
            None => assert_eq!(*source, HandshakeError::NoProof),
            Some(_) => {
                let has_secret = near.is_some();
                assert_eq!(*source, HandshakeError::ClosedUnheard { has_secret });
            }
        }
        assert!(error.to_string().contains("secret"), "{error}");
        assert!(error.to_string().contains(&address), "{error}");
        wait_until(|| listener.statistics().rejected == 1);
        let reason = listener.statistics().last_rejection.unwrap();
        assert!(reason.contains(rejection), "{reason}");
        assert!(reason.starts_with("127.0.0.1:"), "{reason}");
        harness.connect(&with_secret(harness, far), &listener);
        assert_eq!(listener.statistics().accepted, 1);
    }
}

/// A peer that has no proof of the secret gets the end of the stream, whatever it says
pub fn strangers_without_the_secret_hear_nothing(harness: &Harness) {
    let host = with_secret(harness, Some(1));
    let listener = host.listen(LOOPBACK).unwrap();
    let plain = hello(&[LaneKind::Tcp]).encode();
    let mut other_version = plain.clone();
    other_version[16] = 77;
    let wrong = begin(&secret(2)).0;
    let mut changed = begin(&secret(1)).0;
    let last = changed.len() - 1;
    changed[last] ^= 1;
    for (before, words) in (0..).zip([plain, other_version, wrong, changed]) {
        let mut peer = RawPeer::connect(listener.local_address());
        peer.say(&words);
        assert_eq!(peer.hear_out(), 0);
        wait_until(|| listener.statistics().rejected == before + 1);
    }
    harness.connect(&with_secret(harness, Some(1)), &listener);
}

/// A peer that repeats a Hello that it has recorded gets the other's, and can go no further
pub fn a_recorded_hello_opens_nothing(harness: &Harness) {
    let host = with_secret(harness, Some(1));
    let listener = host.listen(LOOPBACK).unwrap();
    // The honest one, whose words are recorded.
    let (hello, mut handshake) = begin(&secret(1));
    let mut honest = RawPeer::connect(listener.local_address());
    honest.say(&hello);
    let select = loop {
        let mut byte = [0];
        honest.socket.read_exact(&mut byte).unwrap();
        handshake.handle_bytes(Instant::now(), &byte).unwrap();
        if let Some(HandshakeEvent::PeerHello(_)) = handshake.poll_event() {
            handshake.select(LaneKind::Tcp, "");
            break handshake.poll_transmit().unwrap();
        }
    };
    honest.say(&select);
    wait_until(|| listener.statistics().accepted == 1);
    // And the one who recorded them.
    let mut played = RawPeer::connect(listener.local_address());
    played.say(&[&hello[..], &select].concat());
    played.hear_out();
    wait_until(|| listener.statistics().rejected == 1);
    let reason = listener.statistics().last_rejection.unwrap();
    assert!(
        reason.contains("the select of the peer does not prove"),
        "{reason}"
    );
    assert_eq!(listener.statistics().accepted, 1);
}

/// A connector with a secret does not talk to a listener without it
pub fn who_answers_without_the_secret_is_refused(harness: &Harness) {
    let impostor = std::net::TcpListener::bind(LOOPBACK).unwrap();
    let address = impostor.local_addr().unwrap().to_string();
    let caller = with_secret(harness, Some(1));
    let connect = caller.connect(&address);
    let (socket, _) = impostor.accept().unwrap();
    let mut peer = RawPeer { socket, peer: None };
    peer.hear_hello();
    // An acceptor's proof under another secret, over what it cannot know to be signed.
    peer.say(&begin(&secret(2)).0);
    // It hears no selection, but the end.
    assert_eq!(peer.hear_out(), 0);
    assert_matches!(
        connect.done().unwrap_err(),
        ConnectError::Handshake {
            source: HandshakeError::WrongProof {
                phase: HandshakePhase::Hello
            },
            ..
        }
    );
}

/// The first words of a connector on the tcp lane, and the rest of its handshake
fn begin(secret: &Secret) -> (Vec<u8>, Handshake) {
    let mut handshake = Handshake::with_secret(
        Role::Connector,
        hello(&[LaneKind::Tcp]),
        Some(secret.clone()),
        Instant::now(),
        Duration::from_secs(60),
    );
    (handshake.poll_transmit().unwrap(), handshake)
}

fn with_secret(harness: &Harness, number: Option<u8>) -> Context {
    harness.context_with(|config| config.secret = number.map(secret))
}

fn secret(number: u8) -> Secret {
    Secret::new(&[number; 16]).unwrap()
}

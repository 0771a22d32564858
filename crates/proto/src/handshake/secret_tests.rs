//! The handshake of sides that have a secret, the same or not, and of those between them.

use super::wire::encode_choice;
use super::*;
use crate::hello::HelloError;
use crate::hello::tests::sample;

const TIMEOUT: Duration = Duration::from_secs(10);

/// A side with a secret that repeats this byte, or with none
fn side(role: Role, secret: Option<u8>) -> Handshake {
    let secret = secret.map(|byte| Secret::new(&[byte; 16]).unwrap());
    Handshake::with_secret(role, sample(), secret, Instant::now(), TIMEOUT)
}

/// A side with the first secret, on a connection with this nonce
fn with_nonce(role: Role, nonce: u8) -> Handshake {
    let local = Hello {
        nonce: [nonce; 16],
        ..sample()
    };
    let secret = Secret::new(&[1; 16]).unwrap();
    Handshake::with_secret(role, local, Some(secret), Instant::now(), TIMEOUT)
}

/// All that a side has to say now
fn said(by: &mut Handshake) -> Vec<u8> {
    std::iter::from_fn(|| by.poll_transmit())
        .flatten()
        .collect()
}

/// Tells a side what was said, in pieces
fn tell(to: &mut Handshake, bytes: &[u8], piece_bytes: usize) -> Result<(), HandshakeError> {
    for piece in bytes.chunks(piece_bytes) {
        assert_eq!(to.handle_bytes(to.started, piece)?, piece.len());
    }
    Ok(())
}

fn drain(side: &mut Handshake) -> Vec<HandshakeEvent> {
    std::iter::from_fn(|| side.poll_event()).collect()
}

/// Two sides with one secret that have said hello, and what was said: by the connector, the acceptor
fn greeted(piece_bytes: usize) -> (Handshake, Handshake, Vec<u8>, Vec<u8>) {
    let mut connector = side(Role::Connector, Some(1));
    let mut acceptor = side(Role::Acceptor, Some(1));
    let ours = said(&mut connector);
    tell(&mut acceptor, &ours, piece_bytes).unwrap();
    let theirs = said(&mut acceptor);
    tell(&mut connector, &theirs, piece_bytes).unwrap();
    assert_eq!(drain(&mut connector).len(), 1);
    assert_eq!(drain(&mut acceptor).len(), 1);
    (connector, acceptor, ours, theirs)
}

#[test]
fn sides_with_one_secret_agree_however_the_bytes_are_cut() {
    for piece_bytes in [1, 3, 35, 5000] {
        let (mut connector, mut acceptor, ours, theirs) = greeted(piece_bytes);
        connector.select(LaneKind::Shm, "same host");
        let select = said(&mut connector);
        tell(&mut acceptor, &select, piece_bytes).unwrap();
        let selected = HandshakeEvent::LaneSelected {
            lane: LaneKind::Shm,
            reason: "same host".into(),
        };
        assert_eq!(drain(&mut acceptor), [selected]);
        acceptor.answer(LaneKind::Tcp, "");
        let answer = said(&mut acceptor);
        // The bytes that follow immediately are frames, and are left.
        let with_frame = [&answer[..], &[7; 40]].concat();
        let used = connector.handle_bytes(connector.started, &with_frame);
        assert_eq!(used, Ok(answer.len()));
        let done = HandshakeEvent::Done {
            lane: LaneKind::Tcp,
            reason: String::new(),
        };
        assert_eq!(drain(&mut connector), [done]);
        // 36 bytes more in a Hello, 32 in the others.
        let plain = sample().encode().len();
        assert_eq!([ours.len(), theirs.len()], [plain + 36; 2]);
        assert_eq!([select.len(), answer.len()], [4 + 9 + 32, 4 + 32]);
    }
}

#[test]
fn the_secret_is_in_nothing_that_is_said() {
    let (mut connector, mut acceptor, ours, theirs) = greeted(5000);
    connector.select(LaneKind::Tcp, "");
    let select = said(&mut connector);
    tell(&mut acceptor, &select, 100).unwrap();
    acceptor.answer(LaneKind::Tcp, "");
    for bytes in [&ours, &theirs, &select, &said(&mut acceptor)] {
        // `sample` has such bytes of its own, but no 16 of them behind each other in a proof.
        let proof = &bytes[bytes.len() - 32..];
        assert!(!proof.windows(16).any(|window| window == [1; 16]));
    }
}

#[test]
fn who_does_not_prove_the_secret_hears_nothing() {
    for (secret, expected) in [
        (None, HandshakeError::NoProof),
        (
            Some(2),
            HandshakeError::WrongProof {
                phase: HandshakePhase::Hello,
            },
        ),
    ] {
        let hello = said(&mut side(Role::Connector, secret));
        for piece_bytes in [1, 20, 5000] {
            let mut acceptor = side(Role::Acceptor, Some(1));
            let error = tell(&mut acceptor, &hello, piece_bytes).unwrap_err();
            assert_eq!(error, expected);
            assert_eq!(said(&mut acceptor), []);
            assert_eq!(drain(&mut acceptor), []);
        }
    }
    // Nor does another version, nor one that says less than it should.
    let mut newer = said(&mut side(Role::Connector, Some(1)));
    newer[16] = 99;
    let mut acceptor = side(Role::Acceptor, Some(1));
    tell(&mut acceptor, &newer, 20).unwrap_err();
    assert_eq!(said(&mut acceptor), []);
    let mut acceptor = side(Role::Acceptor, Some(1));
    let hello = said(&mut side(Role::Connector, Some(1)));
    tell(&mut acceptor, &hello[..hello.len() - 1], 20).unwrap();
    assert_eq!(said(&mut acceptor), []);
}

#[test]
fn who_has_no_secret_says_so_to_who_has_one() {
    let mut connector = side(Role::Connector, Some(1));
    let mut acceptor = side(Role::Acceptor, None);
    let error = tell(&mut acceptor, &said(&mut connector), 5000).unwrap_err();
    assert_eq!(error, HandshakeError::UnexpectedProof);
    let error = tell(&mut connector, &said(&mut acceptor), 5000).unwrap_err();
    assert_eq!(error, HandshakeError::NoProof);
}

#[test]
fn who_hangs_up_without_a_word_may_want_a_secret() {
    for (secret, text) in [
        (None, "this side has none"),
        (Some(1), "the two may differ"),
    ] {
        let error = side(Role::Connector, secret).handle_end().unwrap();
        assert!(error.to_string().ends_with(text), "{error}");
    }
    assert_eq!(side(Role::Acceptor, Some(1)).handle_end(), None);
    let (connector, ..) = greeted(5000);
    assert_eq!(connector.handle_end(), None);
}

#[test]
fn what_was_said_before_opens_nothing_when_it_is_played_again() {
    let (mut connector, _, hello, greeting) = greeted(5000);
    connector.select(LaneKind::Tcp, "");
    let select = said(&mut connector);
    // Another connection, so the other side's nonce is new. Its Hello is all that one hears.
    let mut acceptor = with_nonce(Role::Acceptor, 99);
    tell(&mut acceptor, &hello, 5000).unwrap();
    assert_ne!(said(&mut acceptor), []);
    let wrong = |phase| Err(HandshakeError::WrongProof { phase });
    let outcome = tell(&mut acceptor, &select, 5000);
    assert_eq!(outcome, wrong(HandshakePhase::Select));
    assert_eq!(said(&mut acceptor), []);
    // The same of an acceptor, to a connector that calls again.
    let mut connector = with_nonce(Role::Connector, 98);
    said(&mut connector);
    let outcome = tell(&mut connector, &greeting, 5000);
    assert_eq!(outcome, wrong(HandshakePhase::Hello));
}

#[test]
fn nothing_is_proved_by_ones_own_words() {
    // A connector that hears its own Hello, and an acceptor that hears its own.
    let mut connector = side(Role::Connector, Some(1));
    let hello = said(&mut connector);
    let wrong = HandshakeError::WrongProof {
        phase: HandshakePhase::Hello,
    };
    assert_eq!(tell(&mut connector, &hello, 5000), Err(wrong.clone()));
    let (_, _, _, theirs) = greeted(5000);
    let mut acceptor = side(Role::Acceptor, Some(1));
    assert_eq!(tell(&mut acceptor, &theirs, 5000), Err(wrong));
    assert_eq!(said(&mut acceptor), []);
}

#[test]
fn not_a_byte_of_what_was_said_can_be_changed() {
    let hello = said(&mut side(Role::Connector, Some(1)));
    for at in 0..hello.len() {
        let mut changed = hello.clone();
        changed[at] ^= 1;
        let mut acceptor = side(Role::Acceptor, Some(1));
        // Longer by its length, it is waited for; else it is refused.
        let outcome = tell(&mut acceptor, &changed, 5000);
        assert!(outcome.is_err() || at < 8, "{at}");
        assert_eq!(said(&mut acceptor), [], "{at}");
    }
    let (.., theirs) = greeted(5000);
    for at in 0..theirs.len() {
        let mut changed = theirs.clone();
        changed[at] ^= 1;
        let mut connector = side(Role::Connector, Some(1));
        said(&mut connector);
        let _ = tell(&mut connector, &changed, 5000);
        assert_eq!(drain(&mut connector), [], "{at}");
    }
}

#[test]
fn the_lane_cannot_be_talked_down() {
    // A process in between makes tcp of the lane that was selected or answered, or gives a reason.
    let proof = [0; 32];
    for said_instead in [
        [&encode_choice(SELECT, LaneKind::Tcp, "")[..], &proof].concat(),
        [&encode_choice(SELECT, LaneKind::Shm, "other")[..], &proof].concat(),
    ] {
        let (mut connector, mut acceptor, ..) = greeted(5000);
        connector.select(LaneKind::Shm, "");
        let honest = said(&mut connector);
        let mut changed = said_instead;
        let at = changed.len() - 32;
        changed[at..].copy_from_slice(&honest[honest.len() - 32..]);
        let wrong = HandshakeError::WrongProof {
            phase: HandshakePhase::Select,
        };
        assert_eq!(tell(&mut acceptor, &changed, 5000), Err(wrong));
        assert_eq!(drain(&mut acceptor), []);
    }
    let (mut connector, mut acceptor, ..) = greeted(5000);
    connector.select(LaneKind::Shm, "");
    let select = said(&mut connector);
    tell(&mut acceptor, &select, 5000).unwrap();
    acceptor.answer(LaneKind::Shm, "");
    let mut answer = said(&mut acceptor);
    answer[1] = LaneKind::Tcp.code();
    let wrong = HandshakeError::WrongProof {
        phase: HandshakePhase::Answer,
    };
    assert_eq!(tell(&mut connector, &answer, 5000), Err(wrong));
    assert_eq!(drain(&mut connector), []);
}

#[test]
fn a_field_behind_the_proof_is_refused() {
    let mut hello = said(&mut side(Role::Connector, Some(1)));
    hello.extend([0xff, 0x7f, 0, 0]);
    let bytes_behind = hello.len() as u64 - 8;
    hello[..8].copy_from_slice(&bytes_behind.to_le_bytes());
    let mut acceptor = side(Role::Acceptor, Some(1));
    let error = HandshakeError::Hello(HelloError::ProofNotLast { bytes: 4 });
    assert_eq!(tell(&mut acceptor, &hello, 5000), Err(error));
    assert_eq!(said(&mut acceptor), []);
}

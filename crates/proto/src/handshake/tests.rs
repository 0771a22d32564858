//! The handshake, both sides and by hand.

use proptest::prelude::*;

use super::wire::{CHOICE_BYTES, REASON_BYTES_MAX};
use super::*;
use crate::hello::tests::sample;
use crate::hello::{HELLO_BODY_BYTES_MAX, HelloError};

const TIMEOUT: Duration = Duration::from_secs(10);

fn pair(now: Instant) -> (Handshake, Handshake) {
    let mut theirs = sample();
    theirs.lanes = vec![LaneKind::Inproc, LaneKind::Shm];
    (
        Handshake::new(Role::Connector, sample(), now, TIMEOUT),
        Handshake::new(Role::Acceptor, theirs, now, TIMEOUT),
    )
}

/// Moves what `from` has to say, in pieces, returning what was left over
fn carry(from: &mut Handshake, to: &mut Handshake, piece_bytes: usize) -> usize {
    let now = from.started;
    let mut left = 0;
    while let Some(bytes) = from.poll_transmit() {
        for piece in bytes.chunks(piece_bytes) {
            left += piece.len() - to.handle_bytes(now, piece).unwrap();
        }
    }
    left
}

/// Runs a handshake up to the selection
fn selected(piece_bytes: usize) -> (Handshake, Handshake) {
    let (mut connector, mut acceptor) = pair(Instant::now());
    carry(&mut connector, &mut acceptor, piece_bytes);
    carry(&mut acceptor, &mut connector, piece_bytes);
    assert!(matches!(
        connector.poll_event(),
        Some(HandshakeEvent::PeerHello(_))
    ));
    assert!(matches!(
        acceptor.poll_event(),
        Some(HandshakeEvent::PeerHello(_))
    ));
    connector.select(LaneKind::Shm, "same boot");
    carry(&mut connector, &mut acceptor, piece_bytes);
    (connector, acceptor)
}

#[test]
fn both_sides_agree_however_the_bytes_are_cut() {
    for piece_bytes in [1, 3, 16, 17, 5000] {
        let (mut connector, mut acceptor) = selected(piece_bytes);
        let selected = HandshakeEvent::LaneSelected {
            lane: LaneKind::Shm,
            reason: "same boot".into(),
        };
        assert_eq!(acceptor.poll_event(), Some(selected));
        acceptor.answer(LaneKind::Tcp, "no memfd");
        assert_eq!(carry(&mut acceptor, &mut connector, piece_bytes), 0);
        let done = Some(HandshakeEvent::Done {
            lane: LaneKind::Tcp,
            reason: "no memfd".into(),
        });
        assert_eq!(connector.poll_event(), done);
        assert_eq!(acceptor.poll_event(), done);
        assert_eq!(connector.poll_timeout(), None);
    }
}

#[test]
fn bytes_after_the_answer_are_frames_if_the_socket_carries_frames() {
    for lane in [LaneKind::Tcp, LaneKind::Shm] {
        let (mut connector, mut acceptor) = selected(100);
        acceptor.answer(lane, "");
        let mut bytes = acceptor.poll_transmit().unwrap();
        let answer_bytes = bytes.len();
        bytes.extend([7; 40]);
        let now = connector.started;
        let out_of_turn = HandshakeError::OutOfTurn {
            found: 7,
            phase: HandshakePhase::Done,
        };
        let [used, later] = match lane {
            LaneKind::Tcp => [Ok(answer_bytes), Ok(0)],
            LaneKind::Inproc
            | LaneKind::Shm
            | LaneKind::Ucx
            | LaneKind::Tls
            | LaneKind::Experimental => [Err(out_of_turn.clone()), Err(out_of_turn)],
        };
        assert_eq!(connector.handle_bytes(now, &bytes), used);
        assert_eq!(connector.handle_bytes(now, &[7; 40]), later);
        assert_eq!(acceptor.handle_bytes(now, &[7; 40]), later);
    }
}

#[test]
fn on_an_encrypted_socket_no_lane_in_clear_text_is_selected_whatever_is_offered() {
    let now = Instant::now();
    for lane in [LaneKind::Tcp, LaneKind::Ucx] {
        let mut acceptor = Handshake::new(Role::Acceptor, everything(), now, TIMEOUT).encrypted();
        let mut bytes = everything().encode();
        bytes.extend(encode_choice(SELECT, lane, "trust me"));
        let error = acceptor.handle_bytes(now, &bytes);
        assert_eq!(error, Err(HandshakeError::LaneNotOffered { lane }));
    }
    let (mut connector, mut acceptor) = pair(now);
    (connector, acceptor) = (connector.encrypted(), acceptor.encrypted());
    carry(&mut connector, &mut acceptor, 100);
    carry(&mut acceptor, &mut connector, 100);
    connector.select(LaneKind::Shm, "");
    let answer = encode_choice(ANSWER, LaneKind::Tcp, "trust me");
    let error = connector.handle_bytes(now, &answer);
    let disagrees = HandshakeError::AnswerDisagrees {
        selected: LaneKind::Shm,
        answered: LaneKind::Tcp,
    };
    assert_eq!(error, Err(disagrees));
}

#[test]
fn in_clear_text_the_encrypted_lane_is_not_selected_unless_it_is_offered() {
    let now = Instant::now();
    let (_, mut acceptor) = pair(now);
    let mut bytes = everything().encode();
    bytes.extend(encode_choice(SELECT, LaneKind::Tls, ""));
    let error = acceptor.handle_bytes(now, &bytes);
    let lane = LaneKind::Tls;
    assert_eq!(error, Err(HandshakeError::LaneNotOffered { lane }));
}

#[test]
fn tls_is_named_however_its_bytes_are_cut() {
    // A ClientHello of some version, and an alert of a listener that speaks nothing else.
    for beginning in [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"\x15\x03\x03\x00\x02\x02\x46",
    ] {
        for piece_bytes in 1..=beginning.len() {
            let (_, mut acceptor) = pair(Instant::now());
            let now = acceptor.started;
            let error = beginning
                .chunks(piece_bytes)
                .find_map(|piece| acceptor.handle_bytes(now, piece).err());
            assert_eq!(error, Some(HandshakeError::SpeaksTls));
            assert_eq!(acceptor.poll_transmit(), None);
        }
    }
}

#[test]
fn who_is_called_is_silent_until_our_protocol_is_spoken() {
    let now = Instant::now();
    for stranger in [
        &b"GET / HTTP/1.1\r\nHost: somebody\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        &[0x3a, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x2a, 0],
    ] {
        let (_, mut acceptor) = pair(now);
        assert_eq!(acceptor.poll_transmit(), None);
        acceptor.handle_bytes(now, stranger).unwrap_err();
        assert_eq!(acceptor.poll_transmit(), None);
    }
    let (_, mut acceptor) = pair(now);
    let hello = sample().encode();
    acceptor.handle_bytes(now, &hello[..19]).unwrap();
    assert_eq!(acceptor.poll_transmit(), None);
    acceptor.handle_bytes(now, &hello[19..20]).unwrap();
    assert!(acceptor.poll_transmit().is_some());
    acceptor.handle_bytes(now, &hello[20..]).unwrap();
    assert_eq!(acceptor.poll_transmit(), None);
}

#[test]
fn another_version_is_told_which_one_is_spoken_here() {
    let now = Instant::now();
    let (_, mut acceptor) = pair(now);
    let mut newer = sample().encode();
    newer[16] = 99;
    acceptor.handle_bytes(now, &newer).unwrap_err();
    assert!(acceptor.poll_transmit().is_some());
}

#[test]
fn dasks_own_protocol_is_named_however_its_bytes_are_cut() {
    // The beginning of what distributed 2026.8 writes on a new connection.
    let greeting = [
        0x3a, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x2a, 0, 0, 0, 0, 0, 0, 0, 0x83, 0xab,
    ];
    for piece_bytes in 1..greeting.len() {
        let (mut connector, _) = pair(Instant::now());
        let now = connector.started;
        let error = greeting
            .chunks(piece_bytes)
            .find_map(|piece| connector.handle_bytes(now, piece).err());
        assert_eq!(error, Some(HandshakeError::SpeaksDask));
    }
}

#[test]
fn dasks_own_protocol_reads_a_short_length() {
    let hello = sample().encode();
    let (length, rest) = hello.split_first_chunk().unwrap();
    assert_eq!(u64::from_le_bytes(*length), rest.len() as u64);
}

#[test]
fn a_second_hello_is_named() {
    let now = Instant::now();
    for piece_bytes in [1, 7, 5000] {
        let (mut connector, mut acceptor) = selected(piece_bytes);
        let hello = sample().encode();
        let feed = |to: &mut Handshake| {
            hello
                .chunks(piece_bytes)
                .find_map(|piece| to.handle_bytes(now, piece).err())
        };
        let expected = ANSWER;
        assert_eq!(
            feed(&mut connector),
            Some(HandshakeError::RepeatedHello { expected })
        );
        // The next step is due from this side.
        let out_of_turn = HandshakeError::OutOfTurn {
            found: hello[0],
            phase: HandshakePhase::Answer,
        };
        assert_eq!(feed(&mut acceptor), Some(out_of_turn));
        let (mut connector, mut acceptor) = pair(now);
        carry(&mut connector, &mut acceptor, piece_bytes);
        let expected = SELECT;
        assert_eq!(
            feed(&mut acceptor),
            Some(HandshakeError::RepeatedHello { expected })
        );
    }
}

#[test]
fn steps_that_come_twice_or_too_early_are_refused() {
    let now = Instant::now();
    let select = encode_choice(SELECT, LaneKind::Shm, "");
    let answer = encode_choice(ANSWER, LaneKind::Shm, "");
    // Selected twice: in one read, and before the first is answered.
    let out_of_turn = |found, phase| Err(HandshakeError::OutOfTurn { found, phase });
    let (_, mut acceptor) = selected(100);
    assert_eq!(
        acceptor.handle_bytes(now, &select),
        out_of_turn(SELECT, HandshakePhase::Answer)
    );
    let (mut connector, mut acceptor) = pair(now);
    carry(&mut connector, &mut acceptor, 100);
    assert_eq!(
        acceptor.handle_bytes(now, &[&select[..], &select].concat()),
        out_of_turn(SELECT, HandshakePhase::Answer)
    );
    // An answer to what was not selected yet.
    let (mut connector, mut acceptor) = pair(now);
    carry(&mut connector, &mut acceptor, 100);
    assert_eq!(
        acceptor.handle_bytes(now, &answer),
        Err(HandshakeError::UnexpectedMessage {
            expected: SELECT,
            found: ANSWER
        })
    );
    let hello = acceptor.poll_transmit().unwrap();
    assert_eq!(
        connector.handle_bytes(now, &[&hello[..], &answer].concat()),
        out_of_turn(ANSWER, HandshakePhase::Select)
    );
}

#[test]
fn a_lane_without_a_name_here_is_refused_by_its_number() {
    let unknown = Err(HandshakeError::UnknownLane { code: 7 });
    let (mut connector, _) = selected(100);
    let now = connector.started;
    assert_eq!(connector.handle_bytes(now, &[ANSWER, 7, 0, 0]), unknown);
    let (mut connector, mut acceptor) = pair(now);
    carry(&mut connector, &mut acceptor, 100);
    assert_eq!(acceptor.handle_bytes(now, &[SELECT, 7, 0, 0]), unknown);
}

#[test]
fn a_peer_that_takes_nothing_is_refused_by_the_limit() {
    let now = Instant::now();
    for (limit, hello) in [
        (
            "credit_messages",
            Hello {
                credit_messages: 0,
                ..sample()
            },
        ),
        (
            "data_chunk_bytes",
            Hello {
                data_chunk_bytes: 0,
                ..sample()
            },
        ),
    ] {
        let error = pair(now).1.handle_bytes(now, &hello.encode());
        assert_eq!(error, Err(HandshakeError::ZeroLimit { limit }));
    }
}

#[test]
fn another_protocol_is_recognised_by_its_first_bytes() {
    let now = Instant::now();
    let (mut connector, _) = pair(now);
    let error = connector
        .handle_bytes(now, b"HTTP/1.1 400\r\n")
        .unwrap_err();
    let found = "HTTP/1.1 400\\r\\n".to_owned();
    assert_eq!(error, HandshakeError::NotBackhaul { found });
    let (mut connector, _) = pair(now);
    let error = connector.handle_bytes(now, b"b\x16!").unwrap_err();
    assert!(error.to_string().contains("b\\x16"), "{error}");
}

#[test]
fn another_version_and_a_long_body_are_refused_at_the_prefix() {
    let now = Instant::now();
    let mut bytes = sample().encode();
    bytes[..2].copy_from_slice(&u16::MAX.to_le_bytes());
    let error = pair(now).1.handle_bytes(now, &bytes).unwrap_err();
    let too_long = HelloError::TooLong {
        bytes: 65535 - 12,
        max: 4096,
    };
    assert_eq!(error, HandshakeError::Hello(too_long));
    bytes[16] = 4;
    let error = pair(now).1.handle_bytes(now, &bytes[..20]).unwrap_err();
    let version = HandshakeError::Version {
        peer: 4,
        supported: 3,
    };
    assert_eq!(error, version);
}

#[test]
fn a_lane_that_one_side_does_not_offer_cannot_be_selected() {
    let now = Instant::now();
    let (mut connector, mut acceptor) = pair(now);
    carry(&mut connector, &mut acceptor, 100);
    let bytes = encode_choice(SELECT, LaneKind::Inproc, "");
    assert_eq!(
        acceptor.handle_bytes(now, &bytes),
        Err(HandshakeError::LaneNotOffered {
            lane: LaneKind::Inproc
        })
    );
}

#[test]
fn an_answer_of_a_third_lane_is_refused() {
    let (mut connector, _) = selected(100);
    let bytes = encode_choice(ANSWER, LaneKind::Inproc, "");
    let error = connector.handle_bytes(connector.started, &bytes);
    assert_eq!(
        error,
        Err(HandshakeError::AnswerDisagrees {
            selected: LaneKind::Shm,
            answered: LaneKind::Inproc,
        })
    );
}

#[test]
fn a_message_out_of_turn_is_refused_at_its_first_byte() {
    let (mut connector, _) = selected(100);
    let error = connector.handle_bytes(connector.started, &[SELECT]);
    assert_eq!(
        error,
        Err(HandshakeError::UnexpectedMessage {
            expected: ANSWER,
            found: SELECT
        })
    );
}

#[test]
fn a_reason_is_cut_between_characters() {
    let message = encode_choice(SELECT, LaneKind::Tcp, &"ü€".repeat(200));
    assert!(message.len() <= CHOICE_BYTES + REASON_BYTES_MAX);
    decode_choice(&message).unwrap();
    let long = [SELECT, 3, 1, 2];
    let error = choice_bytes(&long, SELECT, 0).unwrap_err();
    assert_eq!(error.to_string(), "reason of 513 bytes, limit 512");
}

#[test]
fn a_silent_peer_times_out_and_the_phase_is_named() {
    let now = Instant::now();
    let (mut connector, _) = pair(now);
    assert_eq!(connector.poll_timeout(), Some(now + TIMEOUT));
    assert_eq!(connector.handle_timeout(now), Ok(()));
    let error = connector.handle_timeout(now + TIMEOUT).unwrap_err();
    assert_eq!(
        error,
        HandshakeError::TimedOut {
            waited: TIMEOUT,
            phase: HandshakePhase::Hello
        }
    );
}

proptest! {
    #[test]
    fn noise_never_panics_and_is_never_hoarded(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..6000),
        greeting in 0_usize..300,
    ) {
        let hello = sample().encode();
        let greeting = greeting.min(hello.len()).min(bytes.len());
        bytes[..greeting].copy_from_slice(&hello[..greeting]);
        let now = Instant::now();
        let (_, mut acceptor) = pair(now);
        for piece in bytes.chunks(100) {
            if acceptor.handle_bytes(now, piece).is_err() {
                break;
            }
            prop_assert!(acceptor.received.len() <= PREFIX_BYTES + HELLO_BODY_BYTES_MAX);
        }
    }
}

/// A Hello that offers every lane
fn everything() -> Hello {
    Hello {
        lanes: LaneKind::ALL.to_vec(),
        ..sample()
    }
}

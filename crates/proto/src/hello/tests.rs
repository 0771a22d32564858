//! Parsing of a Hello: fields that are read, and bytes that are refused.

use proptest::prelude::*;

use super::*;

pub(crate) fn sample() -> Hello {
    Hello {
        boot_id: [1; 16],
        host_token: vec![2; 16],
        process_token: [3; 16],
        nonce: [4; 16],
        pid: 5,
        uid: 6,
        lanes: vec![LaneKind::Shm, LaneKind::Tcp],
        lanes_unknown: Vec::new(),
        unix_name: "backhaul-5".into(),
        credit_bytes: 7,
        credit_messages: 8,
        message_bytes_max: 9,
        segments_max: 10,
        carriers: CarrierKind::ALL.to_vec(),
        carriers_unknown: Vec::new(),
        data_chunk_bytes: 11,
        ucx_address: vec![12; 300],
    }
}

fn body() -> Vec<u8> {
    sample().encode()[PREFIX_BYTES..].to_vec()
}

#[test]
fn fields_are_numbered_by_their_place() {
    for (index, field) in FIELDS.into_iter().enumerate() {
        assert_eq!(field as usize, index + 1);
    }
}

#[test]
fn unknown_fields_are_skipped() {
    let mut body = body();
    body.extend([0xff, 0x7f, 2, 0, 1, 2]);
    assert_eq!(Hello::decode_body(&body), Ok(sample()));
}

#[test]
fn unknown_lanes_and_carriers_are_kept_by_their_numbers() {
    let (lanes, unknown) = sort_codes(&[3, 77, 2, 3, 0, 77], LaneKind::from_code);
    assert_eq!(lanes, [LaneKind::Tcp, LaneKind::Shm]);
    assert_eq!(unknown, [77, 0]);
    let newer = Hello {
        lanes_unknown: vec![7],
        carriers: vec![CarrierKind::Lease],
        carriers_unknown: vec![9, 8],
        ..sample()
    };
    let body = newer.encode()[PREFIX_BYTES..].to_vec();
    assert_eq!(Hello::decode_body(&body), Ok(newer));
}

#[test]
fn a_peer_that_names_no_carriers_has_none() {
    let none = Hello {
        carriers: Vec::new(),
        ..sample()
    };
    let field = [13, 0, 0, 0];
    let mut body = none.encode()[PREFIX_BYTES..].to_vec();
    let at = body.windows(4).position(|bytes| bytes == field).unwrap();
    body.drain(at..at + 4);
    assert_eq!(Hello::decode_body(&body), Ok(none));
}

#[test]
fn a_field_twice_or_of_a_wrong_size_is_refused() {
    let mut twice = body();
    twice.extend([5, 0, 4, 0, 9, 9, 9, 9]);
    let error = Hello::decode_body(&twice).unwrap_err();
    assert_eq!(error, HelloError::Duplicate { field: "pid" });
    let error = Hello::decode_body(&[6, 0, 1, 0, 9]).unwrap_err();
    assert_eq!(error.to_string(), "uid of 1 bytes, expected 4 to 4");
}

#[test]
fn a_proof_is_the_last_field_and_of_one_size() {
    let proved = sample().encode_with_room_for_proof();
    let body = &proved[PREFIX_BYTES..];
    assert_eq!(Hello::decode_proved(body), Ok((sample(), true)));
    let unproved = Hello::decode_proved(&body[..body.len() - 4 - PROOF_BYTES]);
    assert_eq!(unproved, Ok((sample(), false)));
    let followed = [body, &[0xff, 0x7f, 0, 0]].concat();
    let error = HelloError::ProofNotLast { bytes: 4 };
    assert_eq!(Hello::decode_body(&followed), Err(error));
    let error = Hello::decode_body(&[16, 0, 1, 0, 9]).unwrap_err();
    assert_eq!(error.to_string(), "proof of 1 bytes, expected 32 to 32");
}

#[test]
fn a_body_cut_anywhere_is_refused() {
    let body = body();
    for end in 0..body.len() {
        Hello::decode_body(&body[..end]).unwrap_err();
    }
    assert_eq!(
        Hello::decode_body(&[]),
        Err(HelloError::Missing { field: "lanes" })
    );
}

fn any_hello() -> impl Strategy<Value = Hello> {
    let lanes = proptest::sample::subsequence(LaneKind::ALL.to_vec(), 0..=4).prop_shuffle();
    (
        any::<[[u8; 16]; 3]>(),
        proptest::collection::vec(any::<u8>(), 0..=64),
        any::<[u32; 3]>(),
        any::<[u64; 4]>(),
        lanes,
        "[a-z0-9ü@-]{0,50}",
    )
        .prop_map(
            |(tokens, host_token, small, large, lanes, unix_name)| Hello {
                boot_id: tokens[0],
                process_token: tokens[1],
                nonce: tokens[2],
                pid: small[0],
                uid: small[1],
                carriers: lanes
                    .iter()
                    .filter_map(|lane| CarrierKind::from_code(lane.code()))
                    .collect(),
                lanes_unknown: host_token
                    .iter()
                    .take(5)
                    .filter(|code| **code > 100 && LaneKind::from_code(**code).is_none())
                    .copied()
                    .collect::<std::collections::BTreeSet<_>>()
                    .into_iter()
                    .collect(),
                carriers_unknown: Vec::new(),
                host_token,
                lanes,
                unix_name,
                data_chunk_bytes: large[3],
                ucx_address: Vec::new(),
                credit_bytes: large[0],
                credit_messages: large[1],
                message_bytes_max: large[2],
                segments_max: small[2],
            },
        )
}

proptest! {
    #[test]
    fn any_hello_comes_back(hello in any_hello()) {
        let bytes = hello.encode();
        prop_assert!(bytes.len() - PREFIX_BYTES <= HELLO_BODY_BYTES_MAX);
        prop_assert_eq!(Hello::decode_body(&bytes[PREFIX_BYTES..]), Ok(hello));
    }

    #[test]
    fn a_body_with_noise_in_it_never_panics(
        at in any::<proptest::sample::Index>(),
        noise in proptest::collection::vec(any::<u8>(), 1..20),
    ) {
        let mut body = body();
        let at = at.index(body.len());
        for (byte, noise) in body[at..].iter_mut().zip(noise) {
            *byte = noise;
        }
        let _ = Hello::decode_body(&body);
    }
}

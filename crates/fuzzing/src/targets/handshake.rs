//! The steps of a handshake, with a peer that says anything in any pieces.

use std::mem::discriminant;
use std::time::{Duration, Instant};

use backhaul_proto::{
    CarrierKind, Handshake, HandshakeError, HandshakeEvent, Hello, LaneKind, Role, Secret,
};

use crate::Input;

/// A peer whose bytes come in turns comes to the same end however each turn is cut into pieces
pub(super) fn handshake(data: &[u8]) {
    let mut input = Input::new(data);
    let side = input.byte();
    let role = [Role::Acceptor, Role::Connector][usize::from(side & 1)];
    let has_secret = side & 4 != 0;
    let prefers = input.choose(&[LaneKind::Shm, LaneKind::Tcp, LaneKind::Ucx]);
    let piece_bytes = 1 + input.below(7);
    let mut turns = Vec::new();
    while !input.is_empty() {
        let bytes = input.short() as usize;
        turns.push(input.take(bytes));
    }
    let whole = run(role, has_secret, prefers, &turns, usize::MAX);
    let pieces = run(role, has_secret, prefers, &turns, piece_bytes);
    if has_secret {
        // No input guesses a proof.
        assert!(whole.events.is_empty());
        assert!(role == Role::Connector || whole.sent.is_empty());
    }
    assert_eq!(whole.events, pieces.events);
    assert_eq!(whole.sent, pieces.sent);
    match (whole.outcome, pieces.outcome) {
        (Ok(whole), Ok(pieces)) => assert_eq!(whole, pieces),
        // How much of the bytes an error shows depends on how many had come.
        (Err(whole), Err(pieces)) => assert_eq!(discriminant(&whole), discriminant(&pieces)),
        (whole, pieces) => panic!("{whole:?} in whole turns, {pieces:?} in pieces"),
    }
}

struct Run {
    events: Vec<HandshakeEvent>,
    sent: Vec<u8>,
    /// How many bytes belonged to the handshake
    outcome: Result<usize, HandshakeError>,
}

fn run(
    role: Role,
    has_secret: bool,
    prefers: LaneKind,
    turns: &[&[u8]],
    piece_bytes: usize,
) -> Run {
    let now = Instant::now();
    let secret = has_secret.then(|| Secret::new(b"a secret of the cluster").expect("long enough"));
    let patience = Duration::from_secs(3600);
    let mut handshake = Handshake::with_secret(role, ours(), secret, now, patience);
    let mut run = Run {
        events: Vec::new(),
        sent: Vec::new(),
        outcome: Ok(0),
    };
    let mut received: Vec<u8> = Vec::new();
    drain(&mut handshake, role, prefers, &received, &mut run);
    'turns: for turn in turns {
        for piece in turn.chunks(piece_bytes.max(1)) {
            received.extend(&piece[..piece.len().min(BEGINNING_BYTES)]);
            match handshake.handle_bytes(now, piece) {
                Ok(used) => {
                    assert!(used <= piece.len());
                    run.outcome = run.outcome.map(|before| before + used);
                }
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    run.outcome = Err(error);
                    break 'turns;
                }
            }
        }
        drain(&mut handshake, role, prefers, &received, &mut run);
    }
    drain(&mut handshake, role, prefers, &received, &mut run);
    run
}

/// Takes what the handshake has to say, and decides where it is this side's turn
fn drain(handshake: &mut Handshake, role: Role, prefers: LaneKind, received: &[u8], run: &mut Run) {
    while let Some(event) = handshake.poll_event() {
        if run.outcome.is_ok() {
            decide(handshake, role, prefers, &event);
        }
        run.events.push(event);
    }
    while let Some(bytes) = handshake.poll_transmit() {
        let has_magic = received.get(8..16) == Some(&b"backhaul"[..]);
        assert!(
            role == Role::Connector || has_magic,
            "an acceptor says nothing to a stranger"
        );
        run.sent.extend(bytes);
    }
}

fn decide(handshake: &mut Handshake, role: Role, prefers: LaneKind, event: &HandshakeEvent) {
    match event {
        HandshakeEvent::PeerHello(hello) => {
            assert!(hello.credit_messages > 0 && hello.data_chunk_bytes > 0);
            let is_in_both = hello.lanes.contains(&prefers);
            let lane = if is_in_both { prefers } else { LaneKind::Tcp };
            // The acceptor waits for the peer's choice.
            if role == Role::Connector {
                handshake.select(lane, "as preferred");
            }
        }
        HandshakeEvent::LaneSelected { lane, reason } => {
            assert!(reason.len() <= 512);
            let lane = match *lane == prefers {
                true => prefers,
                false => LaneKind::Tcp,
            };
            handshake.answer(lane, "as it is");
        }
        HandshakeEvent::Done { reason, .. } => assert!(reason.len() <= 512),
    }
}

fn ours() -> Hello {
    Hello {
        boot_id: [1; 16],
        host_token: vec![2; 16],
        process_token: [3; 16],
        nonce: [4; 16],
        pid: 5,
        uid: 6,
        lanes: vec![LaneKind::Shm, LaneKind::Ucx, LaneKind::Tcp],
        lanes_unknown: Vec::new(),
        unix_name: "backhaul-0".to_owned(),
        credit_bytes: 1 << 20,
        credit_messages: 64,
        message_bytes_max: 1 << 30,
        segments_max: 1024,
        carriers: vec![CarrierKind::Lease, CarrierKind::SingleCopy],
        carriers_unknown: Vec::new(),
        data_chunk_bytes: 1 << 16,
        ucx_address: vec![7; 40],
    }
}

/// As much of what came as is looked at here
const BEGINNING_BYTES: usize = 64;

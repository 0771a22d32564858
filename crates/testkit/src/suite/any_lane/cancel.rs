//! Giving up: an operation cancelled or dropped at any await leaves the endpoint whole.

use backhaul::{AcceptError, ConnectError, Endpoint, RecvError, SendError, Tag, TagMask};

use crate::executor::give_up_after;
use crate::harness::LOOPBACK;
use crate::{Finish, Harness, Pair, assert_matches, pattern};

/// A send dropped after each number of polls is delivered whole or not at all
pub fn a_send_dropped_at_any_await_is_whole_or_absent(harness: &Harness) {
    let pair = harness.pair();
    for bytes in SIZES {
        for early in [true, false] {
            let mut polls = 0;
            loop {
                let post = || pair.far.recv_message(Tag(1), TagMask::FULL);
                let posted = early.then(post);
                let send = pair.near.send(Tag(1), pattern::make(1, bytes));
                // A long message that no receive asked for yet never completes.
                let sent = pollster::block_on(give_up_after(send, polls));
                let sentinel = pair.near.send(Tag(1), SENTINEL);
                let first = posted.unwrap_or_else(post).done().unwrap();
                if first.segments[0][..] != *SENTINEL {
                    assert_eq!(first.segments[0].len(), bytes);
                    pattern::check(1, &first.segments[0]);
                    let second = post().done().unwrap();
                    assert_eq!(second.segments[0][..], *SENTINEL);
                } else {
                    assert!(sent.is_none(), "a send that completed was not delivered");
                }
                sentinel.done().unwrap();
                match sent {
                    Some(outcome) => {
                        outcome.unwrap();
                        break;
                    }
                    None if polls == POLLS_MAX => break,
                    None => polls += 1,
                }
            }
        }
    }
    assert_works(&pair);
}

/// A cancelled receive says whether it took its message
pub fn a_cancelled_receive_tells_the_truth(harness: &Harness) {
    let pair = harness.pair();
    let idle = pair.far.recv_message(Tag(9), TagMask::FULL);
    idle.cancel();
    assert_matches!(idle.done().unwrap_err(), RecvError::Cancelled);
    let idle = pair.far.recv_frames();
    idle.cancel();
    idle.cancel();
    assert_matches!(idle.done().unwrap_err(), RecvError::Cancelled);
    for bytes in SIZES {
        for steps in 0..20 {
            let request = pair.far.recv(Tag(1), TagMask::FULL, vec![0; bytes]);
            let send = pair.near.send(Tag(1), pattern::make(steps, bytes));
            for _ in 0..steps {
                request.step();
            }
            request.cancel();
            let received = match request.done() {
                Ok(received) => received,
                Err(RecvError::Cancelled) => {
                    let again = pair.far.recv(Tag(1), TagMask::FULL, vec![0; bytes]);
                    again.done().unwrap()
                }
                Err(error) => panic!("{error}"),
            };
            pattern::check(steps, &received.into_buffer::<Vec<u8>>().unwrap());
            send.done().unwrap();
        }
    }
    assert_works(&pair);
}

/// A cancelled send says whether its message goes out
pub fn a_cancelled_send_tells_the_truth(harness: &Harness) {
    let pair = harness.pair();
    for bytes in SIZES {
        for steps in 0..20 {
            let posted = pair.far.recv_message(Tag(1), TagMask::FULL);
            let send = pair.near.send(Tag(1), pattern::make(steps, bytes));
            for _ in 0..steps {
                send.step();
            }
            send.cancel();
            match send.done() {
                Ok(()) => pattern::check(steps, &posted.done().unwrap().segments[0]),
                Err(SendError::Cancelled) => {
                    pair.near.send(Tag(1), SENTINEL).done().unwrap();
                    assert_eq!(posted.done().unwrap().segments[0][..], *SENTINEL);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert_works(&pair);
}

/// A send that waits for credit can be withdrawn, and those behind it go on
pub fn a_send_that_waits_for_credit_is_withdrawn(harness: &Harness) {
    let pair = harness.pair_with(|config| config.limits.credit_messages = 4);
    let sends: Vec<_> = (0..12)
        .map(|seed| pair.near.send(Tag(1), pattern::make(seed, 100)))
        .collect();
    sends[8].cancel();
    assert_matches!(sends[8].done().unwrap_err(), SendError::Cancelled);
    sends[0].cancel();
    sends[11].cancel();
    assert_matches!(sends[11].done().unwrap_err(), SendError::Cancelled);
    for (seed, send) in sends.iter().enumerate() {
        if ![8, 11].contains(&seed) {
            let message = pair.far.recv_message(Tag(1), TagMask::FULL).done().unwrap();
            pattern::check(seed as u64, &message.segments[0]);
            send.done().unwrap();
        }
    }
    assert_eq!(pair.near.queued_bytes(), 0);
    assert_works(&pair);
}

/// Long messages of which the receive was dropped do not block others, and wait for the next
pub fn a_dropped_long_receive_does_not_block_the_lane(harness: &Harness) {
    let pair = harness.pair();
    for _ in 0..5 {
        let send = pair.near.send(Tag(1), pattern::make(1, 8 << 20));
        let request = pair.far.recv(Tag(1), TagMask::FULL, vec![0; 8 << 20]);
        while !request.is_done() {
            request.step();
            let protocol = pair.far.info().protocol;
            if protocol.is_some_and(|protocol| protocol.recvs_posted == 0) {
                break;
            }
        }
        drop(request);
        exchange(&pair.near, &pair.far);
        exchange(&pair.far, &pair.near);
        let left = pair.far.recv_message(Tag(1), TagMask::FULL);
        pattern::check(1, &left.done().unwrap().segments[0]);
        send.done().unwrap();
        assert_works(&pair);
    }
}

/// Connecting can be given up at any await; the listener and the context go on
pub fn a_connect_dropped_at_any_await_leaves_the_listener_whole(harness: &Harness) {
    let (near, far) = (harness.context(), harness.context());
    let listener = far.listen(LOOPBACK).unwrap();
    let address = listener.local_address().to_string();
    for polls in 0..POLLS_MAX {
        let connect = near.connect(&address);
        if let Some(outcome) = pollster::block_on(give_up_after(connect, polls)) {
            drop(outcome.unwrap());
        }
    }
    let cancelled = near.connect(&address);
    cancelled.cancel();
    match cancelled.done() {
        Ok(_) => {}
        Err(ConnectError::Cancelled { address: named }) => assert_eq!(named, address),
        Err(error) => panic!("{error}"),
    }
    // Connections that were given up may have been accepted, so look for the one that speaks.
    let endpoint = near.connect(&address).done().unwrap();
    endpoint.send(Tag(1), SENTINEL).detach();
    loop {
        let accepted = listener.accept().done().unwrap();
        let request = accepted.recv_message(Tag(1), TagMask::FULL);
        if let Ok(message) = request.done() {
            assert_eq!(message.segments[0][..], *SENTINEL);
            harness.assert_lane(&accepted);
            break;
        }
    }
}

/// Accepting can be given up at any await; the next accept gets the peer
pub fn an_accept_dropped_at_any_await_leaves_the_listener_whole(harness: &Harness) {
    let (near, far) = (harness.context(), harness.context());
    let listener = far.listen(LOOPBACK).unwrap();
    for polls in 0..10 {
        let accept = listener.accept();
        assert!(pollster::block_on(give_up_after(accept, polls)).is_none());
        harness.connect(&near, &listener);
    }
    let (cancelled, kept) = (listener.accept(), listener.accept());
    cancelled.cancel();
    assert_matches!(cancelled.done().unwrap_err(), AcceptError::Cancelled);
    let near = near.connect(&listener.local_address().to_string());
    let (near, far) = (near.done().unwrap(), kept.done().unwrap());
    exchange(&near, &far);
}

/// A close that no caller waits for closes all the same
pub fn a_close_dropped_at_any_await_closes(harness: &Harness) {
    for polls in 0..10 {
        let pair = harness.pair();
        let posted = pair.far.recv_message(Tag(1), TagMask::FULL);
        pair.near.send(Tag(1), pattern::make(1, 3000)).detach();
        let close = pair.near.close();
        if let Some(outcome) = pollster::block_on(give_up_after(close, polls)) {
            outcome.unwrap();
        }
        pattern::check(1, &posted.done().unwrap().segments[0]);
        pair.far.watch_close().done().unwrap();
        pair.near.watch_close().done().unwrap();
    }
}

/// Asserts that messages pass in both directions and nothing old is left
fn assert_works(pair: &Pair) {
    exchange(&pair.near, &pair.far);
    exchange(&pair.far, &pair.near);
    let protocol = pair.far.info().protocol;
    if let Some(protocol) = protocol {
        assert_eq!(
            (protocol.unexpected_messages, protocol.recvs_posted),
            (0, 0)
        );
    }
}

fn exchange(from: &Endpoint, to: &Endpoint) {
    for bytes in SIZES {
        let posted = to.recv_message(Tag(77), TagMask::FULL);
        let send = from.send(Tag(77), pattern::make(77, bytes));
        pattern::check(77, &posted.done().unwrap().segments[0]);
        send.done().unwrap();
    }
}

/// Eager, long, and longer than a slice of work
const SIZES: [usize; 3] = [500, 200_000, 5 << 20];

/// Message that comes behind the one that was given up
const SENTINEL: &[u8] = b"sentinel";

/// Gives up on giving up
const POLLS_MAX: usize = 40;

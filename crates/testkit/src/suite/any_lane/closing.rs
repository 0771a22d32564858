//! The end of a connection, from either side, gently or not.

use std::time::Duration;

use backhaul::{CloseReason, Endpoint, RecvError, SendError, Tag, TagMask};

use crate::{Finish, Harness, assert_matches, pattern, wait_until};

/// Messages sent before a close are received, then the reason is given
pub fn what_was_sent_before_a_close_arrives(harness: &Harness) {
    const COUNT: u64 = 50;
    for bytes in [10, 300_000] {
        // All of it, on a machine that is busy, too.
        let pair = harness.pair_with(|config| config.linger = Duration::from_secs(120));
        let posted: Vec<_> = (0..COUNT)
            .map(|_| pair.far.recv_message(Tag(1), TagMask::FULL))
            .collect();
        let beyond = pair.far.recv_message(Tag(1), TagMask::FULL);
        let sends: Vec<_> = (0..COUNT)
            .map(|seed| pair.near.send(Tag(1), pattern::make(seed, bytes)))
            .collect();
        pair.near.close().done().unwrap();
        for send in sends {
            send.done().unwrap();
        }
        for (seed, request) in posted.into_iter().enumerate() {
            pattern::check(seed as u64, &request.done().unwrap().segments[0]);
        }
        let error = beyond.done().unwrap_err();
        assert_matches!(error, RecvError::Closed(CloseReason::Peer { peer }) if peer == pair.near.local_address());
    }
}

/// Messages without a receive when the peer closed
pub fn unexpected_messages_outlive_a_close_of_the_peer(harness: &Harness) {
    let pair = harness.pair();
    for seed in 0..50 {
        pair.near
            .send(Tag(seed % 2), pattern::make(seed, 1000))
            .detach();
    }
    let posted = pair.far.recv_message(Tag(7), TagMask::FULL);
    pair.near.close().done().unwrap();
    assert_matches!(
        posted.done().unwrap_err(),
        RecvError::Closed(CloseReason::Peer { .. })
    );
    assert_matches!(
        pair.far.watch_close().done().unwrap(),
        CloseReason::Peer { .. }
    );
    for tag in [1, 0] {
        for seed in (0..50).filter(|seed| seed % 2 == tag) {
            let request = pair.far.recv(Tag(tag), TagMask::FULL, vec![0; 1000]);
            let received = request.done().unwrap();
            pattern::check(seed, &received.into_buffer::<Vec<u8>>().unwrap());
        }
        let request = pair.far.recv_message(Tag(tag), TagMask::FULL);
        assert_matches!(
            request.done().unwrap_err(),
            RecvError::Closed(CloseReason::Peer { .. })
        );
    }
}

/// After a close, this side sends no more
pub fn sends_after_a_close_fail(harness: &Harness) {
    let pair = harness.pair();
    let closing = pair.near.close();
    assert!(pair.near.is_closed());
    let late = pair.near.send(Tag(1), &b"late"[..]);
    assert_matches!(
        late.done().unwrap_err(),
        SendError::Closed(CloseReason::Local)
    );
    closing.done().unwrap();
    let late = pair.near.send(Tag(1), &b"later"[..]);
    assert_matches!(
        late.done().unwrap_err(),
        SendError::Closed(CloseReason::Local)
    );
    assert_matches!(pair.near.close_reason(), Some(CloseReason::Local));
    let request = pair.near.recv_message(Tag(1), TagMask::FULL);
    assert_matches!(
        request.done().unwrap_err(),
        RecvError::Closed(CloseReason::Local)
    );
    assert!(pair.near.info().closed.is_some());
}

/// The other side learns it by sending, too
pub fn sends_to_a_closed_peer_fail(harness: &Harness) {
    let pair = harness.pair();
    pair.near.close().done().unwrap();
    pair.far.watch_close().done().unwrap();
    let send = pair.far.send(Tag(1), &b"nobody"[..]);
    assert_matches!(
        send.done().unwrap_err(),
        SendError::Closed(CloseReason::Peer { .. })
    );
    assert!(pair.far.is_closed());
    assert_eq!(pair.far.queued_bytes(), 0);
}

/// Both close at once; what either had handed to the lane before is received
///
/// Long messages still need the peer's answer, and a peer that has closed owes none: they come
/// whole, or their operations say that the peer has closed.
pub fn both_sides_close_with_messages_on_the_way(harness: &Harness) {
    for bytes in [10, 4 << 20] {
        let is_short = bytes == 10;
        let pair = harness.pair();
        let (near, far) = (&pair.near, &pair.far);
        let side = |endpoint: &Endpoint, seed| {
            let posted: Vec<_> = (0..4)
                .map(|_| endpoint.recv_message(Tag(1), TagMask::FULL))
                .collect();
            let sends: Vec<_> = (0..4)
                .map(|_| endpoint.send(Tag(1), pattern::make(seed, bytes)))
                .collect();
            if is_short {
                // From now on they are with the lane.
                assert!(sends.iter().all(|send| send.wait_done(None)));
            }
            (posted, sends)
        };
        let (at_near, from_near) = side(near, 1);
        let (at_far, from_far) = side(far, 2);
        let closing = [near.close(), far.close()];
        for (seed, posted) in [(2, at_near), (1, at_far)] {
            for request in posted {
                match request.done() {
                    Ok(message) => pattern::check(seed, &message.segments[0]),
                    Err(RecvError::Closed(_)) if !is_short => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
        for send in from_near.into_iter().chain(from_far) {
            match send.done() {
                Ok(()) => {}
                Err(SendError::Closed(_)) if !is_short => {}
                Err(error) => panic!("{error}"),
            }
        }
        for request in closing {
            request.done().unwrap();
        }
        for endpoint in [near, far] {
            assert_matches!(
                endpoint.watch_close().done().unwrap(),
                CloseReason::Local | CloseReason::Peer { .. }
            );
        }
    }
}

/// A side that closes still receives what the other had sent
pub fn a_closing_side_still_receives(harness: &Harness) {
    // All of it is to arrive, however busy the machine.
    let pair = harness.pair_with(|config| config.linger = Duration::from_secs(120));
    let posted = pair.far.recv_message(Tag(1), TagMask::FULL);
    let reply = pair.near.recv_message(Tag(2), TagMask::FULL);
    let long = pair.near.send(Tag(1), pattern::make(1, 8 << 20));
    let answer = pair.far.send(Tag(2), pattern::make(2, 1000));
    let closing = pair.near.close();
    pattern::check(2, &reply.done().unwrap().segments[0]);
    pattern::check(1, &posted.done().unwrap().segments[0]);
    long.done().unwrap();
    answer.done().unwrap();
    closing.done().unwrap();
}

/// A peer that takes nothing cannot hold up a close for ever
pub fn a_close_gives_up_on_a_peer_that_takes_nothing(harness: &Harness) {
    let pair = harness.pair_with(|config| config.linger = Duration::from_millis(100));
    // No receive will ask for it, so it never leaves.
    let stuck = pair.near.send(Tag(1), vec![0; 1 << 20]);
    pair.near.close().done().unwrap();
    assert_matches!(
        stuck.done().unwrap_err(),
        SendError::Closed(CloseReason::Local)
    );
    let reason = pair.far.watch_close().done().unwrap();
    assert_matches!(reason, CloseReason::PeerGone { .. });
}

/// Closing again, or after the peer did, is no error
pub fn closing_twice_is_harmless(harness: &Harness) {
    let pair = harness.pair();
    let first = pair.near.close();
    let second = pair.near.close();
    first.done().unwrap();
    second.done().unwrap();
    pair.near.close().done().unwrap();
    pair.far.close().done().unwrap();
    pair.far.abort();
    pair.near.abort();
    assert_matches!(pair.near.close_reason(), Some(CloseReason::Local));
}

/// An abort fails everything in flight, at both ends
pub fn an_abort_fails_what_is_in_flight(harness: &Harness) {
    let pair = harness.pair();
    let stuck = pair.near.send(Tag(1), vec![0; 1 << 20]);
    let posted = pair.near.recv_message(Tag(2), TagMask::FULL);
    let watched = pair.near.watch_close();
    let at_far = pair.far.recv(Tag(3), TagMask::FULL, vec![0; 8]);
    let from_far = pair.far.send(Tag(4), vec![0; 1 << 20]);
    pair.near.abort();
    assert_matches!(
        stuck.done().unwrap_err(),
        SendError::Closed(CloseReason::Local)
    );
    assert_matches!(
        posted.done().unwrap_err(),
        RecvError::Closed(CloseReason::Local)
    );
    assert_matches!(watched.done().unwrap(), CloseReason::Local);
    assert_matches!(
        at_far.done().unwrap_err(),
        RecvError::Closed(CloseReason::PeerGone { .. })
    );
    assert_matches!(
        from_far.done().unwrap_err(),
        SendError::Closed(CloseReason::PeerGone { .. })
    );
    assert_eq!(pair.near.queued_bytes(), 0);
    assert_eq!(pair.far.queued_bytes(), 0);
}

/// An abort in the middle of long messages, of the sender and of the receiver
pub fn an_abort_in_the_middle_of_a_message_fails_it(harness: &Harness) {
    for by_sender in [true, false] {
        let pair = harness.pair();
        let sends: Vec<_> = (0..8)
            .map(|seed| pair.near.send(Tag(1), pattern::make(seed, 8 << 20)))
            .collect();
        let posted: Vec<_> = (0..8)
            .map(|_| pair.far.recv(Tag(1), TagMask::FULL, vec![0; 8 << 20]))
            .collect();
        wait_until(|| posted.iter().any(|request| request.step()));
        if by_sender {
            pair.near.abort();
        } else {
            pair.far.abort();
        }
        for (seed, request) in posted.iter().enumerate() {
            match request.done() {
                Ok(received) => {
                    pattern::check(seed as u64, &received.into_buffer::<Vec<u8>>().unwrap());
                }
                Err(RecvError::Closed(CloseReason::Local)) => assert!(!by_sender),
                Err(RecvError::Closed(CloseReason::PeerGone { .. })) => assert!(by_sender),
                Err(error) => panic!("{error}"),
            }
        }
        for send in sends {
            match send.done() {
                Ok(()) => {}
                Err(SendError::Closed(CloseReason::Local)) => assert!(by_sender),
                Err(SendError::Closed(CloseReason::PeerGone { .. })) => assert!(!by_sender),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// Dropping is aborting
pub fn dropping_an_endpoint_ends_the_connection(harness: &Harness) {
    let pair = harness.pair();
    let posted = pair.far.recv_message(Tag(1), TagMask::FULL);
    let at_near = pair.near.recv_message(Tag(1), TagMask::FULL);
    let stuck = pair.near.send(Tag(2), vec![0; 1 << 20]);
    drop(pair.near);
    assert_matches!(
        at_near.done().unwrap_err(),
        RecvError::Closed(CloseReason::Local)
    );
    assert_matches!(
        stuck.done().unwrap_err(),
        SendError::Closed(CloseReason::Local)
    );
    assert_matches!(
        posted.done().unwrap_err(),
        RecvError::Closed(CloseReason::PeerGone { .. })
    );
}

/// Messages that came before an abort can still be received
pub fn unexpected_messages_outlive_an_abort_of_the_peer(harness: &Harness) {
    let pair = harness.pair();
    for seed in 0..20 {
        pair.near
            .send(Tag(1), pattern::make(seed, 1000))
            .done()
            .unwrap();
    }
    wait_until(|| {
        let protocol = pair.far.info().protocol;
        protocol.is_some_and(|protocol| protocol.unexpected_messages == 20)
    });
    pair.near.abort();
    assert_matches!(
        pair.far.watch_close().done().unwrap(),
        CloseReason::PeerGone { .. }
    );
    for seed in 0..20 {
        let request = pair.far.recv(Tag(1), TagMask::FULL, vec![0; 1000]);
        let received = request.done().unwrap();
        pattern::check(seed, &received.into_buffer::<Vec<u8>>().unwrap());
    }
    let request = pair.far.recv_message(Tag(1), TagMask::FULL);
    assert_matches!(
        request.done().unwrap_err(),
        RecvError::Closed(CloseReason::PeerGone { .. })
    );
}

/// Each watcher of the close gets the reason
pub fn every_watcher_hears_of_the_end(harness: &Harness) {
    let pair = harness.pair();
    let watchers: Vec<_> = (0..10).map(|_| pair.far.watch_close()).collect();
    pair.near.close().done().unwrap();
    for watcher in watchers {
        assert_matches!(watcher.done().unwrap(), CloseReason::Peer { .. });
    }
    assert_matches!(
        pair.far.watch_close().done().unwrap(),
        CloseReason::Peer { .. }
    );
    assert_matches!(pair.far.close_reason(), Some(CloseReason::Peer { .. }));
}

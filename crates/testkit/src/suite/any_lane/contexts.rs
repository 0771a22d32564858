//! Contexts: several in a process, both ends in one, and their end.

use backhaul::{
    AcceptError, CloseReason, ConnectError, ListenError, RecvError, SendError, Tag, TagMask,
};

use crate::harness::LOOPBACK;
use crate::{Finish, Harness, assert_matches, pattern};

/// Both ends may belong to one context
pub fn a_context_connects_to_itself(harness: &Harness) {
    let context = harness.context();
    let pair = harness.pair_of(context.clone(), context);
    for bytes in [10, 3 << 20] {
        let posted = pair.far.recv_message(Tag(1), TagMask::FULL);
        let send = pair.near.send(Tag(1), pattern::make(1, bytes));
        pattern::check(1, &posted.done().unwrap().segments[0]);
        send.done().unwrap();
    }
    assert_eq!(pair.near.local_address(), pair.far.peer_address());
    assert_eq!(pair.far.local_address(), pair.near.peer_address());
    assert_eq!(pair.near.info().peer_pid, std::process::id());
}

/// An endpoint keeps the engine of its context running
pub fn endpoints_outlive_the_handles_of_their_context(harness: &Harness) {
    let pair = harness.pair();
    let (near, far) = (pair.near, pair.far);
    drop((pair.near_context, pair.far_context));
    let posted = far.recv_message(Tag(1), TagMask::FULL);
    let send = near.send(Tag(1), pattern::make(1, 200_000));
    pattern::check(1, &posted.done().unwrap().segments[0]);
    send.done().unwrap();
}

/// Endpoints of one context do not suffer from the end of another
pub fn the_end_of_one_context_spares_another(harness: &Harness) {
    let first = harness.pair();
    let second = harness.pair();
    first.near_context.close();
    first.near.watch_close().done().unwrap();
    let posted = second.far.recv_message(Tag(1), TagMask::FULL);
    second.near.send(Tag(1), &b"alive"[..]).done().unwrap();
    assert_eq!(posted.done().unwrap().segments[0][..], *b"alive");
}

/// Everything in flight fails when a context is closed
pub fn closing_a_context_fails_what_is_in_flight(harness: &Harness) {
    let pair = harness.pair();
    let listener = pair.near_context.listen(LOOPBACK).unwrap();
    let accept = listener.accept();
    let posted = pair.near.recv_message(Tag(1), TagMask::FULL);
    let stuck = pair.near.send(Tag(2), vec![0; 1 << 20]);
    let streams: Vec<_> = (0..4)
        .map(|_| {
            let posted = pair.far.recv_message(Tag(3), TagMask::FULL);
            (pair.near.send(Tag(3), vec![1; 8 << 20]), posted)
        })
        .collect();
    let at_far = pair.far.recv_message(Tag(1), TagMask::FULL);
    pair.near_context.close();
    assert_matches!(
        posted.done().unwrap_err(),
        RecvError::Closed(CloseReason::Local)
    );
    assert_matches!(
        stuck.done().unwrap_err(),
        SendError::Closed(CloseReason::Local)
    );
    for (send, posted) in streams {
        assert_matches!(
            send.done(),
            Ok(()) | Err(SendError::Closed(CloseReason::Local))
        );
        assert_matches!(
            posted.done(),
            Ok(_) | Err(RecvError::Closed(CloseReason::PeerGone { .. }))
        );
    }
    assert_matches!(accept.done().unwrap_err(), AcceptError::Closed);
    assert_matches!(
        at_far.done().unwrap_err(),
        RecvError::Closed(CloseReason::PeerGone { .. })
    );
}

/// A closed context refuses, and does not hang
pub fn a_closed_context_refuses(harness: &Harness) {
    let context = harness.context();
    let listener = context.listen(LOOPBACK).unwrap();
    let address = listener.local_address().to_string();
    let pair = harness.pair_of(context.clone(), harness.context());
    context.close();
    pair.near.watch_close().done().unwrap();
    let send = pair.near.send(Tag(1), &b"x"[..]);
    assert_matches!(
        send.done().unwrap_err(),
        SendError::Closed(CloseReason::Local)
    );
    pair.near.close().done().unwrap();
    assert_matches!(
        context.listen(LOOPBACK).unwrap_err(),
        ListenError::Io { .. }
    );
    let connect = context.connect(&address);
    assert_matches!(
        connect.done().unwrap_err(),
        ConnectError::Io { .. } | ConnectError::Cancelled { .. }
    );
    assert_matches!(listener.accept().done().unwrap_err(), AcceptError::Closed);
    context.close();
}

/// A context closed while connects and accepts are under way completes them all
pub fn closing_a_context_races_with_connects(harness: &Harness) {
    let far = harness.context();
    let listener = far.listen(LOOPBACK).unwrap();
    let address = listener.local_address().to_string();
    for round in 0..20 {
        let near = harness.context();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..round {
                    std::thread::yield_now();
                }
                near.close();
            });
            let connects: Vec<_> = (0..4).map(|_| near.connect(&address)).collect();
            for connect in connects {
                match connect.done() {
                    Ok(endpoint) => {
                        // Whether it was just before or just after, it ends.
                        endpoint.watch_close().done().unwrap();
                    }
                    Err(ConnectError::Io { .. } | ConnectError::Cancelled { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }
}

//! Two processes, of which one is killed, stopped, or leaves.

use std::time::Duration;

use backhaul::{
    Bytes, CloseReason, Endpoint, KeepAlive, RecvError, Request, SendError, Tag, TagMask,
};

use crate::peer::{LONG_BYTES, SHORT_BYTES, SOME, SOME_LONG, Scenario};
use crate::{Finish, Harness, assert_matches, pattern, wait_until};

/// Everything works between processes too
pub fn messages_pass_between_processes(harness: &Harness) {
    let (_process, endpoint) = harness.peer_process(&harness.context(), Scenario::Echo);
    for bytes in [0, 1, 1000, 65_536, 65_537, 5 << 20] {
        for round in 0..5 {
            let reply = endpoint.recv(Tag(round), TagMask::FULL, vec![0; bytes]);
            let payload = pattern::make(round, bytes);
            endpoint.send(Tag(round), payload).done().unwrap();
            let received = reply.done().unwrap();
            assert_eq!(received.bytes, bytes);
            pattern::check(round, &received.into_buffer::<Vec<u8>>().unwrap());
        }
    }
}

/// Killed while nothing happens
pub fn a_peer_killed_while_idle_is_noticed(harness: &Harness) {
    let (mut process, endpoint) = harness.peer_process(&harness.context(), Scenario::Idle);
    let posted = endpoint.recv(Tag(1), TagMask::FULL, vec![0; 8]);
    let frames = endpoint.recv_frames();
    let stuck = endpoint.send(Tag(1), vec![0; LONG_BYTES]);
    let watched = endpoint.watch_close();
    process.kill();
    assert_gone_recv(posted.done());
    assert_gone_recv(frames.done());
    assert_gone_send(stuck.done());
    assert_matches!(watched.done().unwrap(), CloseReason::PeerGone { .. });
    assert_is_over(&endpoint);
}

/// Killed while it waits for messages, one of them on its way
pub fn a_peer_killed_with_posted_receives_is_noticed(harness: &Harness) {
    let (mut process, endpoint) = harness.peer_process(&harness.context(), Scenario::Posted);
    endpoint.send(Tag(5), &b"unexpected"[..]).done().unwrap();
    let stuck = endpoint.send(Tag(1), vec![0; LONG_BYTES]);
    process.kill();
    assert_gone_send(stuck.done());
    assert_is_over(&endpoint);
}

/// Killed while long messages come from it
pub fn a_peer_killed_while_sending_long_messages_is_noticed(harness: &Harness) {
    for kill_after in [0, 2] {
        let (mut process, endpoint) = harness.peer_process(&harness.context(), Scenario::FloodLong);
        let mut posted: Vec<_> = (0..8)
            .map(|_| endpoint.recv(Tag(1), TagMask::FULL, vec![0; LONG_BYTES]))
            .collect();
        let unrelated = endpoint.recv_message(Tag(2), TagMask::FULL);
        let rest = posted.split_off(kill_after);
        for (seed, request) in posted.into_iter().enumerate() {
            let received = request.done().unwrap();
            pattern::check(seed as u64, &received.into_buffer::<Vec<u8>>().unwrap());
        }
        process.kill();
        // Each has its own message or none: a later one may have been fetched before the end, where
        // an earlier one was on its way through the lane.
        for (seed, request) in (kill_after as u64..).zip(rest) {
            match request.done() {
                Ok(received) => {
                    pattern::check(seed, &received.into_buffer::<Vec<u8>>().unwrap());
                }
                Err(RecvError::Closed(CloseReason::PeerGone { .. })) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_gone_recv(unrelated.done());
        assert_is_over(&endpoint);
    }
}

/// Killed while long messages go to it
pub fn a_peer_killed_while_receiving_long_messages_is_noticed(harness: &Harness) {
    for kill_after in [0, 3] {
        let (mut process, endpoint) = harness.peer_process(&harness.context(), Scenario::Sink);
        let payload = Bytes::from(vec![7; LONG_BYTES]);
        let mut sends: Vec<_> = (0..64)
            .map(|_| endpoint.send(Tag(1), payload.clone()))
            .collect();
        let posted = endpoint.recv_message(Tag(2), TagMask::FULL);
        let rest = sends.split_off(kill_after);
        for send in sends {
            send.done().unwrap();
        }
        process.kill();
        let mut failed = 0;
        for send in rest {
            match send.done() {
                Ok(()) => {}
                outcome => {
                    assert_gone_send(outcome);
                    failed += 1;
                }
            }
        }
        assert!(failed > 0, "half a gigabyte was taken before the kill");
        assert_gone_recv(posted.done());
        assert_is_over(&endpoint);
    }
}

/// Killed while short messages come from it
pub fn a_peer_killed_in_a_flood_is_noticed(harness: &Harness) {
    let (mut process, endpoint) = harness.peer_process(&harness.context(), Scenario::Flood);
    for seed in 0..500 {
        receive_short(&endpoint, seed).unwrap();
    }
    process.kill();
    // Earlier messages are received, in order and whole, then the reason.
    let mut seed = 500;
    let error = loop {
        match receive_short(&endpoint, seed) {
            Ok(()) => seed += 1,
            Err(error) => break error,
        }
    };
    assert_matches!(error, RecvError::Closed(CloseReason::PeerGone { .. }));
    assert_is_over(&endpoint);
}

/// Killed while short messages go to it
pub fn a_peer_killed_under_a_flood_is_noticed(harness: &Harness) {
    let (mut process, endpoint) = harness.peer_process(&harness.context(), Scenario::Sink);
    let mut sends: Vec<Request<(), SendError>> = Vec::new();
    for seed in 0..2000 {
        sends.push(endpoint.send(Tag(1), pattern::make(seed, SHORT_BYTES)));
        if seed == 1000 {
            process.kill();
        }
    }
    let outcomes: Vec<_> = sends.iter().map(Finish::done).collect();
    let sent = outcomes
        .iter()
        .take_while(|outcome| outcome.is_ok())
        .count();
    for outcome in outcomes.into_iter().skip(sent) {
        assert_gone_send(outcome);
    }
    assert_matches!(
        endpoint.watch_close().done().unwrap(),
        CloseReason::PeerGone { .. }
    );
    assert_is_over(&endpoint);
}

/// Messages that came completely before the kill can be received after it
pub fn messages_that_came_before_a_kill_are_received(harness: &Harness) {
    let (mut process, endpoint) = harness.peer_process(&harness.context(), Scenario::SendSome);
    let complete =
        |protocol: backhaul::ConnectionStatistics| protocol.unexpected_messages as u64 == SOME;
    wait_until(|| endpoint.info().protocol.is_some_and(complete));
    process.kill();
    let reason = endpoint.watch_close().done().unwrap();
    assert_matches!(reason, CloseReason::PeerGone { .. });
    for seed in 0..SOME {
        receive_short(&endpoint, seed).unwrap();
    }
    assert_is_over(&endpoint);
}

/// As before, but what came is still in the lane when the end is noticed
pub fn messages_still_in_the_lane_at_a_kill_are_received(harness: &Harness) {
    let (mut process, endpoint) = harness.peer_process(&harness.context(), Scenario::SendSome);
    process.kill();
    for seed in 0..SOME {
        receive_short(&endpoint, seed).unwrap();
    }
    endpoint.watch_close().done().unwrap();
    assert_is_over(&endpoint);
}

/// A process that closes and exits at once leaves nothing behind on the way
pub fn a_peer_that_closes_and_exits_delivers_everything(harness: &Harness) {
    let (mut process, endpoint) = harness.peer_process(&harness.context(), Scenario::Farewell);
    for seed in 0..SOME_LONG {
        let message = endpoint.recv_frames().done().unwrap();
        assert_eq!(message.segments[0].len(), LONG_BYTES);
        pattern::check(seed, &message.segments[0]);
    }
    assert!(process.wait(), "the peer was content");
    for seed in 0..SOME {
        receive_short(&endpoint, seed).unwrap();
    }
    let error = receive_short(&endpoint, SOME).unwrap_err();
    assert_matches!(error, RecvError::Closed(CloseReason::Peer { .. }));
}

/// A process that exits without a close is gone
pub fn a_peer_that_exits_without_a_goodbye_is_noticed(harness: &Harness) {
    let (_process, endpoint) = harness.peer_process(&harness.context(), Scenario::Leave);
    let posted = endpoint.recv_message(Tag(1), TagMask::FULL);
    assert_gone_recv(posted.done());
    assert_is_over(&endpoint);
}

/// A stopped process is not dead: senders wait, and go on with it
pub fn a_stopped_peer_holds_its_sender_back_until_it_goes_on(harness: &Harness) {
    const COUNT: usize = 40;
    let (process, endpoint) = harness.peer_process(&harness.context(), Scenario::Sink);
    process.stop();
    let payload = Bytes::from(vec![7; 1 << 20]);
    let sends: Vec<_> = (0..COUNT)
        .map(|_| endpoint.send(Tag(1), payload.clone()))
        .collect();
    assert!(!sends[COUNT - 1].wait_done(Some(Duration::from_millis(20))));
    assert!(endpoint.close_reason().is_none());
    assert!(endpoint.queued_bytes() >= (COUNT as u64 - 4) << 20);
    process.go_on();
    for send in sends {
        send.done().unwrap();
    }
    assert_eq!(endpoint.queued_bytes(), 0);
}

/// Nor does the keep-alive say that it is: its host answers for it
pub fn a_peer_that_is_stopped_for_longer_than_the_keep_alive_stays(harness: &Harness) {
    const TIMEOUT: Duration = Duration::from_millis(200);
    let context = harness.context_with(|config| {
        config.keep_alive = Some(KeepAlive {
            interval: TIMEOUT / 4,
            timeout: TIMEOUT,
        });
    });
    let (process, endpoint) = harness.peer_process(&context, Scenario::Echo);
    // With nothing on its way, then with short and long messages that wait to be read.
    for bytes in [None, Some(2000), Some(3 << 20)] {
        process.stop();
        let reply = endpoint.recv_message(Tag(1), TagMask::FULL);
        let send = |bytes| endpoint.send(Tag(1), pattern::make(1, bytes));
        let sent = bytes.map(send);
        assert!(!reply.wait_done(Some(3 * TIMEOUT)));
        assert!(endpoint.close_reason().is_none());
        process.go_on();
        let sent = sent.unwrap_or_else(|| send(100));
        pattern::check(1, &reply.done().unwrap().segments[0]);
        sent.done().unwrap();
    }
}

/// A stopped process that is killed then is gone
pub fn a_stopped_peer_that_is_killed_is_noticed(harness: &Harness) {
    let (mut process, endpoint) = harness.peer_process(&harness.context(), Scenario::Sink);
    process.stop();
    let payload = Bytes::from(vec![7; 1 << 20]);
    let long = endpoint.send(Tag(1), payload);
    let mut shorts: Vec<_> = (0..20_000)
        .map(|_| endpoint.send(Tag(1), vec![7; SHORT_BYTES]))
        .collect();
    let last = shorts.pop().unwrap();
    assert!(!last.wait_done(Some(Duration::from_millis(20))));
    process.kill();
    assert_gone_send(long.done());
    assert_gone_send(last.done());
    for send in shorts {
        if let Err(error) = send.done() {
            assert_gone_send(Err(error));
        }
    }
    assert_is_over(&endpoint);
}

/// The end of one process is nothing to others of the same context
pub fn a_killed_peer_does_not_disturb_others(harness: &Harness) {
    let context = harness.context();
    let (_echo, steady) = harness.peer_process(&context, Scenario::Echo);
    let (mut flood, flooded) = harness.peer_process(&context, Scenario::Flood);
    receive_short(&flooded, 0).unwrap();
    for round in 0..100 {
        if round == 50 {
            flood.kill();
        }
        let reply = steady.recv_message(Tag(1), TagMask::FULL);
        let payload = pattern::make(round, 2000);
        steady.send(Tag(1), payload).done().unwrap();
        pattern::check(round, &reply.done().unwrap().segments[0]);
    }
    assert_matches!(
        flooded.watch_close().done().unwrap(),
        CloseReason::PeerGone { .. }
    );
    assert!(steady.close_reason().is_none());
}

fn receive_short(endpoint: &Endpoint, seed: u64) -> Result<(), RecvError> {
    let request = endpoint.recv(Tag(1), TagMask::FULL, vec![0; SHORT_BYTES]);
    let received = request.done()?;
    assert_eq!(received.bytes, SHORT_BYTES);
    pattern::check(seed, &received.into_buffer::<Vec<u8>>().unwrap());
    Ok(())
}

#[track_caller]
fn assert_gone_recv<T: std::fmt::Debug>(outcome: Result<T, RecvError>) {
    assert_matches!(
        outcome.unwrap_err(),
        RecvError::Closed(CloseReason::PeerGone { .. })
    );
}

#[track_caller]
fn assert_gone_send(outcome: Result<(), SendError>) {
    assert_matches!(
        outcome.unwrap_err(),
        SendError::Closed(CloseReason::PeerGone { .. })
    );
}

/// Nothing is left of the connection, and new operations fail for the same reason
#[track_caller]
fn assert_is_over(endpoint: &Endpoint) {
    assert!(endpoint.is_closed());
    assert_gone_recv(endpoint.recv_message(Tag(3), TagMask::FULL).done());
    assert_gone_send(endpoint.send(Tag(3), &b"x"[..]).done());
    assert_eq!(endpoint.queued_bytes(), 0);
    endpoint.close().done().unwrap();
    assert_matches!(endpoint.close_reason(), Some(CloseReason::PeerGone { .. }));
}

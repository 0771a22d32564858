//! Processes that are killed while memory is lent between them.

use std::collections::VecDeque;

use backhaul::{Arena, ArenaConfig, Context, Endpoint, Message, Segments, Tag, TagMask};

use crate::lending::{BLOCK_BYTES, block, blocks};
use crate::peer::{HELD, Scenario};
use crate::random::Random;
use crate::{Finish, Harness, pattern, wait_until};

/// Killed with everything it was lent in its hands: all of it is back, and reused
pub fn what_a_killed_receiver_held_comes_back(harness: &Harness) {
    let (context, arena) = exporter(harness);
    let lent = usize::from(harness.lends());
    let (mut process, endpoint) = harness.peer_process(&context, Scenario::Borrow);
    for seed in 0..2 * HELD as u64 {
        lend(&endpoint, &arena, seed).done().unwrap();
        have_it(&endpoint).unwrap();
    }
    // One to which it has answered may not have been dropped yet.
    wait_until(|| blocks(&arena) == (0, HELD * lent, HELD * lent));
    process.stop();
    assert_eq!(blocks(&arena), (0, HELD * lent, HELD * lent));
    process.kill();
    wait_until(|| blocks(&arena) == (0, 0, 0));
    let found = arena.statistics();
    assert_eq!(found.abandoned_bytes, 0);
    // They are served again, none of them new.
    let again: Vec<_> = (0..HELD as u64)
        .map(|seed| block(&arena, seed, BLOCK_BYTES))
        .collect();
    assert_eq!(arena.statistics().misses, found.misses);
    drop(again);
}

/// Killed with messages on the way, of which it has seen some, all or none
pub fn what_is_on_its_way_to_a_killed_receiver_comes_back(harness: &Harness) {
    for wait_for in [0, 1, 5] {
        let (context, arena) = exporter(harness);
        let (mut process, endpoint) = harness.peer_process(&context, Scenario::Borrow);
        let sends: Vec<_> = (0..20).map(|seed| lend(&endpoint, &arena, seed)).collect();
        for send in &sends[..wait_for] {
            send.wait_done(None);
        }
        process.kill();
        for send in sends {
            let _either = send.done();
        }
        wait_until(|| blocks(&arena) == (0, 0, 0));
        assert_eq!(arena.statistics().abandoned_bytes, 0);
    }
}

/// The memory of a killed sender is the receiver's as long as it wants
pub fn what_a_killed_sender_lent_stays_with_its_receiver(harness: &Harness) {
    let (mut process, endpoint) = harness.peer_process(&harness.context(), Scenario::Lend);
    let mut held: Vec<Message> = (0..20)
        .map(|_| endpoint.recv_message(Tag(1), TagMask::FULL).done().unwrap())
        .collect();
    process.kill();
    // Messages that came before the end, and then the end.
    while let Ok(message) = endpoint.recv_message(Tag(1), TagMask::FULL).done() {
        held.push(message);
    }
    assert!(endpoint.close_reason().is_some());
    for (seed, message) in (0..).zip(&mut held) {
        pattern::check(seed, &message.segments[0]);
        message.segments[0].copy_from_slice(&pattern::make(seed + 1, BLOCK_BYTES));
    }
    drop(endpoint);
    for (seed, message) in (1..).zip(&held) {
        pattern::check(seed, &message.segments[0]);
    }
}

/// At any moment of lending and borrowing, either side, a few times
pub fn kills_at_random_moments_lose_no_block(harness: &Harness) {
    kill_at_random_moments(harness, 1, 12);
}

/// Two hundred times, other moments each time, where memory is lent
pub fn two_hundred_kills_at_random_moments_lose_no_block(harness: &Harness) {
    if !harness.lends() {
        return;
    }
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    kill_at_random_moments(harness, now.as_nanos() as u64, 200);
}

/// Kills receivers, senders, and processes that are both, in turn
fn kill_at_random_moments(harness: &Harness, seed: u64, kills: usize) {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let (context, arena) = exporter(harness);
    // Else a block that is used no more would go unseen, with its segment.
    let _kept = block(&arena, 0, BLOCK_BYTES);
    let scenarios = [Scenario::Borrow, Scenario::Lend, Scenario::Trade];
    for (round, scenario) in (0..kills).zip(scenarios.into_iter().cycle()) {
        let (mut process, endpoint) = harness.peer_process(&context, scenario);
        let (endpoint, arena) = (&endpoint, &arena);
        let (sends_max, recvs_max) = (random.below(40), random.below(40));
        let spins = random.below(300_000);
        std::thread::scope(|scope| {
            if scenario != Scenario::Lend {
                scope.spawn(move || keep_lending(endpoint, arena));
            }
            let borrower = (scenario != Scenario::Borrow)
                .then(|| scope.spawn(move || keep_borrowing(endpoint)));
            let borrows = borrower.is_some();
            // Some messages in one direction, then a moment.
            wait_until(|| {
                let found = endpoint.statistics();
                endpoint.is_closed()
                    || (borrows && found.received_messages >= recvs_max as u64)
                    || (!borrows && found.sent_messages >= sends_max as u64)
            });
            for _ in 0..spins {
                std::hint::spin_loop();
            }
            process.kill();
            let Some(borrower) = borrower else {
                return;
            };
            // It has everything as it was lent, though the exporter is dead.
            for (seed, message) in borrower.join().unwrap() {
                pattern::check(seed, &message.segments[0]);
            }
        });
        wait_until(|| blocks(arena) == (1, 0, 0));
        assert_eq!(arena.statistics().abandoned_bytes, 0, "kill {round}");
    }
}

fn keep_lending(endpoint: &Endpoint, arena: &Arena) {
    let mut sends = VecDeque::new();
    for seed in 0.. {
        sends.push_back(lend(endpoint, arena, seed));
        if sends.len() > 4
            && let Some(send) = sends.pop_front()
            && (send.done().is_err() || have_it(endpoint).is_err())
        {
            return;
        }
    }
}

/// Receives until the end, returning what came last
fn keep_borrowing(endpoint: &Endpoint) -> VecDeque<(u64, Message)> {
    let mut held = VecDeque::new();
    for seed in 0.. {
        let Ok(message) = endpoint.recv_message(Tag(1), TagMask::FULL).done() else {
            break;
        };
        pattern::check(seed, &message.segments[0]);
        held.push_back((seed, message));
        if held.len() > HELD {
            held.pop_front();
        }
    }
    held
}

/// A context with an arena
fn exporter(harness: &Harness) -> (Context, Arena) {
    let arena = Arena::new(ArenaConfig::default());
    let context = harness.context_with(|config| config.arena = Some(arena.clone()));
    (context, arena)
}

fn lend(
    endpoint: &Endpoint,
    arena: &Arena,
    seed: u64,
) -> backhaul::Request<(), backhaul::SendError> {
    let segments = Segments::from_iter([block(arena, seed, BLOCK_BYTES)]);
    endpoint.send_segments_shared(Tag(1), segments)
}

/// Waits for the answer of a borrower
fn have_it(endpoint: &Endpoint) -> Result<(), backhaul::RecvError> {
    let answer = endpoint.recv_message(Tag(2), TagMask::FULL);
    answer.done().map(drop)
}

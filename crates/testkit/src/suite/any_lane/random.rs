//! Random operations, checked against a model.

use backhaul::{Arena, ArenaConfig, Config};

use crate::Harness;
use crate::lease_model::Player;
use crate::model::Direction;
use crate::random::Random;

/// A few seeds, always the same
pub fn random_operations_match_the_model(harness: &Harness) {
    for seed in 0..6 {
        play(harness, seed, 4);
    }
}

/// New seeds each time, for `BACKHAUL_STRESS_SEEDS` of them, or the one in `BACKHAUL_STRESS_SEED`
pub fn random_operations_match_the_model_for_long(harness: &Harness) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("BACKHAUL_STRESS_SEED") {
        return play(harness, seed, 40);
    }
    let mut seeds = fresh_seeds();
    for _ in 0..number("BACKHAUL_STRESS_SEEDS").unwrap_or(50) {
        play(harness, seeds.bits(), 40);
    }
}

/// A few seeds, always the same
pub fn random_leases_match_the_model(harness: &Harness) {
    for seed in 1..5 {
        lend_and_borrow(harness, seed, 300);
    }
}

/// New seeds each time, as above
pub fn random_leases_match_the_model_for_long(harness: &Harness) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("BACKHAUL_STRESS_SEED") {
        return lend_and_borrow(harness, seed, 1000);
    }
    let mut seeds = fresh_seeds();
    for _ in 0..number("BACKHAUL_STRESS_SEEDS").unwrap_or(20) {
        lend_and_borrow(harness, seeds.bits() >> 32, 1000);
    }
}

/// One player with an arena of its own, then two that share one
fn lend_and_borrow(harness: &Harness, seed: u64, acts: usize) {
    // Shown when the test fails.
    println!("BACKHAUL_STRESS_SEED={seed}");
    let config = ArenaConfig {
        bytes_max: *Random::new(seed).choose(&[4 << 20, 16 << 20, usize::MAX]),
        cached_bytes_max: *Random::new(seed + 1).choose(&[0, 2 << 20, usize::MAX]),
        ..ArenaConfig::default()
    };
    let arena = Arena::new(config);
    let mut player = Player::new(harness, &arena, seed, true);
    for _ in 0..acts {
        player.act();
    }
    player.finish();
    std::thread::scope(|scope| {
        for seed in [seed + 1, seed + 2] {
            let arena = &arena;
            scope.spawn(move || {
                let mut player = Player::new(harness, arena, seed, false);
                for _ in 0..acts {
                    player.act();
                }
                player.finish();
            });
        }
    });
    crate::wait_until(|| {
        let found = arena.statistics();
        (found.live_bytes, found.leased_bytes, found.orphaned_bytes) == (0, 0, 0)
    });
}

fn fresh_seeds() -> Random {
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    Random::new(now.as_nanos() as u64)
}

/// Both directions at once, each from a thread of its own, in rounds that end empty
fn play(harness: &Harness, seed: u64, rounds: usize) {
    // Shown when the test fails.
    println!("BACKHAUL_STRESS_SEED={seed}");
    let mut random = Random::new(seed);
    let change = random_limits(&mut random);
    let pair = harness.pair_with(change);
    let seeds = [random.bits(), random.bits()];
    std::thread::scope(|scope| {
        let ends = [(&pair.near, &pair.far), (&pair.far, &pair.near)];
        for ((from, to), seed) in ends.into_iter().zip(seeds) {
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..rounds {
                    let mut direction = Direction::new(from, to);
                    for _ in 0..random.below(300) {
                        direction.act(&mut random);
                    }
                    direction.finish();
                }
            });
        }
    });
    assert_eq!(pair.near.queued_bytes(), 0);
    pair.near.close().wait(None).unwrap().unwrap();
}

/// Windows, rings and thresholds of any size
fn random_limits(random: &mut Random) -> impl Fn(&mut Config) + use<> {
    let ring_bytes = *random.choose(&[4096, 1 << 16, 1 << 20]);
    let eager_bytes_max = *random.choose(&[0, 100, 20_000, 64 << 10]);
    let credit_bytes = eager_bytes_max + random.below(100_000) as u64;
    let credit_messages = *random.choose(&[4, 5, 50, 4096]);
    let data_chunk_bytes = *random.choose(&[1000, 10_000, 256 << 10]);
    let early_accept_bytes_max = *random.choose(&[0, 100_000, 64 << 20]);
    move |config| {
        config.ring_bytes = ring_bytes;
        config.limits.eager_bytes_max = eager_bytes_max;
        config.limits.credit_bytes = credit_bytes;
        config.limits.credit_messages = credit_messages;
        config.limits.data_chunk_bytes = data_chunk_bytes;
        config.limits.early_accept_bytes_max = early_accept_bytes_max;
    }
}

//! Accuracy of the estimator, on a simulated network with noise.

mod network;

use network::{Network, Sender};
use proptest::prelude::*;

/// 1 Gb/s
const GIGABIT: f64 = 1.25e8;

/// With the quarter that they differ by, messages of up to 12 of these are of one class
const MIB: u64 = 1 << 20;

fn senders(hosts: &[u32]) -> Vec<Sender> {
    hosts
        .iter()
        .enumerate()
        .map(|(process, &host)| Sender { host, process })
        .collect()
}

/// How many times too small or too large
fn off(estimate: f64, truth: f64) -> f64 {
    (estimate / truth).max(truth / estimate)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// ≤ 25 % off after 6 messages, of which a few were slow for want of a processor
    #[test]
    fn six_messages_are_enough(
        seed in 1_u64.., bytes in MIB..12 * MIB, bandwidth in 1e6..1e11_f64,
    ) {
        let mut network = Network::new(bandwidth, &[1e12], 1, seed);
        network.send(&senders(&[0]), 4, bytes, 0);
        network.send(&senders(&[0]), 2, bytes, 1);
        let estimate = network.estimate(0);
        prop_assert!(off(estimate, bandwidth) < 1.25, "{estimate} of {bandwidth}");
    }

    /// A change by 5 is followed within 8 messages, to either side
    #[test]
    fn a_change_by_five_is_followed_within_eight_messages(
        seed in 1_u64.., bytes in MIB..12 * MIB, is_worse: bool,
    ) {
        let mut network = Network::new(GIGABIT, &[1e12], 1, seed);
        network.send(&senders(&[0]), 20, bytes, 4);
        network.nic = if is_worse { GIGABIT / 5.0 } else { GIGABIT * 5.0 };
        network.send(&senders(&[0]), 8, bytes, 4);
        let estimate = network.estimate(0);
        prop_assert!(off(estimate, network.nic) < 1.25, "{estimate} of {}", network.nic);
    }

    /// ≤ 1.5 times off while four share the receiver's NIC, whether of one host or of several
    #[test]
    fn four_that_share_a_nic_are_not_blamed_for_it(
        seed in 1_u64.., bytes in MIB..12 * MIB, hosts in proptest::collection::vec(0_u32..4, 4),
        starved_every in 3_usize..9,
    ) {
        let mut network = Network::new(GIGABIT, &[1e12; 4], 4, seed);
        network.send(&senders(&hosts), 24, bytes, starved_every);
        for process in 0..4 {
            let estimate = network.estimate(process);
            prop_assert!(off(estimate, GIGABIT) < 1.5, "{process}: {estimate}");
        }
    }

    /// Some processes of one host share its sending limit, and a fast host beside it is recognised
    #[test]
    fn a_slow_host_is_neither_blamed_nor_praised_for_a_fast_one(
        seed in 1_u64.., bytes in MIB..12 * MIB, slow_senders in 1_usize..4,
    ) {
        let slow = GIGABIT / 5.0;
        let fast = 10.0 * GIGABIT;
        let hosts: Vec<u32> = (0..4).map(|number| u32::from(number >= slow_senders)).collect();
        let mut network = Network::new(fast, &[slow, 2.0 * fast], 4, seed);
        // As many messages as keep all of them busy together for a while.
        network.send(&senders(&hosts), 24, bytes, 4);
        for (process, &host) in hosts.iter().enumerate() {
            let (estimate, truth) = (network.estimate(process), [slow, fast][host as usize]);
            prop_assert!(off(estimate, truth) < 1.5, "{process}: {estimate} of {truth}");
        }
    }

    /// With any sharing, no host is said to be faster than the NIC
    #[test]
    fn no_estimate_is_above_what_came_through_the_nic(
        seed in 1_u64.., bytes in MIB..8 * MIB, hosts in proptest::collection::vec(0_u32..3, 1..6),
        speeds in proptest::collection::vec(1e7..1e10_f64, 3), starved_every in 0_usize..4,
    ) {
        let mut network = Network::new(GIGABIT, &speeds, hosts.len(), seed);
        network.send(&senders(&hosts), 10, bytes, starved_every);
        for process in 0..hosts.len() {
            let estimate = network.estimate(process);
            prop_assert!(estimate < GIGABIT * 1.01, "{process}: {estimate}");
        }
    }
}

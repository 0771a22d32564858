use super::super::estimate::Estimate;
use super::*;
use crate::links::SizeClass;

const MIB: u64 = 1 << 20;

const PRIORS: Priors = Priors {
    same_host: Prior {
        bytes_per_s: 1e10,
        latency_s: 1e-6,
    },
    other_host: Prior {
        bytes_per_s: 1e8,
        latency_s: 1e-5,
    },
    device: Prior {
        bytes_per_s: 6e9,
        latency_s: 2e-6,
    },
};

/// Two workers on each of three hosts
fn table() -> (LinkTable, Vec<WorkerId>) {
    let mut table = LinkTable::new(PRIORS, 100);
    let workers = (0..6)
        .map(|worker| {
            let (process, host) = (format!("p{worker}"), format!("h{}", worker / 2));
            table.add_worker(&format!("w{worker}"), &process, &host)
        })
        .collect();
    (table, workers)
}

fn said(bytes: u64, bytes_per_s: f64, samples: u32) -> LinkEstimate {
    LinkEstimate {
        memory: Memory::Host,
        class: SizeClass::of(bytes),
        estimate: Estimate {
            bytes_per_s,
            latency_s: 0.0,
            samples,
        },
    }
}

fn report(
    table: &mut LinkTable,
    receiver: &str,
    sender: &str,
    sender_host: &str,
    lane: &str,
    said: &[LinkEstimate],
) -> Result<(), TableError> {
    table.handle_report(Report {
        receiver,
        sender,
        sender_host,
        lane,
        traffic: Traffic::default(),
        said,
    })
}

fn from(table: &LinkTable, sender: WorkerId, receiver: WorkerId) -> (Origin, f64) {
    let answer = table.answer(sender, receiver, 4 * MIB, Memory::Host);
    (answer.origin, answer.bytes_per_s)
}

#[test]
fn who_has_not_met_is_answered_for_by_hosts_then_by_kind_then_by_what_was_known_before() {
    let (mut table, w) = table();
    assert_eq!(from(&table, w[0], w[1]), (Origin::Prior, 1e10));
    assert_eq!(from(&table, w[0], w[2]), (Origin::Prior, 1e8));
    report(&mut table, "p2", "p0", "h0", "tcp", &[said(MIB, 2e8, 6)]).expect("a worker says it");
    assert_eq!(from(&table, w[0], w[2]), (Origin::ProcessPair, 2e8));
    assert_eq!(from(&table, w[1], w[3]), (Origin::HostPair, 2e8));
    // The other direction may differ.
    assert_eq!(from(&table, w[2], w[0]), (Origin::Class, 2e8));
    assert_eq!(from(&table, w[4], w[0]), (Origin::Class, 2e8));
    assert_eq!(from(&table, w[0], w[1]), (Origin::Prior, 1e10));
    let device = table.answer(w[0], w[2], MIB, Memory::Device);
    assert_eq!(device.origin, Origin::Prior);
    assert_eq!(table.answer(w[0], w[0], MIB, Memory::Host).seconds, 0.0);
}

#[test]
fn nics_that_are_known_stand_in_for_what_has_not_been_measured() {
    let (mut table, w) = table();
    table.set_nic("h0", 1.25e9);
    assert_eq!(
        from(&table, w[0], w[2]),
        (Origin::Prior, 1e8),
        "one end says nothing"
    );
    table.set_nic("h1", 1.25e8);
    assert_eq!(from(&table, w[0], w[2]), (Origin::Prior, 1.25e8));
    for nonsense in [f64::NAN, 0.0, -1.0, f64::INFINITY] {
        table.set_nic("h1", nonsense);
        assert_eq!(from(&table, w[0], w[2]), (Origin::Prior, 1e8));
    }
}

#[test]
fn links_of_who_left_are_forgotten_and_what_is_known_of_hosts_stays() {
    let (mut table, w) = table();
    report(&mut table, "p2", "p0", "h0", "tcp", &[said(MIB, 2e8, 6)]).expect("a worker says it");
    report(&mut table, "p1", "p2", "h1", "tcp", &[said(MIB, 3e8, 6)]).expect("a worker says it");
    table.remove_worker("w2");
    assert_eq!(table.pairs(), 0);
    assert_eq!(table.worker("w2"), None);
    assert_eq!(from(&table, w[0], w[3]), (Origin::HostPair, 2e8));
    assert_eq!(from(&table, w[3], w[1]), (Origin::HostPair, 3e8));
    // Of who is not there no one knows anything.
    assert_eq!(from(&table, w[0], w[2]), (Origin::Prior, 1e8));
    let late = report(&mut table, "p2", "p0", "h0", "tcp", &[said(MIB, 2e8, 6)]);
    let process = "p2".to_owned();
    assert_eq!(late, Err(TableError::NotAWorker { process }));
    let again = table.add_worker("w2", "another", "h1");
    assert_eq!(from(&table, w[0], again), (Origin::HostPair, 2e8));
}

#[test]
fn one_starved_process_does_not_speak_for_its_host() {
    let (mut table, w) = table();
    report(&mut table, "p2", "p0", "h0", "tcp", &[said(MIB, 3e7, 6)]).expect("a worker says it");
    report(&mut table, "p3", "p0", "h0", "tcp", &[said(MIB, 1.2e8, 6)]).expect("a worker says it");
    assert_eq!(from(&table, w[0], w[2]), (Origin::ProcessPair, 3e7));
    assert_eq!(from(&table, w[1], w[2]), (Origin::HostPair, 1.2e8));
    // A single message is not enough for that.
    report(&mut table, "p3", "p1", "h0", "tcp", &[said(MIB, 9e9, 1)]).expect("a worker says it");
    let unmet = table.add_worker("w9", "p9", "h1");
    assert_eq!(from(&table, w[1], unmet), (Origin::HostPair, 1.2e8));
}

#[test]
fn sizes_that_have_not_come_are_as_the_nearest_that_have() {
    let (mut table, w) = table();
    let small = LinkEstimate {
        estimate: Estimate {
            bytes_per_s: 5e7,
            latency_s: 1e-3,
            samples: 2,
        },
        ..said(100 << 10, 0.0, 0)
    };
    let large = said(32 * MIB, 1e8, 4);
    report(&mut table, "p2", "p0", "h0", "tcp", &[small, large]).expect("a worker says it");
    let seconds = |bytes| table.seconds(w[0], w[2], bytes, Memory::Host);
    let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9);
    near(seconds(0), 1e-3);
    near(seconds(100_000), 100_000.0 / 5e7);
    near(seconds(2_000_000), 1e-3 + 2_000_000.0 / 1e8);
    near(seconds(100_000_000), 1.0);
    near(seconds(1_000_000_000), 1e-3 + 10.0);
    assert_eq!(table.answer(w[0], w[2], 0, Memory::Host).samples, 6);
}

#[test]
fn the_lane_that_was_used_last_counts_and_all_are_told() {
    let (mut table, w) = table();
    report(&mut table, "p1", "p0", "h0", "tcp", &[said(MIB, 1e9, 6)]).expect("a worker says it");
    let lent = said(MIB, f64::INFINITY, 3);
    report(&mut table, "p1", "p0", "h0", "shm", &[lent]).expect("a worker says it");
    assert_eq!(
        from(&table, w[0], w[1]),
        (Origin::ProcessPair, f64::INFINITY)
    );
    let mut lanes: Vec<_> = table.links().map(|link| link.lane).collect();
    lanes.sort();
    assert_eq!(lanes, ["shm", "tcp"]);
    for lane in 0..20 {
        let lane = format!("lane{lane}");
        report(&mut table, "p1", "p0", "h0", &lane, &[lent]).expect("a worker says it");
    }
    assert_eq!(table.links().count(), LANES_MAX);
}

#[test]
fn a_full_table_forgets_strangers_and_refuses_more() {
    let mut table = LinkTable::new(PRIORS, 2);
    for worker in ["a", "b", "c"] {
        table.add_worker(worker, worker, "h");
    }
    let said = [said(MIB, 1e9, 1)];
    report(&mut table, "a", "a client", "h", "shm", &said).expect("a worker says it");
    report(&mut table, "a", "b", "h", "shm", &said).expect("a worker says it");
    report(&mut table, "a", "c", "h", "shm", &said).expect("a worker says it");
    assert_eq!(table.pairs(), 2);
    let full = report(&mut table, "b", "c", "h", "shm", &said);
    assert_eq!(full, Err(TableError::Full { links: 2 }));
    report(&mut table, "a", "c", "h", "shm", &said).expect("a worker says it");
}

#[test]
fn a_worker_that_moves_to_another_process_is_asked_for_there() {
    let (mut table, w) = table();
    report(&mut table, "p2", "p0", "h0", "tcp", &[said(MIB, 2e8, 6)]).expect("a worker says it");
    let moved = table.add_worker("w2", "p2-again", "h2");
    assert_eq!(from(&table, w[0], moved).0, Origin::Class);
    assert_eq!(table.add_worker("w2", "p2-again", "h2"), moved);
    assert_eq!(table.addresses().count(), 6);
}

/// A second in which each of some receivers got 31.25 MB/s from a sender; says so
fn second(table: &mut LinkTable, number: u32, pairs: &[(&str, &str)]) {
    for (receiver, sender) in pairs {
        table.open_report(receiver, f64::from(number));
        table
            .handle_report(Report {
                receiver,
                sender,
                sender_host: "",
                lane: "tcp",
                traffic: Traffic {
                    moved_bytes: 31_250_000 * u64::from(number),
                    busy_s: f64::from(number),
                },
                said: &[said(MIB, 31_250_000.0, 6)],
            })
            .expect("a worker says it");
    }
}

/// Eight workers on each of two hosts
fn two_hosts() -> LinkTable {
    let mut table = LinkTable::new(PRIORS, 1000);
    for worker in 0..16 {
        let host = if worker < 8 { "near" } else { "far" };
        table.add_worker(&format!("w{worker}"), &format!("p{worker}"), host);
    }
    table
}

fn bandwidth(table: &LinkTable, sender: &str, receiver: &str) -> f64 {
    let worker = |address| table.worker(address).expect("it is there");
    let answer = table.answer(worker(sender), worker(receiver), 4 * MIB, Memory::Host);
    answer.bytes_per_s
}

#[test]
fn four_processes_that_share_a_nic_are_not_blamed_for_it() {
    // Each sees one peer, and a quarter of the NIC; whichever side the NIC is on.
    let far = [("p8", "p0"), ("p9", "p1"), ("p10", "p2"), ("p11", "p3")];
    for pairs in [
        far,
        far.map(|(_, sender)| ("p8", sender)),
        far.map(|(r, _)| (r, "p0")),
    ] {
        let mut table = two_hosts();
        for number in 1..=3 {
            second(&mut table, number, &pairs);
        }
        let last = pairs[3];
        let worker = |process: &str| process.replace('p', "w");
        let estimate = bandwidth(&table, &worker(last.1), &worker(last.0));
        let of_one_process = pairs[0].0 == pairs[1].0;
        // For messages that one process receives from several at a time, the fabric has corrected
        // the times.
        let truth = if of_one_process { 31_250_000.0 } else { 1.25e8 };
        assert!(
            (estimate / truth - 1.0).abs() < 0.5,
            "{pairs:?}: {estimate}"
        );
    }
}

#[test]
fn who_receives_alone_is_estimated_alone() {
    let mut table = two_hosts();
    for number in 1..=4 {
        second(&mut table, number, &[("p8", "p0"), ("p9", "p1")]);
    }
    let shared = bandwidth(&table, "w0", "w8");
    assert!((shared / 62_500_000.0 - 1.0).abs() < 0.01, "{shared}");
    // The other one stops, and says so.
    for number in 5..=7 {
        table.open_report("p9", f64::from(number));
        second(&mut table, number, &[("p8", "p0")]);
    }
    let alone = bandwidth(&table, "w0", "w8");
    assert!((alone / 31_250_000.0 - 1.0).abs() < 0.01, "{alone}");
}

#[test]
fn nobody_is_faster_than_the_nics_are() {
    let mut table = two_hosts();
    table.set_nic("near", 5e7);
    for number in 1..=3 {
        second(
            &mut table,
            number,
            &[("p8", "p0"), ("p9", "p1"), ("p10", "p2")],
        );
    }
    assert_eq!(bandwidth(&table, "w0", "w8"), 5e7);
}

#[test]
fn what_is_busy_is_forgotten_with_those_who_left_and_clocks_that_jump_do_no_harm() {
    let mut table = two_hosts();
    let pairs = [("p8", "p0"), ("p9", "p1"), ("p10", "p2"), ("p11", "p3")];
    for number in [1, 2, 3, 3, 1, 2, 3] {
        second(&mut table, number, &pairs);
    }
    for worker in 1..4 {
        table.remove_worker(&format!("w{worker}"));
        table.remove_worker(&format!("w{}", worker + 8));
    }
    for host in &table.hosts {
        assert!(
            host.incoming.busy < 1.01 && host.outgoing.busy < 1.01,
            "{host:?}"
        );
    }
    table.remove_worker("w0");
    for host in &table.hosts {
        assert!(
            host.incoming.busy < 0.01 && host.outgoing.bytes_per_s < 1.0,
            "{host:?}"
        );
    }
    table.open_report("p8", f64::NAN);
    table.open_report("nobody", 0.0);
    second(&mut table, 9, &[("p8", "p5")]);
}

#[test]
fn hosts_that_nobody_is_on_are_forgotten_when_there_are_many() {
    let (mut table, w) = table();
    let said = [said(MIB, 2e8, 6)];
    report(&mut table, "p2", "p0", "h0", "tcp", &said).expect("a worker says it");
    // As pods that come and go, each with an address of its own.
    for pod in 0..3 * HOSTS_MAX {
        table.add_worker("pod", &format!("pod{pod}"), &format!("10.{pod}"));
        report(&mut table, "p2", &format!("pod{pod}"), "", "tcp", &said).expect("it says it");
    }
    assert!(table.hosts.len() <= HOSTS_MAX + 10, "{}", table.hosts.len());
    assert!(table.host_pairs.len() <= 100, "{}", table.host_pairs.len());
    assert!(table.processes.len() <= 10);
    assert_eq!(from(&table, w[1], w[3]), (Origin::HostPair, 2e8));
}

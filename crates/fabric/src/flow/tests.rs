use std::net::SocketAddr;

use super::*;
use crate::identity::Identity;

#[test]
fn sizes_are_in_classes_a_factor_of_sixteen_wide() {
    let class = |bytes| SizeClass::of(bytes).index();
    assert_eq!((class(0), class(4095)), (0, 0));
    assert_eq!((class(4096), class((64 << 10) - 1)), (1, 1));
    assert_eq!((class(64 << 10), class((1 << 20) - 1)), (2, 2));
    assert_eq!((class(1 << 20), class((16 << 20) - 1)), (3, 3));
    assert_eq!((class(16 << 20), class((256 << 20) - 1)), (4, 4));
    assert_eq!((class(256 << 20), class(u64::MAX)), (5, 5));
    assert_eq!(SizeClass::all().count(), SizeClass::COUNT);
    for class in SizeClass::all() {
        assert_eq!(SizeClass::of(class.bytes_min()), class);
        assert_eq!(class.is_timed(), class.index() >= 2);
    }
}

#[test]
fn overlapping_messages_share_time_that_is_counted_once() {
    let start = Instant::now();
    let at = |micros| start + Duration::from_micros(micros);
    let mut clock = BusyClock::new(start);
    // One alone for 10, two for 20, the second alone for 5; then nothing for 65; then one for 40.
    let first = clock.begin(at(100));
    let second = clock.begin(at(110));
    assert_eq!(clock.end(at(130), first), Duration::from_micros(20));
    assert_eq!(clock.end(at(135), second), Duration::from_micros(15));
    let third = clock.begin(at(200));
    assert_eq!(clock.end(at(240), third), Duration::from_micros(40));
}

#[test]
fn two_mebibytes_in_a_tenth_of_a_millisecond_are_20_gigabytes_a_second() {
    // No time is too short to be believed: there is no floor.
    let start = Instant::now();
    let mut clock = BusyClock::new(start);
    let began = clock.begin(start);
    let took = clock.end(start + Duration::from_micros(100), began);
    assert_eq!(took, Duration::from_micros(100));
}

#[test]
fn shares_add_up_to_the_time_in_which_anything_went_on() {
    // A fixed but irregular sequence of beginnings and ends, against a count by the microsecond.
    let start = Instant::now();
    let mut clock = BusyClock::new(start);
    let mut going_on = Vec::new();
    let (mut total, mut busy, mut seed) = (Duration::ZERO, 0_u32, 7_u32);
    for micros in 0..2000 {
        let now = start + Duration::from_micros(micros);
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match seed >> 30 {
            0 => going_on.push(clock.begin(now)),
            1 if !going_on.is_empty() => {
                let began = going_on.swap_remove((seed >> 8) as usize % going_on.len());
                total += clock.end(now, began);
            }
            _ => {}
        }
        busy += u32::from(!going_on.is_empty());
    }
    let end = start + Duration::from_micros(2000);
    for began in going_on {
        total += clock.end(end, began);
    }
    let busy = Duration::from_micros(busy.into());
    // Each division may lose a nanosecond for each that goes on.
    assert!(busy.abs_diff(total) < busy / 100, "{total:?} of {busy:?}");
}

#[test]
fn connections_to_one_process_are_one_flow_that_outlives_them() {
    let flows = Arc::default();
    let mut first = Inflow::open(&flows, &about(1, LaneKind::Shm));
    let mut second = Inflow::open(&flows, &about(1, LaneKind::Shm));
    let other_lane = Inflow::open(&flows, &about(1, LaneKind::Tcp));
    receive(&mut first, 100);
    receive(&mut second, 5000);
    drop(first);
    let flow = only(&flows, LaneKind::Shm);
    assert_eq!(flow.connections, 1);
    assert_eq!(counts(&flow)[..2], [(1, 100), (1, 5000)]);
    receive(&mut second, 5000);
    drop((second, other_lane));
    let flow = only(&flows, LaneKind::Shm);
    assert_eq!(flow.connections, 0);
    assert_eq!(counts(&flow)[..2], [(1, 100), (2, 10_000)]);
    assert_eq!(counts(&only(&flows, LaneKind::Tcp))[0], (0, 0));
}

#[test]
fn a_message_that_never_came_is_not_counted_and_stops_no_clock() {
    let flows = Arc::default();
    let mut inflow = Inflow::open(&flows, &about(1, LaneKind::Tcp));
    inflow.begin(&Now::lazy(), ArrivalId(3), 1 << 20);
    inflow.stored(&Now::lazy(), ArrivalId(3), 1 << 19, false);
    inflow.stop();
    assert_eq!(lock(&inflow.flow.state).clock.active, 0);
    assert_eq!(counts(&only(&flows, LaneKind::Tcp))[3], (0, 0));
}

#[test]
fn time_and_loans_are_counted_with_the_message_when_it_is_received() {
    let flows = Arc::default();
    let mut inflow = Inflow::open(&flows, &about(1, LaneKind::Shm));
    inflow.begin(&Now::lazy(), ArrivalId(0), 3 << 20);
    inflow.stored(&Now::lazy(), ArrivalId(0), 2 << 20, true);
    assert_eq!(lock(&inflow.flow.state).clock.active, 1);
    inflow.stored(&Now::lazy(), ArrivalId(0), 1 << 20, false);
    assert_eq!(lock(&inflow.flow.state).clock.active, 0);
    assert_eq!(
        only(&flows, LaneKind::Shm).sizes[3],
        SizeStatistics::default()
    );
    inflow.received(&Now::lazy(), ArrivalId(0), 3 << 20);
    let size = only(&flows, LaneKind::Shm).sizes[3];
    assert_eq!((size.messages, size.bytes), (1, 3 << 20));
    assert_eq!(size.lent_bytes, 2 << 20);
    assert!(size.time > Duration::ZERO);
}

#[test]
fn what_forgotten_peers_sent_is_summed_up_by_host() {
    let flows = Arc::default();
    let peers = u32::try_from(ENDED_FLOWS_MAX).expect("it is small") + 100;
    let mut kept = Inflow::open(&flows, &about(0, LaneKind::Tcp));
    receive(&mut kept, 10);
    for peer in 1..peers {
        receive(&mut Inflow::open(&flows, &about(peer, LaneKind::Tcp)), 10);
    }
    let all = flows.snapshot();
    assert_eq!(all.len(), ENDED_FLOWS_MAX + 1);
    let messages: u64 = all.iter().map(|flow| flow.sizes[0].messages).sum();
    assert_eq!(messages, u64::from(peers));
    let is_kept = |flow: &FlowStatistics| flow.connections == 1;
    assert!(
        all.iter().any(is_kept),
        "a peer that is connected is not forgotten"
    );
    let forgotten: Vec<_> = all
        .iter()
        .filter(|flow| flow.peer_process.is_none())
        .collect();
    assert_eq!(forgotten.len(), 1);
    assert_eq!(forgotten[0].sizes[0].messages, 100);
}

fn receive(inflow: &mut Inflow, bytes: u64) {
    inflow.stored(&Now::lazy(), ArrivalId(0), bytes, false);
    inflow.received(&Now::lazy(), ArrivalId(0), bytes);
}

fn only(flows: &Flows, lane: LaneKind) -> FlowStatistics {
    let mut found = flows.snapshot();
    found.retain(|flow| flow.lane == lane);
    assert_eq!(found.len(), 1);
    found.remove(0)
}

fn counts(flow: &FlowStatistics) -> Vec<(u64, u64)> {
    let count = |size: &SizeStatistics| (size.messages, size.bytes);
    flow.sizes.iter().map(count).collect()
}

fn about(peer: u32, lane: LaneKind) -> About {
    let identity = Identity::current().expect("the kernel has random bytes");
    let mut process_token = [0; 16];
    process_token[..4].copy_from_slice(&peer.to_le_bytes());
    let address = SocketAddr::from(([127, 0, 0, 1], 4000));
    About {
        local: address,
        peer: address,
        lane,
        carriers: Vec::new(),
        reason: String::new(),
        peer_hello: backhaul_proto::Hello {
            boot_id: identity.boot_id,
            host_token: identity.host_token.clone(),
            process_token,
            nonce: [0; 16],
            pid: peer,
            uid: 0,
            lanes: vec![lane],
            lanes_unknown: Vec::new(),
            unix_name: String::new(),
            credit_bytes: 1,
            credit_messages: 1,
            message_bytes_max: 1,
            segments_max: 1,
            carriers: Vec::new(),
            carriers_unknown: Vec::new(),
            data_chunk_bytes: 1,
            ucx_address: Vec::new(),
        },
    }
}

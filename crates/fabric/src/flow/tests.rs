use std::net::SocketAddr;

use super::*;
use crate::identity::Identity;

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
    inflow.begin(&Now::lazy(), ArrivalId(3), 1 << 20, false);
    inflow.stored(&Now::lazy(), ArrivalId(3), 1 << 19, false);
    assert_eq!(lock(&inflow.nic).peers(), 1);
    inflow.stop();
    assert_eq!(lock(&inflow.flow.state).clock.active(), 0);
    assert_eq!(lock(&inflow.nic).peers(), 0);
    assert!(only(&flows, LaneKind::Tcp).links.is_empty());
    assert_eq!(counts(&only(&flows, LaneKind::Tcp))[3], (0, 0));
}

#[test]
fn time_and_loans_are_counted_with_the_message_when_it_is_received() {
    let flows = Arc::default();
    let mut inflow = Inflow::open(&flows, &about(1, LaneKind::Shm));
    inflow.begin(&Now::lazy(), ArrivalId(0), 3 << 20, false);
    inflow.stored(&Now::lazy(), ArrivalId(0), 2 << 20, true);
    assert_eq!(lock(&inflow.flow.state).clock.active(), 1);
    inflow.stored(&Now::lazy(), ArrivalId(0), 1 << 20, false);
    assert_eq!(lock(&inflow.flow.state).clock.active(), 0);
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

#[test]
fn what_comes_from_other_hosts_shares_the_address_that_it_comes_to() {
    let flows = Arc::default();
    let on = |host: u8, peer: u32| About {
        local: SocketAddr::from(([10, 0, 0, 1], 1)),
        peer: SocketAddr::from(([10, 0, 0, host], 2)),
        ..about(peer, LaneKind::Tcp)
    };
    let [one, other, here] =
        [(2, 1), (3, 2), (1, 3)].map(|(host, peer)| Inflow::open(&flows, &on(host, peer)));
    assert!(Arc::ptr_eq(&one.nic, &other.nic));
    assert!(
        !Arc::ptr_eq(&one.nic, &here.nic),
        "a peer of this host needs no NIC"
    );
}

#[test]
fn a_long_message_tells_how_fast_its_link_is() {
    let flows = Arc::default();
    let mut inflow = Inflow::open(&flows, &about(1, LaneKind::Tcp));
    inflow.begin(&Now::lazy(), ArrivalId(1), 2 << 20, false);
    inflow.stored(&Now::lazy(), ArrivalId(1), 1 << 20, false);
    assert!(only(&flows, LaneKind::Tcp).links.is_empty());
    inflow.stored(&Now::lazy(), ArrivalId(1), 1 << 20, false);
    let flow = only(&flows, LaneKind::Tcp);
    assert_eq!((flow.links.len(), flow.ignored), (1, 0));
    let link = flow.links[0];
    assert_eq!(
        (link.class, link.memory),
        (SizeClass::of(2 << 20), Memory::Host)
    );
    assert_eq!(link.estimate.samples, 1);
    inflow.begin(&Now::lazy(), ArrivalId(2), 2 << 20, true);
    inflow.stored(&Now::lazy(), ArrivalId(2), 2 << 20, true);
    let links = only(&flows, LaneKind::Tcp).links;
    assert_eq!(links.len(), 2);
    assert_eq!(links[1].memory, Memory::Device);
    assert_eq!(links[1].estimate.bytes_per_s, f64::INFINITY);
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
        tls: None,
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

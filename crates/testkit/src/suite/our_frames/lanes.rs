//! Which of the lanes of this crate two peers use, and how lanes are named.

use backhaul::{Context, LaneKind, Tag, TagMask};

use crate::harness::LOOPBACK;
use crate::{Finish, Harness};

/// A text that names no lane
pub fn an_unknown_lane_is_an_error_with_the_name(harness: &Harness) {
    assert_eq!(harness.lane.name().parse(), Ok(harness.lane));
    let error = "pigeon".parse::<LaneKind>().unwrap_err();
    assert!(error.to_string().contains("pigeon"), "{error}");
    for lane in LaneKind::ALL {
        assert!(error.to_string().contains(lane.name()), "{error}");
    }
}

/// A lane that the peer does not offer is passed over, and the reason says so
pub fn a_lane_asked_for_by_the_connector_is_used_if_both_have_it(harness: &Harness) {
    let context = harness.context_with(|config| config.lanes = LaneKind::DEFAULT.to_vec());
    let listener = context.listen(LOOPBACK).unwrap();
    let address = listener.local_address().to_string();
    for lane in LaneKind::DEFAULT {
        let accept = listener.accept();
        let near = context.connect_over(&address, &[lane]).done().unwrap();
        assert_eq!(near.lane(), lane);
        assert_eq!(accept.done().unwrap().lane(), lane);
    }
    let accept = listener.accept();
    let near = context.connect_over(&address, &[]).done().unwrap();
    assert_eq!(near.lane(), LaneKind::Tcp);
    assert_eq!(accept.done().unwrap().lane(), LaneKind::Tcp);
}

/// The lane is chosen for each pair: peers that share no lane but TCP meet there, and the reason
/// says so
pub fn peers_without_a_common_lane_fall_back_to_tcp(harness: &Harness) {
    let far = Context::new(harness.config_with(|config| config.lanes = vec![LaneKind::Tcp]));
    let far = far.unwrap();
    let listener = far.listen(LOOPBACK).unwrap();
    let accept = listener.accept();
    let near = harness.context();
    let near = near.connect(&listener.local_address().to_string());
    let (near, far) = (near.done().unwrap(), accept.done().unwrap());
    assert_eq!((near.lane(), far.lane()), (LaneKind::Tcp, LaneKind::Tcp));
    if harness.lane != LaneKind::Tcp {
        let reason = near.info().reason;
        assert!(reason.contains(harness.lane.name()), "{reason}");
    }
    let posted = far.recv_message(Tag(1), TagMask::FULL);
    near.send(Tag(1), &b"tcp"[..]).done().unwrap();
    assert_eq!(posted.done().unwrap().segments[0][..], *b"tcp");
}

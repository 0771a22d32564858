//! Finds a lane with a peer and the means for it: rings in memory that both sides reach.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use backhaul_proto::{Hello, LaneKind};
use backhaul_shm::{channel, completion};

use crate::context::Core;
use crate::courier;
use crate::engine::new_bell;
use crate::lane::RingLane;
use crate::meeting::{self, Half};

/// What a lane needs, as far as it has been found
#[derive(Default)]
pub(crate) struct Means {
    /// Rings, and what belongs to them
    ring: Option<Found>,
    /// What the connector asks of us, until we have answered
    pub(crate) selected: Option<(LaneKind, String)>,
    /// A half left in the table, to be taken back if the handshake fails
    left: Option<meeting::Nonce>,
}

/// A lane that is not the socket itself
pub(crate) struct Found {
    pub(crate) lane: RingLane,
    pub(crate) our_bell: OwnedFd,
    pub(crate) courier: courier::Parts,
}

impl Means {
    /// The lane agreed on, if it is not the socket itself
    pub(crate) fn into_lane(mut self, agreed: LaneKind) -> Option<Found> {
        self.ring.take().filter(|found| found.lane.kind == agreed)
    }
}

impl Drop for Means {
    fn drop(&mut self) {
        if let Some(nonce) = &self.left {
            meeting::take_half(nonce);
        }
    }
}

/// Chooses the best lane that both sides offer and that can be made, as the connector
///
/// Returns the lane and why.
pub(crate) fn choose(
    core: &Core,
    lanes: &[LaneKind],
    local: &Hello,
    peer: &Hello,
    means: &mut Means,
) -> (LaneKind, String) {
    let mut passed_over = Vec::new();
    for &lane in lanes {
        if !peer.lanes.contains(&lane) {
            passed_over.push(format!("{}: not offered by the peer", lane.name()));
            continue;
        }
        let found = match lane {
            LaneKind::Inproc => offer_inproc(core, local, peer, means),
            LaneKind::Shm => offer_shm(core, local, peer, means),
            _ => Ok("both sides have it".to_owned()),
        };
        match found {
            Ok(reason) => {
                passed_over.insert(0, reason);
                return (lane, passed_over.join("; "));
            }
            Err(why_not) => passed_over.push(format!("{}: {why_not}", lane.name())),
        }
    }
    (LaneKind::Tcp, passed_over.join("; "))
}

/// Takes up what the connector selected, as the acceptor; `None` if its offer is still under way
pub(crate) fn take(
    core: &Core,
    lane: LaneKind,
    reason: String,
    local: &Hello,
    means: &mut Means,
) -> Option<(LaneKind, String)> {
    let refuse = |why: &dyn std::fmt::Display| {
        let reason = format!("{} was selected but failed here: {why}", lane.name());
        Some((LaneKind::Tcp, reason))
    };
    match lane {
        LaneKind::Inproc => {
            let Some(half) = meeting::take_half(&local.nonce) else {
                return refuse(&"the other half is not in this process");
            };
            means.ring = Some(ring_lane(lane, half));
        }
        LaneKind::Shm => {
            let Some(meeting) = core.meeting() else {
                return refuse(&"this side has no meeting socket");
            };
            let offer = meeting.take(&local.nonce)?;
            let rings = match channel::attach(offer.memory) {
                Ok(rings) => rings,
                Err(error) => return refuse(&error),
            };
            let table = match completion::attach_table(offer.table) {
                Ok(table) => table,
                Err(error) => return refuse(&error),
            };
            let half = Half {
                rings,
                their_bell: offer.their_bell,
                our_bell: offer.our_bell,
                courier: courier::Parts {
                    socket: offer.socket,
                    table,
                },
            };
            means.ring = Some(ring_lane(lane, half));
        }
        _ => {}
    }
    Some((lane, reason))
}

fn offer_inproc(
    core: &Core,
    local: &Hello,
    peer: &Hello,
    means: &mut Means,
) -> Result<String, String> {
    if peer.process_token != local.process_token {
        return Err("another process".to_owned());
    }
    let make = || -> io::Result<(Half, Half)> {
        let (ours, theirs) =
            channel::in_process(core.config.ring_bytes).map_err(io::Error::other)?;
        let (our_bell, their_bell) = (new_bell()?, new_bell()?);
        let (our_table, their_table) = completion::table_in_process().map_err(io::Error::other)?;
        let (our_socket, their_socket) = courier::pair()?;
        let half = Half {
            rings: theirs,
            our_bell: their_bell.try_clone()?,
            their_bell: our_bell.try_clone()?,
            courier: courier::Parts {
                socket: their_socket,
                table: their_table,
            },
        };
        let ours = Half {
            rings: ours,
            our_bell,
            their_bell,
            courier: courier::Parts {
                socket: our_socket,
                table: our_table,
            },
        };
        Ok((ours, half))
    };
    let (ours, theirs) = make().map_err(|error| error.to_string())?;
    meeting::leave_half(peer.nonce, theirs);
    means.left = Some(peer.nonce);
    means.ring = Some(ring_lane(LaneKind::Inproc, ours));
    Ok("same process".to_owned())
}

fn offer_shm(
    core: &Core,
    local: &Hello,
    peer: &Hello,
    means: &mut Means,
) -> Result<String, String> {
    if peer.boot_id != local.boot_id {
        return Err("another host".to_owned());
    }
    if peer.boot_id == [0; 16] {
        return Err("the host has no boot id".to_owned());
    }
    if peer.host_token != local.host_token {
        return Err("another network namespace".to_owned());
    }
    if peer.uid != local.uid {
        return Err(format!("the peer is user {}, not {}", peer.uid, local.uid));
    }
    if peer.unix_name.is_empty() {
        return Err("the peer has no meeting socket".to_owned());
    }
    let (rings, memory) =
        channel::create(core.config.ring_bytes).map_err(|error| error.to_string())?;
    let (table, table_memory) = completion::create_table().map_err(|error| error.to_string())?;
    let bells = new_bell().and_then(|ours| Ok((ours, new_bell()?)));
    let (our_bell, their_bell) = bells.map_err(|error| error.to_string())?;
    let offered = [&memory, &table_memory, &their_bell, &our_bell].map(AsFd::as_fd);
    let socket = meeting::make_offer(&peer.unix_name, &peer.nonce, offered)
        .map_err(|error| error.to_string())?;
    let half = Half {
        rings,
        their_bell,
        our_bell,
        courier: courier::Parts { socket, table },
    };
    means.ring = Some(ring_lane(LaneKind::Shm, half));
    Ok("same host and user, proved on a Unix socket".to_owned())
}

fn ring_lane(kind: LaneKind, half: Half) -> Found {
    Found {
        lane: RingLane {
            kind,
            rings: half.rings,
            peer_bell: half.their_bell,
        },
        our_bell: half.our_bell,
        courier: half.courier,
    }
}

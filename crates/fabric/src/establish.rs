//! From a handshake that succeeded to an endpoint.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use backhaul_proto::{Connection, LaneKind};

use crate::address::canonical;
use crate::bootstrap::{Established, LaneResources};
use crate::conn::{Conn, Facts, Link, MessageMemory};
use crate::context::Core;
use crate::courier::Courier;
use crate::endpoint::Endpoint;
use crate::flow::Inflow;
use crate::lane::{Lane, RingLane};

/// Makes an endpoint of an established connection, for either side
///
/// # Errors
///
/// What the system reports; the connection has ended then.
pub(crate) fn establish(core: &Arc<Core>, established: Established) -> io::Result<Endpoint> {
    let id = established.id;
    try_establish(core, established).inspect_err(|_| core.engine().deregister(id))
}

fn try_establish(core: &Arc<Core>, established: Established) -> io::Result<Endpoint> {
    let Established {
        id,
        socket,
        peer_address,
        peer,
        resources,
        reason,
        staged,
    } = established;
    let stream = Arc::new(socket);
    let (lane, doorbell, parts) = match resources {
        LaneResources::Socket => (Lane::tcp(Arc::clone(&stream)), None, None),
        LaneResources::Rings { kind, end } => {
            let lane = RingLane {
                kind: kind.into(),
                rings: end.rings,
                peer_bell: end.their_doorbell,
            };
            (Lane::Ring(lane), Some(end.our_doorbell), Some(end.courier))
        }
    };
    let courier = parts
        .map(|parts| Courier::start(core.engine(), parts, core.config.arena.as_ref()))
        .transpose()?;
    let mut limits = core.config.limits.clone();
    limits.keep_alive = match lane.kind() {
        LaneKind::Tcp => core.config.keep_alive,
        // The kernel reports the end of the peer on the socket at once.
        LaneKind::Inproc | LaneKind::Shm => None,
    };
    let facts = Facts {
        local: canonical(stream.local_addr()?),
        peer: canonical(peer_address),
        lane: lane.kind(),
        reason,
        peer_hello: peer,
    };
    let peer_limits = facts.peer_hello.peer_limits();
    let proto = Connection::new(limits.clone(), peer_limits, Instant::now());
    let memory = MessageMemory {
        pool: core.pool.clone(),
        courier,
        lease_bytes_min: core.config.lease_bytes_min,
        populate_leases: core.config.populate_leases,
    };
    let inflow = Inflow::open(&core.flows, &facts);
    let link = Link::new(proto, limits, lane, &staged, memory, inflow);
    let conn = Conn::start(
        core.engine(),
        id,
        facts,
        link,
        stream,
        doorbell,
        &core.config,
    )?;
    Ok(Endpoint::new(conn, Arc::clone(core)))
}

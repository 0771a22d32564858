//! From a handshake that succeeded to an endpoint.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backhaul_proto::{CarrierKind, Connection, Hello, KeepAlive};
use backhaul_shm::doorbell::Doorbell;
use backhaul_sys::tcp_timers::set_retry_max;
use rustix::net::sockopt;

use crate::address::canonical;
use crate::bootstrap::{ChannelEnd, Established, LaneResources, Reading, RingKind};
use crate::carrier::Carriers;
use crate::carrier::cuda::CudaCarrier;
use crate::carrier::lease::LeaseCarrier;
use crate::carrier::single_copy::SingleCopy;
use crate::carrier::ucx::{Tickets, UcxCarrier, UcxCudaCarrier};
use crate::connection::{About, Conn, ConnParts, PeerProcess};
use crate::context::Core;
use crate::endpoint::Endpoint;
use crate::flow::Inflow;
use crate::lane::{Lane, RingLane, TcpLane, TlsLane, UcxLane};
use crate::link::{Link, LinkMemory, LinkParts};
use crate::statistics::Counters;
use crate::ucx::UcxEnd;

/// Makes an endpoint of an established connection, for either side
///
/// # Errors
///
/// Errors that the system reports; the connection has ended then.
pub(crate) fn establish(core: &Arc<Core>, established: Established) -> io::Result<Endpoint> {
    let id = established.id;
    try_establish(core, established).inspect_err(|_| core.engine().deregister(id))
}

fn try_establish(core: &Arc<Core>, established: Established) -> io::Result<Endpoint> {
    let Established {
        id,
        socket,
        session,
        peer_address,
        local,
        peer,
        resources,
        mut reason,
        staged,
    } = established;
    let socket = Arc::new(socket);
    let tls = session.as_ref().map(|session| session.info());
    let mut made = match resources {
        LaneResources::Socket => Made {
            lane: match session {
                None => Box::new(TcpLane::new(Arc::clone(&socket))),
                Some(session) => {
                    let helpers = core.config.tls_helpers;
                    Box::new(TlsLane::new(Arc::clone(&socket), session, helpers))
                }
            },
            doorbell: None,
            carriers: Carriers::default(),
            process: None,
        },
        LaneResources::Rings { kind, end } => over_rings(core, kind, *end, &peer, &mut reason)?,
        LaneResources::Ucx(end) => over_ucx(core, end, &peer, &socket)?,
        LaneResources::Experiment(end) => Made {
            lane: end.lane,
            doorbell: end.doorbell,
            carriers: Carriers::default(),
            process: None,
        },
    };
    if let Some(experiment) = &core.config.experiments.carrier
        && have_both(core, &peer, CarrierKind::Experimental)
    {
        match experiment.connect(&local, &peer) {
            Ok(carrier) => made.carriers.push(carrier),
            Err(why) => reason.push_str(&format!("; {}: {why}", CarrierKind::Experimental)),
        }
    }
    let mut limits = core.config.limits.clone();
    limits.keep_alive = core
        .config
        .keep_alive
        .filter(|_| !made.lane.traits().is_local);
    if let Some(keep_alive) = &limits.keep_alive {
        ask_in_time(&socket, keep_alive);
    }
    let about = About {
        local: canonical(socket.local_addr()?),
        peer: canonical(peer_address),
        lane: made.lane.kind(),
        tls,
        reason,
        carriers: made
            .carriers
            .reach()
            .iter()
            .map(|reach| reach.kind)
            .collect(),
        peer_hello: peer,
    };
    let now = Instant::now();
    let counters = Arc::new(Counters::new());
    let link = Link::new(LinkParts {
        core: Connection::new(limits.clone(), about.peer_hello.peer_limits(), now),
        limits,
        peer: about.peer,
        staged,
        memory: LinkMemory {
            pool: core.pool.clone(),
            device_allocator: core.device_allocator(),
            carriers: made.carriers.reach(),
            give_bytes_min: core.config.lease_bytes_min,
        },
        meter: Box::new(Inflow::open(&core.flows, &about)),
        counters: Arc::clone(&counters),
        now,
    });
    let parts = ConnParts {
        about,
        link,
        lane: made.lane,
        carriers: made.carriers,
        counters,
        socket,
        doorbell: made.doorbell,
        process: made.process,
    };
    let conn = Conn::start(core.engine(), id, parts, &core.config)?;
    Ok(Endpoint::new(conn, Arc::clone(core)))
}

/// Has the kernel try to reach a silent host often enough that it can be found gone in time
///
/// Left alone, the kernel waits twice as long each time, up to two minutes, and the answer is not
/// known before it has tried. The kernel itself gives a connection up after 15 tries, which must
/// not come before our time.
fn ask_in_time(socket: &TcpStream, keep_alive: &KeepAlive) {
    let max = keep_alive.interval.max(keep_alive.timeout / 4);
    if let Err(error) = set_retry_max(socket.as_fd(), max) {
        tracing::debug!(%error, "the system tries to reach silent hosts as seldom as it likes");
    }
}

/// A lane, and what belongs to it
struct Made {
    lane: Box<dyn Lane>,
    doorbell: Option<Doorbell>,
    carriers: Carriers,
    process: Option<Arc<PeerProcess>>,
}

/// Returns whether both sides want a carrier
fn have_both(core: &Core, peer: &Hello, kind: CarrierKind) -> bool {
    peer.carriers.contains(&kind) && core.carriers().contains(&kind)
}

fn over_rings(
    core: &Arc<Core>,
    kind: RingKind,
    end: ChannelEnd,
    peer: &Hello,
    reason: &mut String,
) -> io::Result<Made> {
    let process = match kind {
        RingKind::Inproc => None,
        RingKind::Shm => {
            let processes = &core.peer_processes;
            processes.of_socket(core.engine(), &end.lease.socket)
        }
    };
    let lane = match kind {
        RingKind::Inproc => RingLane::in_process(end.rings, end.their_doorbell),
        RingKind::Shm => RingLane::shared(end.rings, end.their_doorbell),
    };
    let arena = core.config.arena.as_ref();
    let lease = LeaseCarrier::start(core.engine(), end.lease, arena, core.config.populate_leases)?;
    let mut carriers = Carriers::default();
    if have_both(core, peer, CarrierKind::Lease) {
        carriers.push(Box::new(lease));
    }
    if let Some(socket) = end
        .cuda
        .filter(|_| have_both(core, peer, CarrierKind::Cuda))
    {
        let doorbell = end.our_doorbell.try_clone()?;
        let is_same_process = matches!(kind, RingKind::Inproc);
        let carrier = CudaCarrier::start(core.engine(), socket, doorbell, is_same_process)?;
        carriers.push(Box::new(carrier));
    }
    match end.reading {
        Some(Reading::Works(memory)) => carriers.push(Box::new(SingleCopy::new(memory))),
        Some(Reading::Fails(why)) => reason.push_str(&format!("; single-copy: {why}")),
        None => {}
    }
    Ok(Made {
        lane: Box::new(lane),
        doorbell: Some(end.our_doorbell),
        carriers,
        process,
    })
}

fn over_ucx(core: &Arc<Core>, end: UcxEnd, peer: &Hello, sentinel: &TcpStream) -> io::Result<Made> {
    // The sentinel is silent, so the kernel has to ask whether the peer's host is there. It answers
    // for a process that is stopped, too.
    if let Some(keep_alive) = core.config.keep_alive {
        sockopt::set_socket_keepalive(sentinel, true)?;
        sockopt::set_tcp_keepidle(sentinel, keep_alive.interval.max(SECOND))?;
        sockopt::set_tcp_keepintvl(sentinel, (keep_alive.timeout / PROBES).max(SECOND))?;
        sockopt::set_tcp_keepcnt(sentinel, PROBES)?;
    }
    let doorbell = end.doorbell.try_clone()?;
    let end = Arc::new(end);
    let mut carriers = Carriers::default();
    let tickets = Arc::new(Tickets::default());
    if have_both(core, peer, CarrierKind::Ucx) {
        carriers.push(Box::new(UcxCarrier::new(
            Arc::clone(&end),
            core.pool.clone(),
            Arc::clone(&tickets),
        )));
    }
    if have_both(core, peer, CarrierKind::UcxCuda) {
        carriers.push(Box::new(UcxCudaCarrier::start(
            core.engine(),
            Arc::clone(&end),
            core.pool.clone(),
            tickets,
        )?));
    }
    Ok(Made {
        lane: Box::new(UcxLane::new(end)),
        doorbell: Some(doorbell),
        carriers,
        process: None,
    })
}

/// The kernel counts in seconds
const SECOND: Duration = Duration::from_secs(1);

/// Questions without an answer after which the kernel gives a host up
const PROBES: u32 = 6;

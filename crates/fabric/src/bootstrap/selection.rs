//! Selects a lane with a peer and makes what it takes: rings in memory that both sides reach.
//!
//! Every lane is named in each match: one that is not known here is passed over, or refused, with
//! its number.

use std::error::Error;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use backhaul_proto::{CarrierKind, Hello, LaneKind};
use backhaul_shm::doorbell::Doorbell;
use backhaul_shm::{channel, completion};

use super::introduction::Introduction;
use super::unix_socket::{self, Nonce, Offered, UnixSocket};
use super::{ChannelEnd, LaneResources, Reading, RingKind};
use crate::carrier::{lease, packets};
use crate::experiments::{LaneEnd, LaneProvider};
use crate::ucx::{Hub, UcxEnd};

/// Progress of the selection of a lane
pub(super) struct Selection {
    ring_bytes: usize,
    /// Users, beside that of this process, that may share memory with it
    uids: Vec<u32>,
    /// Rings, and what belongs to them
    rings: Option<(RingKind, ChannelEnd)>,
    /// Makes lanes from outside
    experiment: Option<Arc<dyn LaneProvider>>,
    /// A lane that it has made
    experimental: Option<LaneEnd>,
    /// The worker of this context, where there is one
    hub: Option<Arc<Hub>>,
    /// Our end of a connection of it
    ucx: Option<UcxEnd>,
    /// Lane that the connector asks this side for, until this side has answered
    pub(super) selected: Option<(LaneKind, String)>,
    /// Names an end left for a peer in this process, to be taken back if the handshake fails
    left: Option<Nonce>,
    /// The peer answers our introduction before it answers us
    is_introduced: bool,
    /// The first socket is, and so every lane has to be
    is_encrypted: bool,
}

impl Selection {
    pub(super) fn new(
        ring_bytes: usize,
        uids: Vec<u32>,
        experiment: Option<Arc<dyn LaneProvider>>,
        hub: Option<Arc<Hub>>,
        is_encrypted: bool,
    ) -> Self {
        Self {
            ring_bytes,
            uids,
            rings: None,
            experiment,
            experimental: None,
            hub,
            ucx: None,
            selected: None,
            left: None,
            is_introduced: false,
            is_encrypted,
        }
    }

    /// Chooses the best lane that both sides offer and that can be made, as the connector
    ///
    /// Returns the lane and why.
    pub(super) fn choose(&mut self, local: &Hello, peer: &Hello) -> (LaneKind, String) {
        let unknown = peer.lanes_unknown.iter();
        let mut passed_over: Vec<_> = unknown
            .map(|code| format!("lane {code}: not known here"))
            .collect();
        if self.is_encrypted {
            passed_over.push("tcp, ucx: in clear text, and TLS was asked for".to_owned());
        }
        for &lane in &local.lanes {
            if !peer.lanes.contains(&lane) {
                passed_over.push(format!("{lane}: not offered by the peer"));
                continue;
            }
            let offered = match lane {
                LaneKind::Inproc => self.offer_inproc(local, peer),
                LaneKind::Shm => self.offer_shm(local, peer),
                LaneKind::Ucx => self.join_ucx(local, Some(peer)),
                LaneKind::Tcp | LaneKind::Tls => self.offer_socket(lane),
                LaneKind::Experimental => self
                    .experiment()
                    .and_then(|experiment| experiment.offer(local, peer))
                    .map(|end| {
                        self.experimental = Some(end);
                        "both sides have it from outside".to_owned()
                    }),
            };
            match offered {
                Ok(reason) => {
                    passed_over.insert(0, reason);
                    passed_over.extend(self.not_offered_here(local, peer, lane));
                    return (lane, passed_over.join("; "));
                }
                Err(why_not) => passed_over.push(format!("{lane}: {why_not}")),
            }
        }
        // The socket on which the peers have met.
        let lane = self.socket_lane();
        passed_over.extend(self.not_offered_here(local, peer, lane));
        (lane, passed_over.join("; "))
    }

    /// Names the faster lanes that the peer offers and this side does not
    fn not_offered_here<'a>(
        &self,
        local: &'a Hello,
        peer: &'a Hello,
        chosen: LaneKind,
    ) -> impl Iterator<Item = String> + use<'a> {
        let faster: &[LaneKind] = match (chosen, self.is_encrypted) {
            (LaneKind::Tcp, _) => &[LaneKind::Inproc, LaneKind::Shm, LaneKind::Ucx],
            (LaneKind::Tls, _) | (LaneKind::Ucx, false) => &[LaneKind::Inproc, LaneKind::Shm],
            (LaneKind::Shm, _) => &[LaneKind::Inproc],
            _ => &[],
        };
        let of_peer = peer.lanes.iter().filter(|lane| faster.contains(lane));
        of_peer
            .filter(|lane| !local.lanes.contains(lane))
            .map(|lane| format!("{lane}: not offered by this side"))
    }

    /// The lane over the first socket
    fn socket_lane(&self) -> LaneKind {
        match self.is_encrypted {
            true => LaneKind::Tls,
            false => LaneKind::Tcp,
        }
    }

    fn offer_socket(&self, lane: LaneKind) -> Result<String, String> {
        if lane == self.socket_lane() {
            return Ok("both sides have it".to_owned());
        }
        Err(format!("the peers have met over {}", self.socket_lane()))
    }

    /// Answers what the connector selected, as the acceptor: the lane and why
    ///
    /// `None` if nothing is to be answered, or the connector's offer is still under way.
    pub(super) fn answer(
        &mut self,
        local: &Hello,
        peer: Option<&Hello>,
        unix_socket: Option<&UnixSocket>,
    ) -> Option<(LaneKind, String)> {
        let (lane, reason) = self.selected.take()?;
        let taken = match lane {
            LaneKind::Inproc => unix_socket::take_end(&local.nonce)
                .map(|end| Some((RingKind::Inproc, end)))
                .ok_or_else(|| "the other end is not in this process".to_owned()),
            LaneKind::Shm if peer.is_some_and(|peer| !self.is_allowed(local, peer)) => {
                // The kernel reports the user too, with what the peer sends; the answer need not
                // wait for that.
                Err(other_user(local, peer.map_or(0, |peer| peer.uid)))
            }
            LaneKind::Shm => match unix_socket.map(|socket| socket.take(&local.nonce)) {
                None => Err("this side has no bootstrap socket".to_owned()),
                Some(Offered::NotYet) => {
                    self.selected = Some((lane, reason));
                    return None;
                }
                Some(Offered::Failed(why)) => Err(why),
                Some(Offered::Here(offer)) => offer
                    .attach()
                    .map(|end| Some((RingKind::Shm, end)))
                    .map_err(in_words),
            },
            LaneKind::Ucx => self.join_ucx(local, peer).map(|_| None),
            LaneKind::Tcp | LaneKind::Tls => self.offer_socket(lane).map(|_| None),
            LaneKind::Experimental => self
                .experiment()
                .and_then(|experiment| experiment.take(local))
                .map(|end| {
                    self.experimental = Some(end);
                    None
                }),
        };
        Some(match taken {
            Ok(rings) => {
                self.rings = rings;
                (lane, reason)
            }
            Err(why) => (
                self.socket_lane(),
                format!("{lane} was selected but failed here: {why}"),
            ),
        })
    }

    /// Returns the resources of the lane that both sides agreed on
    ///
    /// # Errors
    ///
    /// If it has not been made, which the order of steps rules out.
    pub(super) fn into_resources(mut self, agreed: LaneKind) -> io::Result<LaneResources> {
        let made = self.rings.take();
        if let (LaneKind::Experimental, Some(end)) = (agreed, self.experimental.take()) {
            return Ok(LaneResources::Experiment(end));
        }
        if let (LaneKind::Ucx, Some(end)) = (agreed, self.ucx.take()) {
            return Ok(LaneResources::Ucx(end));
        }
        match (agreed, made) {
            (LaneKind::Tcp | LaneKind::Tls, _) => Ok(LaneResources::Socket),
            (LaneKind::Inproc | LaneKind::Shm, Some((kind, mut end)))
                if LaneKind::from(kind) == agreed =>
            {
                if self.is_introduced {
                    let socket = end.lease.socket.as_fd();
                    let theirs = Introduction::receive(socket)?;
                    end.reading = Some(Reading::of(theirs.open(socket)));
                }
                Ok(LaneResources::Rings {
                    kind,
                    end: Box::new(end),
                })
            }
            (LaneKind::Inproc | LaneKind::Shm | LaneKind::Ucx | LaneKind::Experimental, _) => {
                let text = format!("lane {agreed} was agreed on and never made");
                Err(io::Error::other(text))
            }
        }
    }

    /// Returns whether the peer's Hello names a user that may share memory with this side
    fn is_allowed(&self, local: &Hello, peer: &Hello) -> bool {
        peer.uid == local.uid || self.uids.contains(&peer.uid)
    }

    fn experiment(&self) -> Result<&dyn LaneProvider, String> {
        let experiment = self.experiment.as_deref();
        experiment.ok_or_else(|| "this side has none".to_owned())
    }

    /// Makes our end of a connection over UCX, which the peer does too
    fn join_ucx(&mut self, local: &Hello, peer: Option<&Hello>) -> Result<String, String> {
        let (Some(hub), Some(peer)) = (&self.hub, peer) else {
            return Err("this side has no worker".to_owned());
        };
        self.ucx = Some(hub.join(local, peer)?);
        Ok("both sides have a worker".to_owned())
    }

    fn offer_inproc(&mut self, local: &Hello, peer: &Hello) -> Result<String, String> {
        if peer.process_token != local.process_token {
            return Err("another process".to_owned());
        }
        let has_cuda = have_both(local, peer, CarrierKind::Cuda);
        let (ours, theirs) = make_pair(self.ring_bytes, has_cuda).map_err(in_words)?;
        unix_socket::leave_end(peer.nonce, theirs);
        self.left = Some(peer.nonce);
        self.rings = Some((RingKind::Inproc, ours));
        Ok("same process".to_owned())
    }

    fn offer_shm(&mut self, local: &Hello, peer: &Hello) -> Result<String, String> {
        if peer.boot_id != local.boot_id {
            return Err("another host".to_owned());
        }
        if peer.boot_id == [0; 16] {
            return Err("the host has no boot id".to_owned());
        }
        if peer.host_token != local.host_token {
            return Err("another network namespace".to_owned());
        }
        if !self.is_allowed(local, peer) {
            return Err(other_user(local, peer.uid));
        }
        if peer.unix_name.is_empty() {
            return Err("the peer has no bootstrap socket".to_owned());
        }
        let (rings, memory) = channel::create(self.ring_bytes).map_err(in_words)?;
        let (table, table_memory) = completion::create_table().map_err(in_words)?;
        let our_doorbell = Doorbell::new().map_err(in_words)?;
        let their_doorbell = Doorbell::new().map_err(in_words)?;
        let offered = [
            memory.as_fd(),
            table_memory.as_fd(),
            their_doorbell.as_fd(),
            our_doorbell.as_fd(),
        ];
        let introduction = have_both(local, peer, CarrierKind::SingleCopy)
            .then(Introduction::ours)
            .transpose()
            .map_err(in_words)?;
        let cuda = have_both(local, peer, CarrierKind::Cuda)
            .then(packets::pair)
            .transpose()
            .map_err(in_words)?;
        let (our_cuda, their_cuda) = cuda.unzip();
        let socket = unix_socket::make_offer(
            &peer.unix_name,
            &peer.nonce,
            &self.uids,
            introduction.as_ref(),
            offered,
            their_cuda.as_ref().map(AsFd::as_fd),
        )
        .map_err(in_words)?;
        self.is_introduced = introduction.is_some();
        let end = ChannelEnd {
            rings,
            their_doorbell,
            our_doorbell,
            lease: lease::LeaseParts { socket, table },
            cuda: our_cuda,
            reading: None,
        };
        self.rings = Some((RingKind::Shm, end));
        Ok(match peer.uid == local.uid {
            true => "same host and user, proved on a Unix socket".to_owned(),
            false => format!(
                "same host, user {} is allowed, proved on a Unix socket",
                peer.uid
            ),
        })
    }
}

impl Drop for Selection {
    fn drop(&mut self) {
        if let Some(nonce) = &self.left {
            unix_socket::take_end(nonce);
        }
    }
}

/// Returns whether a side allows no other lane than UCX, which tcp then does not replace
pub(super) fn insists_on_ucx(hello: &Hello) -> bool {
    hello.lanes.contains(&LaneKind::Ucx) && !hello.lanes.contains(&LaneKind::Tcp)
}

fn other_user(local: &Hello, uid: u32) -> String {
    format!("the peer is user {uid}, not {}", local.uid)
}

/// Returns whether both sides want a carrier
fn have_both(local: &Hello, peer: &Hello, kind: CarrierKind) -> bool {
    local.carriers.contains(&kind) && peer.carriers.contains(&kind)
}

/// Both ends of a pair of rings in private memory
fn make_pair(ring_bytes: usize, has_cuda: bool) -> io::Result<(ChannelEnd, ChannelEnd)> {
    let (our_rings, their_rings) = channel::in_process(ring_bytes).map_err(io::Error::other)?;
    let (our_doorbell, their_doorbell) = (Doorbell::new()?, Doorbell::new()?);
    let (our_table, their_table) = completion::table_in_process().map_err(io::Error::other)?;
    let (our_socket, their_socket) = packets::pair()?;
    let (our_cuda, their_cuda) = has_cuda.then(packets::pair).transpose()?.unzip();
    let theirs = ChannelEnd {
        rings: their_rings,
        our_doorbell: their_doorbell.try_clone()?,
        their_doorbell: our_doorbell.try_clone()?,
        lease: lease::LeaseParts {
            socket: their_socket,
            table: their_table,
        },
        cuda: their_cuda,
        reading: None,
    };
    let ours = ChannelEnd {
        rings: our_rings,
        our_doorbell,
        their_doorbell,
        lease: lease::LeaseParts {
            socket: our_socket,
            table: our_table,
        },
        cuda: our_cuda,
        reading: None,
    };
    Ok((ours, theirs))
}

/// An error and what caused it, in one line
pub(crate) fn in_words(error: impl Error + 'static) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let cause = source.to_string();
        // Some say their cause themselves.
        if !words.ends_with(&cause) {
            words = format!("{words}: {cause}");
        }
        next = source.source();
    }
    words
}

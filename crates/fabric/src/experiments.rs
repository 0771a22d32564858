//! A lane and a carrier from outside, for experiments and tests.
//!
//! They take part in the handshake as those of this crate do: under [`LaneKind::Experimental`] and
//! [`CarrierKind::Experimental`], where the lists of [`Config`] name them and both sides have them.
//!
//! [`LaneKind::Experimental`]: crate::LaneKind::Experimental
//! [`CarrierKind::Experimental`]: crate::CarrierKind::Experimental
//! [`Config`]: crate::Config

use std::fmt;
use std::sync::Arc;

use backhaul_proto::Hello;
use backhaul_shm::doorbell::Doorbell;

use crate::carrier::Carrier;
use crate::lane::Lane;

/// Lane and carriers that a context gets from outside
#[derive(Clone, Debug, Default)]
pub struct Experiments {
    /// Makes lanes
    pub lane: Option<Arc<dyn LaneProvider>>,
    /// Makes carriers
    pub carrier: Option<Arc<dyn CarrierProvider>>,
}

/// Makes the ends of lanes between two peers
pub trait LaneProvider: fmt::Debug + Send + Sync {
    /// Makes a lane, as the connector, whose other end the peer finds by the nonce of its Hello
    ///
    /// Dropping this end before the peer has found the other takes that back.
    ///
    /// # Errors
    ///
    /// Why it cannot be made with this peer; another lane is tried then.
    fn offer(&self, local: &Hello, peer: &Hello) -> Result<LaneEnd, String>;

    /// Finds the end that the connector has made for this side, as the acceptor
    ///
    /// # Errors
    ///
    /// Why it is not there; then the first socket is the lane.
    fn take(&self, local: &Hello) -> Result<LaneEnd, String>;
}

/// Makes carriers between two peers
pub trait CarrierProvider: fmt::Debug + Send + Sync {
    /// Makes the carrier of a connection on which both sides have named it
    ///
    /// # Errors
    ///
    /// Why it cannot be had with this peer, which must find the same; messages go without it then.
    fn connect(&self, local: &Hello, peer: &Hello) -> Result<Box<dyn Carrier>, String>;
}

/// One end of a lane
pub struct LaneEnd {
    /// The lane
    pub lane: Box<dyn Lane>,
    /// Wakes this side, if the lane [has a doorbell](crate::seams::LaneTraits::has_doorbell)
    pub doorbell: Option<Doorbell>,
}

//! Ended offers, which are reported to their carrier.
//!
//! Most carriers keep nothing for an offer, as the send does. UCX has no way to take an offer back:
//! it keeps the memory until the receiver fetches or refuses. So when a send is over whose message
//! came another way, or was withdrawn, or is not wanted, its carrier has the peer refuse. CUDA may
//! keep a copy in memory that can be shared.

use backhaul_proto::{CarrierKind, Sources};

use super::Link;

impl<S, R> Link<S, R> {
    /// Returns an offer of this side whose send is over: the carrier's number, and the ticket
    #[inline]
    pub fn poll_offer_over(&mut self) -> Option<(u8, u64)> {
        self.offers_over.pop_front()
    }
}

/// The offers for which a carrier keeps something: its number, and the ticket
pub(super) fn kept_offers(sources: &Sources) -> impl Iterator<Item = (u8, u64)> {
    let keepers = [CarrierKind::Ucx, CarrierKind::Cuda, CarrierKind::UcxCuda];
    let keepers = keepers.map(CarrierKind::code);
    let offers = sources.iter().flat_map(|source| source.offer);
    let kept = offers.filter(move |offer| keepers.contains(&offer.carrier));
    kept.map(|offer| (offer.carrier, offer.token))
}

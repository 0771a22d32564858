//! A device, a lane and a carrier made outside the fabric, which shows that its seams are seams.

pub mod carrier;
pub mod device;
pub mod lane;

use std::sync::Arc;

use backhaul::{CarrierKind, Config, LaneKind};

pub use carrier::ToyCarriers;
pub use device::ToyDevice;
pub use lane::ToyLanes;

/// Has two contexts of this process meet on the toy lane, with the toy carrier
pub fn configure(config: &mut Config) {
    configure_lane(config, 64 << 10);
    config.carriers = vec![CarrierKind::Experimental];
    config.experiments.carrier = Some(Arc::new(ToyCarriers::default()));
}

/// Has them meet on a toy lane of that size, without a carrier
pub fn configure_lane(config: &mut Config, capacity: usize) {
    config.lanes = vec![LaneKind::Experimental];
    config.experiments.lane = Some(Arc::new(ToyLanes { capacity }));
    config.carriers = Vec::new();
}

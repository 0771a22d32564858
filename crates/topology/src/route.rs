//! Ways between two devices by others, where these are faster than the direct one
//!
//! Two GPUs without an NVLink between them may each have one to a third. A relay copies on while it
//! still receives, so a route is as fast as its slowest hop, and takes the latency of each. Only GPUs
//! relay here, and only by NVLink: through the host a copy costs more than the direct path.
//!
//! Figures are those of [`mod@crate::distance`], which names their sources. Two hops are enough on any
//! machine that was recorded; more are not looked for.

mod spread;

use serde::{Serialize, Serializer};

use crate::distance::{
    Class, Device, Distance, UnknownDevice, distance, nvlink_between, path_between, usual,
};
use crate::model::Machine;

pub use self::spread::{Share, Spread, SpreadError, Transfer, direct, spread};

/// A way from one device to another
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Route {
    /// The devices on it, both ends included
    #[serde(serialize_with = "names")]
    pub devices: Vec<Device>,
    /// Expected bandwidth in one direction, in bytes per second
    pub bandwidth_bytes_per_s: f64,
    /// Expected latency one way, in seconds
    pub latency_s: f64,
}

impl Route {
    /// How many links it goes over; 1 if it is the direct path
    #[must_use]
    pub fn hops(&self) -> usize {
        self.devices.len() - 1
    }

    /// Seconds that so many bytes take
    #[must_use]
    pub fn seconds(&self, bytes: u64) -> f64 {
        self.latency_s + bytes as f64 / self.bandwidth_bytes_per_s
    }

    fn over(devices: Vec<Device>, hops: &[Distance]) -> Self {
        let bandwidths = hops.iter().map(|hop| hop.bandwidth_bytes_per_s);
        Self {
            devices,
            bandwidth_bytes_per_s: bandwidths.fold(f64::INFINITY, f64::min),
            latency_s: hops.iter().map(|hop| hop.latency_s).sum(),
        }
    }
}

fn names<S: Serializer>(devices: &[Device], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(devices.iter().map(ToString::to_string))
}

/// The fastest way from one device to another
///
/// The direct one, unless a relay has more bandwidth; of several relays the first.
///
/// # Errors
///
/// [`UnknownDevice`] if the machine lacks one of them.
pub fn route(machine: &Machine, one: &Device, other: &Device) -> Result<Route, UnknownDevice> {
    let straight = distance(machine, one, other)?;
    let mut best = Route::over(vec![one.clone(), other.clone()], &[straight]);
    for relay in relays(machine, one, other) {
        let hops = [
            path_between(machine, one, &relay),
            path_between(machine, &relay, other),
        ];
        let by_relay = Route::over(vec![one.clone(), relay, other.clone()], &hops);
        if by_relay.bandwidth_bytes_per_s > best.bandwidth_bytes_per_s {
            best = by_relay;
        }
    }
    Ok(best)
}

/// The GPUs that have an NVLink to both of two GPUs
fn relays(machine: &Machine, one: &Device, other: &Device) -> Vec<Device> {
    let (Device::Gpu(from), Device::Gpu(to)) = (one, other) else {
        return Vec::new();
    };
    let is_joined = |one, other| nvlink_between(machine, one, other).is_some();
    machine
        .gpus
        .iter()
        .map(|gpu| gpu.index)
        .filter(|&gpu| from != to && gpu != *from && gpu != *to)
        .filter(|&gpu| is_joined(*from, gpu) && is_joined(gpu, *to))
        .map(Device::Gpu)
        .collect()
}

/// How far bytes go from a device
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Reach {
    /// They stay where they are
    Device,
    /// To the memory of the host, within one process
    Host,
    /// To a device of another process on the host: by the memory that both share
    Process,
    /// To a device of another host
    Network,
}

/// Seconds that bytes of a device take to a place as far away as that
///
/// Each level goes by all of the one before: from process to process bytes go into the memory of the
/// host and out of it, and between hosts over its fastest interface besides. Where a process can
/// reach the memory of another one's device, or an interface that of a device, less is needed; that
/// is for what was measured to say.
///
/// # Errors
///
/// [`UnknownDevice`] if the machine lacks it.
pub fn reach_seconds(
    machine: &Machine,
    device: &Device,
    reach: Reach,
    bytes: u64,
) -> Result<f64, UnknownDevice> {
    let stay = Route::over(
        vec![device.clone(), device.clone()],
        &[distance(machine, device, device)?],
    );
    let to_memory = to_memory(machine, device);
    let leg = Route::over(Vec::new(), &[to_memory]).seconds(bytes);
    Ok(match reach {
        Reach::Device => stay.seconds(bytes),
        Reach::Host => leg,
        Reach::Process => 2.0 * leg,
        Reach::Network => 2.0 * leg + network_seconds(machine, bytes),
    })
}

/// The path from a device to the nearest memory of the host
fn to_memory(machine: &Machine, device: &Device) -> Distance {
    let nodes = machine.nodes.iter().map(|node| Device::Node(node.id));
    let others = nodes.filter(|node| node != device);
    let nearest = others
        .map(|node| path_between(machine, device, &node))
        .min_by_key(|path| path.class.rank());
    nearest.unwrap_or_else(|| {
        // A copy within the only node there is, or on a machine that reports none.
        let on_cpus = matches!(device, Device::Node(_) | Device::Cpu(_));
        usual(Class::NumaNode, on_cpus, None)
    })
}

fn network_seconds(machine: &Machine, bytes: u64) -> f64 {
    let speeds = machine.nics.iter().map(|nic| {
        let there = crate::distance::distance_between_hosts(nic, nic);
        there.latency_s + bytes as f64 / there.bandwidth_bytes_per_s
    });
    let unknown = crate::model::Nic::default();
    let slow = crate::distance::distance_between_hosts(&unknown, &unknown);
    let of_unknown = slow.latency_s + bytes as f64 / slow.bandwidth_bytes_per_s;
    speeds.fold(of_unknown, f64::min)
}

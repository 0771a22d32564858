//! Expected speed and latency of each class of path, with the source of each figure
//!
//! They rank paths and give a first guess before anything was measured; they are not promises. The
//! model has no speed of PCI links, so every PCI path is taken to be third generation, 16 lanes:
//! a later generation is faster by 2 or 4. NCCL stands here for `src/graph/topo.h` (bandwidths) and
//! `src/graph/tuning.cc` (`hwLat`, ring, protocol LL) of NVIDIA's NCCL 2.2x; core-to-core stands
//! for the table of github.com/nviennot/core-to-core-latency.

use crate::model::{Nic, NicKind};

/// Bandwidth in bytes per second and latency in seconds of one path
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    pub(super) bandwidth_bytes_per_s: f64,
    pub(super) latency_s: f64,
}

const fn figures(bandwidth_gb_per_s: f64, latency_us: f64) -> Figures {
    Figures {
        bandwidth_bytes_per_s: bandwidth_gb_per_s * 1e9,
        latency_s: latency_us * 1e-6,
    }
}

/// A copy inside the memory of one GPU; the bandwidth is NCCL's `LOC_BW`, in effect no limit, and
/// the latency that of its NVLink, an upper bound
pub(super) const SAME_DEVICE: Figures = figures(5000.0, 0.6);
/// NCCL: `PCI_BW` (third generation, 16 lanes) and `hwLat` of PCI
pub(super) const SWITCH: Figures = figures(12.0, 1.0);
/// The same through the CPU: NCCL's `INTEL_P2P_OVERHEAD` takes a sixth of the bandwidth; the
/// latency of the CPU's own network is added (core-to-core, EPYC 7R13 between groups: 107 ns)
pub(super) const HOST_BRIDGE: Figures = figures(10.0, 1.107);
/// NCCL's `BDW_QPI_BW` (Broadwell, as in DGX-1; later ones are 2 to 7 times as fast); the latency
/// between sockets is added (core-to-core, two Xeon 8275CL: 134 ns)
pub(super) const SOCKETS: Figures = figures(6.0, 1.134);
/// Two threads of one core. Copies at half of 64 bytes a cycle from the second-level cache (Intel,
/// Optimization Reference Manual, Skylake server) at 2.5 GHz; core-to-core, Xeon 8375C: 8.1 ns
pub(super) const CORE: Figures = figures(80.0, 0.0081);
/// Copies at half of 32 bytes a cycle (AMD, Software Optimization Guide for Family 19h, 56665) at
/// 2.5 GHz; core-to-core, Xeon 8275CL: 47 ns
pub(super) const L3: Figures = figures(40.0, 0.047);
/// Copies through one channel of DDR4-3200, of 25.6 GB/s (JEDEC JESD79-4), which is read and
/// written; core-to-core, EPYC 7R13 between groups: 107 ns
pub(super) const NUMA_NODE: Figures = figures(12.8, 0.107);
/// CPUs of two NUMA nodes: NCCL's `SKL_QPI_BW`; core-to-core, two Xeon 8275CL: 134 ns
pub(super) const NUMA_NODES: Figures = figures(10.0, 0.134);

/// `links` bonded links of NVLink, per direction
///
/// The bandwidths are NCCL's (`SM60_NVLINK_BW` and on), by generation; an unknown one is taken to be
/// the third. The latency is its `hwLat` of NVLink.
pub(super) fn nvlink(links: u32, version: Option<u32>) -> Figures {
    let one = match version {
        Some(1) => 18.0,
        Some(4) => 20.6,
        Some(version) if version >= 5 => 40.1,
        _ => 20.0,
    };
    figures(one * f64::from(links.max(1)), 0.6)
}

/// Between two interfaces of two hosts: the slower one's speed
///
/// Of an unknown speed is what Dask assumes (`distributed.scheduler.bandwidth`, 100 MB/s). The
/// latencies are NCCL's `hwLat` of the network: 2.7 µs with RDMA on both sides (protocol LL),
/// 14.0 µs else (protocol Simple).
pub(super) fn network(here: &Nic, there: &Nic) -> Figures {
    let speed = |nic: &Nic| nic.bits_per_s.map_or(0.1, |bits| bits as f64 / 8e9);
    let rdma = |nic: &Nic| nic.rdma.is_some() || nic.kind == NicKind::Infiniband;
    let latency_us = if rdma(here) && rdma(there) { 2.7 } else { 14.0 };
    figures(speed(here).min(speed(there)), latency_us)
}

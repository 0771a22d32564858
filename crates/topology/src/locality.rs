//! Groups of CPUs that have the same devices and memory near them

use crate::cpuset::CpuSet;
use crate::model::Machine;

/// CPUs that are near the same memory and devices
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Locality {
    /// The NUMA node that it is; `None` where the machine tells no nodes
    pub node: Option<u32>,
    /// Its CPUs; none for a node of memory alone
    pub cpus: CpuSet,
}

/// The localities of a machine: its NUMA nodes
///
/// Where it tells none, as old tables of `nvidia-smi topo -m` do, the sets of CPUs that it says its GPUs
/// are near to, if these do not overlap; else none.
#[must_use]
pub fn localities(machine: &Machine) -> Vec<Locality> {
    if !machine.nodes.is_empty() {
        return machine
            .nodes
            .iter()
            .map(|node| Locality {
                node: Some(node.id),
                cpus: node.cpus.clone(),
            })
            .collect();
    }
    let mut groups: Vec<CpuSet> = Vec::new();
    for gpu in &machine.gpus {
        let cpus = &gpu.place.cpus;
        if !cpus.is_empty() && !groups.contains(cpus) {
            groups.push(cpus.clone());
        }
    }
    groups.sort();
    let members: usize = groups.iter().map(CpuSet::len).sum();
    let all = groups
        .iter()
        .fold(CpuSet::default(), |all, cpus| all.union(cpus));
    if all.len() < members {
        return Vec::new();
    }
    groups
        .into_iter()
        .map(|cpus| Locality { node: None, cpus })
        .collect()
}

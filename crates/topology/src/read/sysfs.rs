//! Machine as Linux reports it in `/sys` and `/proc`, without root and without libraries
//!
//! Parts that a container hides are left out and become notes. The limits of this process are
//! taken from its affinity mask, from `/proc/self/status` and from its control groups, and the
//! narrowest counts. The root folder is an argument, so that a recorded machine can be read.

mod cpu;
mod devices;
mod limits;
mod net;
mod tree;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::cpuset::CpuSet;
use crate::model::{FORMAT, Machine};
pub(super) use cpu::claim_once;
use limits::Limits;
use tree::Tree;

/// Facts that the kernel reports to the calling process, and that no file has
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Affinity mask of the calling thread
    pub affinity: Option<CpuSet>,
    /// Addresses of interfaces, by name
    pub addresses: BTreeMap<String, Vec<IpAddr>>,
}

impl Told {
    /// Asks the kernel of this machine
    #[must_use]
    pub fn here() -> Self {
        Self {
            affinity: affinity(),
            addresses: addresses(),
        }
    }
}

/// Reads the machine whose `/sys` and `/proc` are below `root`
///
/// # Errors
///
/// [`NoSystem`] if nothing there tells what CPUs there are.
pub fn read(root: &Path, told: &Told) -> Result<Machine, NoSystem> {
    let tree = Tree::new(root);
    let Some(online_cpus) = cpu::online(&tree) else {
        return Err(NoSystem {
            root: root.to_owned(),
        });
    };
    let memory_bytes = cpu::memory_bytes(&tree);
    let rdma = net::rdma_devices(&tree);
    let mut machine = Machine {
        format: FORMAT,
        name: tree.text("proc/sys/kernel/hostname").unwrap_or_default(),
        sources: vec!["sysfs".to_owned()],
        cpu_model: cpu::model(&tree),
        memory_bytes,
        nodes: cpu::nodes(&tree, &online_cpus),
        l3_domains: cpu::cache_domains(&tree, &online_cpus),
        cores: cpu::cores(&tree, &online_cpus),
        nics: net::nics(&tree, &rdma, &told.addresses),
        rdma,
        gpus: devices::gpus(&tree),
        storage: devices::disks(&tree),
        online_cpus,
        ..Machine::default()
    };
    fill_limits(&mut machine, &tree, told);
    machine.notes = tree.into_notes();
    Ok(machine)
}

fn fill_limits(machine: &mut Machine, tree: &Tree, told: &Told) {
    let limits = Limits::new(tree);
    machine.cpu_quota = limits.cpu_quota();
    machine.memory_limit_bytes = limits.memory_bytes(machine.memory_bytes);
    let mut status = cpu::status_lists(tree);
    let bounds = [
        ("affinity mask", told.affinity.clone()),
        ("Cpus_allowed_list", status.remove("Cpus_allowed_list")),
        ("cpuset", limits.cpus()),
    ];
    machine.allowed_cpus = narrowest(tree, machine.online_cpus.clone(), bounds);
    let with_memory = machine
        .nodes
        .iter()
        .filter(|node| node.memory_bytes != Some(0));
    let nodes: CpuSet = with_memory.map(|node| node.id).collect();
    let bounds = [
        ("Mems_allowed_list", status.remove("Mems_allowed_list")),
        ("cpuset of memory", limits.memory_nodes()),
    ];
    machine.allowed_nodes = narrowest(tree, nodes, bounds).iter().collect();
}

/// Returns the part of `all` that is in each bound; a bound that leaves nothing cannot be true, and
/// is left out with a note
fn narrowest<const N: usize>(
    tree: &Tree,
    all: CpuSet,
    bounds: [(&str, Option<CpuSet>); N],
) -> CpuSet {
    let mut left = all;
    for (name, bound) in bounds {
        let Some(bound) = bound else { continue };
        let narrower = left.intersection(&bound);
        if narrower.is_empty() && !left.is_empty() {
            tree.note(format!(
                "the {name} {bound} has none of {left}, and is not taken"
            ));
        } else {
            left = narrower;
        }
    }
    left
}

/// The mask of the calling thread; `None` where it does not fit into the 1,024 CPUs of glibc's
/// type: `/proc/self/status` tells it too
fn affinity() -> Option<CpuSet> {
    let mask = rustix::thread::sched_getaffinity(None).ok()?;
    let cpus = (0..).take(rustix::thread::CpuSet::MAX_CPU);
    Some(cpus.filter(|&cpu| mask.is_set(cpu as usize)).collect())
}

fn addresses() -> BTreeMap<String, Vec<IpAddr>> {
    let mut addresses = BTreeMap::<String, Vec<IpAddr>>::new();
    for interface in if_addrs::get_if_addrs().unwrap_or_default() {
        let ip = interface.ip();
        addresses.entry(interface.name).or_default().push(ip);
    }
    addresses
}

/// A folder that is not the root of a Linux system
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error(
    "no CPUs known: neither sys/devices/system/cpu/online nor proc/cpuinfo below {}",
    root.display()
)]
pub struct NoSystem {
    /// The folder
    pub root: PathBuf,
}

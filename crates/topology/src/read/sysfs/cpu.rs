//! CPUs, cores, caches, NUMA nodes and memory

use std::collections::BTreeMap;

use super::tree::Tree;
use crate::cpuset::CpuSet;
use crate::model::{CacheDomain, Core, NumaNode};

/// CPUs that are online; `None` if nothing tells
pub(super) fn online(tree: &Tree) -> Option<CpuSet> {
    let online = tree
        .cpus("sys/devices/system/cpu/online")
        .filter(|cpus| !cpus.is_empty());
    if online.is_some() {
        return online;
    }
    tree.note("/sys/devices/system/cpu/online is missing; CPUs are from /proc/cpuinfo".to_owned());
    let info = tree.text("proc/cpuinfo")?;
    let cpus: CpuSet = info
        .lines()
        .filter_map(|line| field(line, "processor")?.parse().ok())
        .collect();
    (!cpus.is_empty()).then_some(cpus)
}

/// Model of the CPUs; empty when it is not told, as on ARM
pub(super) fn model(tree: &Tree) -> String {
    // The first CPU is enough, and the kernel writes what is read alone
    let info = tree.start("proc/cpuinfo", 4096).unwrap_or_default();
    // x86; MIPS; POWER
    ["model name", "cpu model", "cpu"]
        .iter()
        .find_map(|name| info.lines().find_map(|line| field(line, name)))
        .unwrap_or_default()
        .to_owned()
}

/// The value in a line `name : value`
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (key, value) = line.split_once(':')?;
    (key.trim() == name).then(|| value.trim())
}

/// Physical cores of the CPUs in `online`
pub(super) fn cores(tree: &Tree, online: &CpuSet) -> Vec<Core> {
    let mut cores: Vec<Core> = Vec::new();
    let mut seen = CpuSet::default();
    let mut untold = CpuSet::default();
    for cpu in online.iter() {
        if seen.contains(cpu) {
            continue;
        }
        let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        let siblings = tree.cpus(&format!("{folder}/core_cpus_list")).or_else(|| {
            tree.cpus_or_mask(
                &format!("{folder}/thread_siblings_list"),
                &format!("{folder}/thread_siblings"),
            )
        });
        let alone = CpuSet::from_iter([cpu]);
        let cpus = match siblings {
            Some(siblings) => siblings
                .intersection(online)
                .union(&alone)
                .difference(&seen),
            None => {
                untold = untold.union(&alone);
                alone
            }
        };
        seen = seen.union(&cpus);
        cores.push(Core {
            package: package(tree, &folder),
            cpus,
        });
    }
    if !untold.is_empty() {
        tree.note(format!(
            "cores of CPUs {untold} are not told; each is taken as a core of its own"
        ));
    }
    cores
}

/// Some platforms write -1 for the package: they have one
fn package(tree: &Tree, folder: &str) -> u32 {
    let package: Option<i64> = tree
        .text(&format!("{folder}/physical_package_id"))
        .and_then(|text| text.parse().ok());
    package
        .and_then(|package| u32::try_from(package).ok())
        .unwrap_or(0)
}

/// Groups of CPUs that share the last level of cache that holds data
pub(super) fn cache_domains(tree: &Tree, online: &CpuSet) -> Vec<CacheDomain> {
    let mut domains = Vec::new();
    let mut seen = CpuSet::default();
    for cpu in online.iter() {
        if seen.contains(cpu) {
            continue;
        }
        let folder = format!("sys/devices/system/cpu/cpu{cpu}/cache");
        let last = tree
            .names(&folder)
            .into_iter()
            .filter(|name| name.starts_with("index"))
            .map(|name| format!("{folder}/{name}"))
            .filter(|index| tree.text(&format!("{index}/type")).as_deref() != Some("Instruction"))
            .filter_map(|index| Some((tree.number::<u32>(&format!("{index}/level"))?, index)))
            .max();
        let Some((_, index)) = last else { continue };
        let cpus = tree.cpus_or_mask(
            &format!("{index}/shared_cpu_list"),
            &format!("{index}/shared_cpu_map"),
        );
        let Some(cpus) = cpus else {
            continue;
        };
        let cpus = cpus
            .intersection(online)
            .union(&CpuSet::from_iter([cpu]))
            .difference(&seen);
        seen = seen.union(&cpus);
        let bytes = tree
            .text(&format!("{index}/size"))
            .and_then(|size| bytes_of(&size));
        domains.push(CacheDomain { cpus, bytes });
    }
    if seen != *online {
        tree.note(format!(
            "caches of CPUs {} are not told",
            online.difference(&seen)
        ));
    }
    domains
}

/// Bytes of a size like `32768K`
fn bytes_of(size: &str) -> Option<u64> {
    let (digits, unit) = match size.strip_suffix('K') {
        Some(digits) => (digits, 1 << 10),
        None => match size.strip_suffix('M') {
            Some(digits) => (digits, 1 << 20),
            None => (size, 1),
        },
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// NUMA nodes, by number
pub(super) fn nodes(tree: &Tree, online: &CpuSet) -> Vec<NumaNode> {
    let ids = tree.cpus("sys/devices/system/node/online").or_else(|| {
        let ids: CpuSet = tree
            .names("sys/devices/system/node")
            .iter()
            .filter_map(|name| name.strip_prefix("node")?.parse().ok())
            .collect();
        (!ids.is_empty()).then_some(ids)
    });
    let Some(ids) = ids else {
        tree.note("/sys/devices/system/node is missing: NUMA nodes are not known".to_owned());
        return Vec::new();
    };
    let on_gpus = gpu_nodes(tree);
    let left_out = |id: u32| {
        on_gpus.contains(&id) || !tree.exists(&format!("sys/devices/system/node/node{id}"))
    };
    if ids.iter().any(left_out) {
        let ids: CpuSet = ids.iter().filter(|&id| left_out(id)).collect();
        tree.note(format!(
            "NUMA nodes {ids} are memory of GPUs, or hidden, and are left out"
        ));
    }
    let mut nodes = Vec::new();
    for id in ids.iter().filter(|&id| !left_out(id)) {
        let folder = format!("sys/devices/system/node/node{id}");
        // A row has a column for each node that is online
        let row = distances(tree, &folder, ids.len());
        let columns = ids.iter().zip(row).filter(|(id, _)| !left_out(*id));
        nodes.push(NumaNode {
            id,
            cpus: tree
                .cpus_or_mask(&format!("{folder}/cpulist"), &format!("{folder}/cpumap"))
                .unwrap_or_default()
                .intersection(online),
            memory_bytes: node_memory(tree, &folder),
            distances: columns.map(|(_, distance)| distance).collect(),
        });
    }
    let twice = claim_once(&mut nodes);
    if !twice.is_empty() {
        tree.note(format!(
            "CPUs {twice} are in several NUMA nodes; the first counts"
        ));
    }
    nodes
}

/// Leaves each CPU to the first node that has it, and returns those that more had
pub(in crate::read) fn claim_once(nodes: &mut [NumaNode]) -> CpuSet {
    let (mut seen, mut twice) = (CpuSet::default(), CpuSet::default());
    for node in nodes {
        twice = twice.union(&node.cpus.intersection(&seen));
        node.cpus = node.cpus.difference(&seen);
        seen = seen.union(&node.cpus);
    }
    twice
}

/// Nodes whose memory is that of a GPU, as of a Grace Hopper: programs of the CPU that know
/// nothing of GPUs must not be bound to them
fn gpu_nodes(tree: &Tree) -> Vec<u32> {
    tree.names("proc/driver/nvidia/gpus")
        .iter()
        .filter_map(|gpu| tree.text(&format!("proc/driver/nvidia/gpus/{gpu}/numa_status")))
        .filter_map(|status| {
            let node = status.lines().find_map(|line| field(line, "Node"));
            node?.parse().ok()
        })
        .collect()
}

fn node_memory(tree: &Tree, folder: &str) -> Option<u64> {
    let info = tree.text(&format!("{folder}/meminfo"))?;
    let line = info.lines().find(|line| line.contains("MemTotal:"))?;
    kib(line.split_once("MemTotal:")?.1)
}

fn distances(tree: &Tree, folder: &str, nodes: usize) -> Vec<u32> {
    let Some(row) = tree.text(&format!("{folder}/distance")) else {
        return Vec::new();
    };
    let distances: Vec<u32> = row
        .split_whitespace()
        .map_while(|distance| distance.parse().ok())
        .collect();
    if distances.len() == nodes {
        distances
    } else {
        tree.note(format!(
            "/{folder}/distance: not {nodes} distances: {row:?}"
        ));
        Vec::new()
    }
}

/// Memory of the host, in bytes
pub(super) fn memory_bytes(tree: &Tree) -> Option<u64> {
    let info = tree.text("proc/meminfo");
    let bytes = info
        .as_deref()
        .and_then(|info| info.lines().find_map(|line| field(line, "MemTotal")))
        .and_then(kib);
    if bytes.is_none() {
        tree.note("/proc/meminfo does not tell the memory".to_owned());
    }
    bytes
}

/// Bytes of an amount like `16384 kB`, which is in KiB
fn kib(amount: &str) -> Option<u64> {
    let digits = amount.trim().strip_suffix("kB")?.trim();
    digits.parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// Lists in `/proc/self/status`, by name
pub(super) fn status_lists(tree: &Tree) -> BTreeMap<&'static str, CpuSet> {
    let status = tree.text("proc/self/status").unwrap_or_default();
    let mut lists = BTreeMap::new();
    for name in ["Cpus_allowed_list", "Mems_allowed_list"] {
        let list = status.lines().find_map(|line| field(line, name));
        match list.map(str::parse) {
            Some(Ok(list)) => {
                lists.insert(name, list);
            }
            Some(Err(error)) => tree.note(format!("/proc/self/status: {name}: {error}")),
            None => {}
        }
    }
    lists
}

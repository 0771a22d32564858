//! XML of hwloc 2 and 3, as `lstopo --of xml` writes it
//!
//! CPUs, cores, caches, NUMA nodes with distances, PCI devices with their bridges, interfaces,
//! RDMA devices, GPUs and NVLink. hwloc tells no quota, no addresses and no speed of interfaces;
//! notes say what was assumed.

mod cpu;
mod devices;
mod xml;

use roxmltree::{Document, Node, ParsingOptions};

pub use xml::HwlocError;

use crate::cpuset::CpuSet;
use crate::model::{FORMAT, Machine};
use xml::{info, objects, set};

/// Reads a machine from XML
///
/// # Errors
///
/// [`HwlocError`]: not XML of hwloc 2 or 3, or an attribute in it that makes no sense.
pub fn parse(text: &str) -> Result<Machine, HwlocError> {
    let options = ParsingOptions {
        // hwloc names its own; nothing outside the text is read
        allow_dtd: true,
        nodes_limit: NODES_MAX,
        ..ParsingOptions::default()
    };
    let document = Document::parse_with_options(text, options)?;
    let root = document.root_element();
    if !root.has_tag_name("topology") {
        return Err(HwlocError::NotTopology {
            name: root.tag_name().name().to_owned(),
        });
    }
    let version = root.attribute("version").unwrap_or("");
    let major = match version.split('.').next() {
        Some("2") => 2,
        Some("3") => 3,
        _ => {
            return Err(HwlocError::Version {
                version: version.to_owned(),
            });
        }
    };
    let mut machine = Machine {
        format: FORMAT,
        sources: vec![format!("hwloc XML {version}")],
        ..Machine::default()
    };
    fill_host(root, &mut machine)?;
    devices::fill(root, major, &mut machine)?;
    Ok(machine)
}

/// Fills in all but devices
fn fill_host(root: Node<'_, '_>, machine: &mut Machine) -> Result<(), HwlocError> {
    let online = cpu::threads(root)?;
    let Some(host) = objects(root, "Machine")
        .next()
        .filter(|_| !online.is_empty())
    else {
        return Err(HwlocError::NoCpus);
    };
    let name = info(host, "HostName").or_else(|| info(root, "HostName"));
    machine.name = name.unwrap_or_default().to_owned();
    machine.cpu_model = std::iter::once(host)
        .chain(objects(root, "Package"))
        .find_map(|node| info(node, "CPUModel"))
        .unwrap_or_default()
        .to_owned();
    machine.nodes = cpu::nodes(root, &online)?;
    machine.cores = cpu::cores(root)?;
    machine.l3_domains = cpu::cache_domains(root)?;
    machine.memory_bytes = machine
        .nodes
        .iter()
        .map(|node| node.memory_bytes)
        .try_fold(0_u64, |sum, bytes| sum.checked_add(bytes?))
        .filter(|&bytes| bytes > 0);
    let allowed = set(host, "allowed_cpuset")?.unwrap_or_else(|| online.clone());
    machine.allowed_cpus = online.intersection(&allowed);
    let nodes: CpuSet = machine.nodes.iter().map(|node| node.id).collect();
    let allowed = set(host, "allowed_nodeset")?.unwrap_or_else(|| nodes.clone());
    machine.allowed_nodes = nodes.intersection(&allowed).iter().collect();
    machine.online_cpus = online;
    machine
        .notes
        .push("hwloc does not tell quotas of CPU time or of memory".to_owned());
    Ok(())
}

/// A host with 1,000 CPUs has about 20,000 elements
const NODES_MAX: u32 = 2_000_000;

#[cfg(test)]
mod tests;

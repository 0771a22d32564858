//! Devices in hwloc's XML: where they are, and what they are

use std::collections::BTreeMap;

use roxmltree::Node;

use super::cpu::{numbers, words};
use super::xml::{HwlocError, info, info_kib, kind, number, objects, set};
use crate::model::{Disk, Gpu, Machine, Nic, NicKind, NvLink, Place, RdmaDevice};
use crate::read::pci::PciAddress;

/// Kinds of device that matter here
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Device {
    Block,
    Network,
    Rdma,
}

impl Device {
    /// Reads `osdev_type`: a number in hwloc 2, bits in hwloc 3
    fn of(node: Node<'_, '_>, major: u32) -> Result<Option<Self>, HwlocError> {
        let code = number(node, "osdev_type")?;
        Ok(match (major, code) {
            (2, Some(0)) | (3, Some(1)) => Some(Self::Block),
            (2, Some(2)) | (3, Some(16)) => Some(Self::Network),
            (2, Some(3)) | (3, Some(32 | 48)) => Some(Self::Rdma),
            _ => None,
        })
    }
}

/// Adds the devices below `root` to `machine`
pub(super) fn fill(
    root: Node<'_, '_>,
    major: u32,
    machine: &mut Machine,
) -> Result<(), HwlocError> {
    for node in objects(root, "OSDev") {
        let name = node.attribute("name").unwrap_or("").to_owned();
        match Device::of(node, major)? {
            Some(Device::Block) => machine.storage.push(Disk {
                name,
                bytes: info_kib(node, "Size"),
                rotational: None,
                place: place(node)?,
            }),
            Some(Device::Network) => {
                let place = place(node)?;
                machine.nics.push(Nic {
                    name,
                    kind: nic_kind(node, &place),
                    up: true,
                    rdma: rdma_beside(node, major),
                    place,
                    ..Nic::default()
                });
            }
            Some(Device::Rdma) => machine.rdma.push(RdmaDevice {
                name,
                bits_per_s: None,
                active: rdma_active(node),
                place: place(node)?,
            }),
            None => {}
        }
    }
    machine.nics.sort_by(|a, b| a.name.cmp(&b.name));
    machine.rdma.sort_by(|a, b| a.name.cmp(&b.name));
    machine.storage.sort_by(|a, b| a.name.cmp(&b.name));
    if !machine.nics.is_empty() {
        machine.notes.push(
            "hwloc does not tell which interfaces are up: each is taken to be, unless its RDMA \
             device has no active port"
                .to_owned(),
        );
    }
    let inactive = |name: &String| {
        machine
            .rdma
            .iter()
            .any(|device| device.name == *name && device.active == Some(false))
    };
    for nic in &mut machine.nics {
        nic.up = !nic.rdma.as_ref().is_some_and(inactive);
    }
    fill_gpus(root, machine)
}

/// Where a device is: its bridges, and the CPUs and NUMA node of the object that they hang on
fn place(device: Node<'_, '_>) -> Result<Place, HwlocError> {
    let mut place = Place::default();
    for node in device
        .ancestors()
        .filter(|node| node.has_tag_name("object"))
    {
        if let Some(address) = node.attribute("pci_busid").and_then(PciAddress::parse) {
            place.pci_path.push(address.name());
        } else if let Some(bus) = node.attribute("bridge_pci").and_then(host_bus) {
            place.pci_path.push(format!("pci{bus}"));
        }
        let Some(cpus) = set(node, "cpuset")? else {
            continue;
        };
        place.cpus = cpus;
        let nodes = set(node, "nodeset")?.unwrap_or_default();
        place.node = nodes.iter().next().filter(|_| nodes.len() == 1);
        break;
    }
    place.pci_path.reverse();
    Ok(place)
}

/// `0000:2b` of the buses `0000:[2b-3b]` below a host bridge
fn host_bus(buses: &str) -> Option<String> {
    let (domain, buses) = buses.split_once(":[")?;
    let (first, _) = buses.split_once('-')?;
    // Both are parts of an address
    PciAddress::parse(&format!("{domain}:{first}:00.0"))?;
    Some(format!("{domain}:{first}"))
}

/// An address of InfiniBand has 20 octets
fn nic_kind(node: Node<'_, '_>, place: &Place) -> NicKind {
    let octets = info(node, "Address").map_or(0, |address| address.split(':').count());
    match octets {
        20 => NicKind::Infiniband,
        _ if node.attribute("name") == Some("lo") => NicKind::Loopback,
        _ if place.pci_path.is_empty() => NicKind::Virtual,
        _ => NicKind::Ethernet,
    }
}

/// The RDMA device on the same function of the card
fn rdma_beside(node: Node<'_, '_>, major: u32) -> Option<String> {
    let card = node.parent().filter(|parent| kind(*parent) == "PCIDev")?;
    card.children()
        .filter(|sibling| kind(*sibling) == "OSDev")
        .find(|sibling| matches!(Device::of(*sibling, major), Ok(Some(Device::Rdma))))
        .and_then(|sibling| sibling.attribute("name"))
        .map(str::to_owned)
}

/// Returns whether a port is in state 4, active
fn rdma_active(node: Node<'_, '_>) -> Option<bool> {
    let states: Vec<&str> = (1..=RDMA_PORTS_MAX)
        .map_while(|port| info(node, &format!("Port{port}State")))
        .collect();
    (!states.is_empty()).then(|| states.contains(&"4"))
}

/// GPUs of NVIDIA: PCI devices of class 03, with what NVML and CUDA told hwloc below them
fn fill_gpus(root: Node<'_, '_>, machine: &mut Machine) -> Result<(), HwlocError> {
    let mut found = BTreeMap::new();
    for node in objects(root, "PCIDev") {
        let kind = node.attribute("pci_type").unwrap_or("");
        let address = node.attribute("pci_busid").and_then(PciAddress::parse);
        if let Some(address) = address.filter(|_| kind.starts_with("03") && kind.contains("[10de:"))
        {
            found.insert(address, node);
        }
    }
    // hwloc's number of an object, to the number of the GPU
    let mut by_object = BTreeMap::new();
    for (index, node) in (0..).zip(found.into_values()) {
        let mut gpu = Gpu {
            index,
            name: info(node, "PCIDevice").unwrap_or("NVIDIA GPU").to_owned(),
            place: place(node)?,
            ..Gpu::default()
        };
        for device in node.children().filter(|child| kind(*child) == "OSDev") {
            if let Some(object) = device.attribute("gp_index") {
                by_object.insert(object, index);
            }
            let uuid = info(device, "NVIDIAUUID").map(str::to_owned);
            gpu.uuid = gpu.uuid.or(uuid);
            let bytes = info_kib(device, "CUDAGlobalMemorySize");
            gpu.memory_bytes = gpu.memory_bytes.or(bytes);
            if let Some(model) = info(device, "GPUModel") {
                gpu.name = model.to_owned();
            }
        }
        machine.gpus.push(gpu);
    }
    fill_nvlinks(root, &by_object, machine);
    Ok(())
}

/// Reads the matrix of bandwidths of NVLink, in MB/s a direction
///
/// hwloc tells no counts. It takes 20,000 MB/s for a link of the first generation, 25,000 for those
/// of the next ones, and 50,000 since the fifth (`topology-nvml.c`): a link here is 25,000, unless
/// all are multiples of 20,000 alone.
fn fill_nvlinks(root: Node<'_, '_>, by_object: &BTreeMap<&str, u32>, machine: &mut Machine) {
    let Some(matrix) = root
        .children()
        .find(|node| node.attribute("name") == Some("NVLinkBandwidth"))
    else {
        return;
    };
    // `OSDev:802` where kinds are mixed, `802` where they are not
    let objects: Vec<&str> = words(matrix, "indexes")
        .map(|word| word.rsplit_once(':').map_or(word, |(_, object)| object))
        .collect();
    let gpus: Vec<Option<u32>> = objects.iter().map(|o| by_object.get(o).copied()).collect();
    let values = numbers(matrix, "u64values").unwrap_or_default();
    if objects.is_empty() || objects.len().checked_mul(objects.len()) != Some(values.len()) {
        machine
            .notes
            .push("the matrix of NVLinkBandwidth is not square, and is not read".to_owned());
        return;
    }
    // The diagonal has a number above all others
    let rows = || gpus.iter().zip(values.chunks(objects.len())).enumerate();
    let mut told = rows().flat_map(|(at, (_, row))| {
        let others = row
            .iter()
            .enumerate()
            .filter(move |(other, _)| *other != at);
        others.map(|(_, value)| *value)
    });
    let old = told.clone().any(|value| value % 25_000 != 0) && told.all(|v| v % 20_000 == 0);
    let (link_mb_per_s, version) = if old {
        (20_000, Some(1))
    } else {
        (25_000, None)
    };
    let links = |value: u64| u32::try_from(value / link_mb_per_s).unwrap_or(0);
    // Links of a GPU to switches, by the number of the GPU
    let mut switched = Vec::new();
    for (at, (gpu, row)) in rows() {
        let Some(gpu) = gpu else { continue };
        let mut to_switches = 0_u32;
        for (other, &value) in row.iter().enumerate().filter(|(other, _)| *other != at) {
            match gpus[other] {
                Some(peer) if *gpu < peer && links(value) > 0 => machine.nvlinks.push(NvLink {
                    gpus: (*gpu, peer),
                    links: links(value),
                    version,
                }),
                Some(_) => {}
                None if is_switch(root, objects[other]) => {
                    to_switches = to_switches.saturating_add(links(value));
                }
                None => {}
            }
        }
        switched.extend((to_switches > 0).then_some((*gpu, to_switches)));
    }
    switched.sort_unstable();
    for (at, &(gpu, links)) in switched.iter().enumerate() {
        for &(peer, peer_links) in &switched[at + 1..] {
            machine.nvlinks.push(NvLink {
                gpus: (gpu, peer),
                links: links.min(peer_links),
                version,
            });
        }
    }
    machine.nvlinks.sort_by_key(|link| link.gpus);
    if !machine.nvlinks.is_empty() {
        machine.notes.push(format!(
            "hwloc tells bandwidths of NVLink: {link_mb_per_s} MB/s are taken as a link"
        ));
    }
}

/// Returns whether the object is an NVSwitch, and not a CPU with NVLink as in POWER9
fn is_switch(root: Node<'_, '_>, object: &str) -> bool {
    objects(root, "PCIDev").any(|node| {
        node.attribute("gp_index") == Some(object) && node.attribute("subtype") == Some("NVSwitch")
    })
}

/// Cards have one or two ports; the number is a byte in the verbs of RDMA
const RDMA_PORTS_MAX: u32 = 255;

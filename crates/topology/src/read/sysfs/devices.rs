//! Where devices are, GPUs on the PCI bus, and block devices

use std::collections::BTreeMap;

use super::tree::Tree;
use crate::model::{Disk, Gpu, Place};
use crate::read::pci::{PciAddress, pci_path};

/// Where the device is that a link in `sys/class`, `sys/block` or `sys/bus` leads to
pub(super) fn place(tree: &Tree, link: &str) -> Place {
    let pci_path = tree.link(link).map(|path| pci_path(&path));
    let pci_path = pci_path.unwrap_or_default();
    if pci_path.is_empty() {
        return Place::default();
    }
    let folder = format!("sys/devices/{}", pci_path.join("/"));
    // -1, where firmware does not tell
    let node: Option<i64> = tree.number(&format!("{folder}/numa_node"));
    Place {
        node: node.and_then(|node| u32::try_from(node).ok()),
        cpus: tree
            .cpus_or_mask(
                &format!("{folder}/local_cpulist"),
                &format!("{folder}/local_cpus"),
            )
            .unwrap_or_default(),
        pci_path,
    }
}

/// GPUs of NVIDIA, in the order of their addresses
pub(super) fn gpus(tree: &Tree) -> Vec<Gpu> {
    let mut found = BTreeMap::new();
    for name in tree.names("sys/bus/pci/devices") {
        let folder = format!("sys/bus/pci/devices/{name}");
        let is = |file: &str, prefix: &str| {
            tree.text(&format!("{folder}/{file}"))
                .is_some_and(|text| text.starts_with(prefix))
        };
        // Class 03: display controllers. Vendor first: nearly no device passes it
        if let Some(address) = PciAddress::parse(&name)
            && is("vendor", "0x10de")
            && is("class", "0x03")
        {
            found.insert(address, folder);
        }
    }
    let has_driver = tree.exists("proc/driver/nvidia/gpus");
    if !found.is_empty() && !has_driver {
        tree.note(format!(
            "{} GPUs are on the PCI bus, and no driver of NVIDIA: they may be of no use here",
            found.len()
        ));
    }
    let mut gpus = Vec::new();
    for (index, (address, folder)) in (0..).zip(found) {
        let told = told_by_driver(tree, address);
        gpus.push(Gpu {
            index,
            uuid: told.get("GPU UUID").cloned(),
            name: told.get("Model").cloned().unwrap_or_else(|| {
                let device = tree.text(&format!("{folder}/device"));
                format!("NVIDIA device {}", device.as_deref().unwrap_or("unknown"))
            }),
            place: place(tree, &folder),
            ..Gpu::default()
        });
    }
    gpus
}

/// Lines `name: value` of the driver about the GPU at `address`
fn told_by_driver(tree: &Tree, address: PciAddress) -> BTreeMap<String, String> {
    let path = format!("proc/driver/nvidia/gpus/{}/information", address.name());
    let text = tree.text(&path).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
        // A driver that has not asked the GPU yet writes question marks
        .filter(|(_, value)| !value.is_empty() && !value.contains('?'))
        .collect()
}

/// Block devices that are hardware; partitions, loops and device mappings are not
pub(super) fn disks(tree: &Tree) -> Vec<Disk> {
    let mut disks = Vec::new();
    for name in tree.names("sys/block") {
        let folder = format!("sys/block/{name}");
        let target = tree.link(&folder).unwrap_or_default();
        let place = match target.split_once("/virtual/") {
            None => place(tree, &folder),
            Some((_, path)) if path.starts_with("nvme-subsystem/") => multipath_place(tree, path),
            Some(_) => continue,
        };
        // Sectors of 512 bytes, whatever those of the device; 0 in a drive without a disc
        let sectors: Option<u64> = tree.number(&format!("{folder}/size"));
        if sectors == Some(0) {
            continue;
        }
        let rotational: Option<u8> = tree.number(&format!("{folder}/queue/rotational"));
        disks.push(Disk {
            name,
            bytes: sectors.and_then(|sectors| sectors.checked_mul(512)),
            rotational: rotational.map(|rotational| rotational != 0),
            place,
        });
    }
    disks
}

/// An NVMe disk with several paths is below its subsystem, which has links to its controllers
fn multipath_place(tree: &Tree, path: &str) -> Place {
    let subsystem = path.rsplit_once('/').map_or("", |(above, _)| above);
    let folder = format!("sys/devices/virtual/{subsystem}");
    tree.names(&folder)
        .iter()
        .filter(|name| name.starts_with("nvme"))
        .map(|name| place(tree, &format!("{folder}/{name}")))
        .find(|place| !place.pci_path.is_empty())
        .unwrap_or_default()
}

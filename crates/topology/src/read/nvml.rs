//! GPUs as the driver of NVIDIA reports them, joined to those on the PCI bus
//!
//! [`driver`] asks and leaves the answers as they are; the code here is pure. NVML sees the GPUs
//! that this process may use, in a container too, so its report of a GPU wins over sysfs, and a GPU
//! that it does not report is left out.

mod driver;
mod library;

use std::collections::BTreeMap;

pub(super) use driver::ask;

use super::pci::PciAddress;
use crate::cpuset::CpuSet;
use crate::model::{Gpu, GpuInstance, Machine, NvLink, PciPath, Place, ToldPath};

/// Report of NVML
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Told {
    /// Version of the driver
    version: String,
    gpus: Vec<ToldGpu>,
    /// Paths between two GPUs, by their numbers
    paths: Vec<((u32, u32), PciPath)>,
    notes: Vec<String>,
}

/// NVML's report of a GPU
#[derive(Clone, Debug, Default, PartialEq)]
struct ToldGpu {
    index: u32,
    uuid: String,
    name: String,
    /// PCI address, with a domain of eight digits
    pci: String,
    memory_bytes: Option<u64>,
    cpus: CpuSet,
    /// NUMA nodes of host memory near it
    nodes: CpuSet,
    instances: Vec<GpuInstance>,
    links: Vec<ToldLink>,
}

/// NVML's report of an active link of NVLink
#[derive(Clone, Debug, Default, PartialEq)]
struct ToldLink {
    /// PCI address of what it leads to
    pci: String,
    /// Vendor of what it leads to
    vendor: u32,
    /// `nvmlNvlinkVersion_t`
    version: Option<u32>,
}

/// Joins what NVML says to a machine from sysfs
pub(super) fn join(machine: &mut Machine, told: Told) {
    let on_bus = std::mem::take(&mut machine.gpus);
    machine.nvlinks = nvlinks(&told.gpus, &on_bus);
    let mut on_bus: BTreeMap<_, _> = on_bus
        .into_iter()
        .filter_map(|gpu| Some((address(&gpu.place)?, gpu)))
        .collect();
    for gpu in told.gpus {
        let pci = PciAddress::parse(&gpu.pci);
        let known = pci.and_then(|pci| on_bus.remove(&pci));
        let place = place(machine, &gpu, pci, known.map(|known| known.place));
        machine.gpus.push(Gpu {
            index: gpu.index,
            uuid: Some(gpu.uuid),
            name: gpu.name,
            memory_bytes: gpu.memory_bytes,
            place,
            instances: gpu.instances,
        });
    }
    machine.gpus.sort_by_key(|gpu| gpu.index);
    if !on_bus.is_empty() {
        let hidden: Vec<String> = on_bus.into_keys().map(PciAddress::name).collect();
        machine.notes.push(format!(
            "GPUs on the PCI bus that this process may not use: {}",
            hidden.join(", ")
        ));
    }
    let paths = told.paths.into_iter().map(|((a, b), path)| ToldPath {
        devices: (format!("gpu{a}"), format!("gpu{b}")),
        path,
    });
    machine.told_paths.extend(paths);
    machine.sources.push(format!("NVML {}", told.version));
    machine.notes.extend(told.notes);
}

fn address(place: &Place) -> Option<PciAddress> {
    PciAddress::parse(place.pci_path.last()?)
}

/// Where a GPU is: the path of sysfs, and what the driver says is near it
fn place(machine: &Machine, gpu: &ToldGpu, pci: Option<PciAddress>, known: Option<Place>) -> Place {
    let mut place = known.unwrap_or_else(|| Place {
        pci_path: pci.map(PciAddress::name).into_iter().collect(),
        ..Place::default()
    });
    // The driver narrows the mask to what a container may use; offline CPUs are not of use
    let near = gpu.cpus.intersection(&machine.online_cpus);
    if !near.is_empty() {
        place.cpus = near;
    }
    let only = gpu.nodes.iter().next().filter(|_| gpu.nodes.len() == 1);
    place.node = place.node.or(only);
    place
}

/// Counts the links between pairs of GPUs, and those that a switch joins
fn nvlinks(gpus: &[ToldGpu], on_bus: &[Gpu]) -> Vec<NvLink> {
    let by_address: BTreeMap<PciAddress, u32> = gpus
        .iter()
        .filter_map(|gpu| Some((PciAddress::parse(&gpu.pci)?, gpu.index)))
        .collect();
    let hidden = |pci: PciAddress| on_bus.iter().any(|gpu| address(&gpu.place) == Some(pci));
    let mut pairs = BTreeMap::<(u32, u32), (u32, Option<u32>)>::new();
    let mut switched = BTreeMap::<u32, (u32, Option<u32>)>::new();
    for gpu in gpus {
        for link in &gpu.links {
            let remote = PciAddress::parse(&link.pci);
            let version = link.version.and_then(generation);
            let count = match remote.and_then(|pci| by_address.get(&pci)) {
                // The other end reports the same link
                Some(peer) if gpu.index < *peer => pairs.entry((gpu.index, *peer)),
                Some(_) => continue,
                // A GPU that is not given to this process, or a CPU with NVLink
                None if link.vendor == VENDOR_IBM || remote.is_some_and(hidden) => continue,
                // A switch; in a virtual machine its address is no address
                None => {
                    let count = switched.entry(gpu.index).or_insert((0, version));
                    count.0 += 1;
                    continue;
                }
            };
            count.or_insert((0, version)).0 += 1;
        }
    }
    let switched: Vec<_> = switched.into_iter().collect();
    for (at, &(a, (links, version))) in switched.iter().enumerate() {
        for &(b, (peer_links, _)) in &switched[at + 1..] {
            pairs.insert((a, b), (links.min(peer_links), version));
        }
    }
    pairs
        .into_iter()
        .map(|(gpus, (links, version))| NvLink {
            gpus,
            links,
            version,
        })
        .collect()
}

/// Generation of NVLink, of `nvmlNvlinkVersion_t`: 1.0, 2.0, 2.2, 3.0, 3.1, 4.0, 5.0
fn generation(version: u32) -> Option<u32> {
    match version {
        1 => Some(1),
        2 | 3 => Some(2),
        4 | 5 => Some(3),
        6 => Some(4),
        7 => Some(5),
        _ => None,
    }
}

/// POWER8 and POWER9 have NVLink
const VENDOR_IBM: u32 = 0x1014;

#[cfg(test)]
mod tests {
    use super::*;

    /// A GPU on the bus
    fn on_bus(address: &str) -> Gpu {
        Gpu {
            place: Place {
                pci_path: vec!["pci0000:00".to_owned(), address.to_owned()],
                node: Some(1),
                cpus: "0-7".parse().expect("a list"),
            },
            name: "NVIDIA device 0x1db5".to_owned(),
            ..Gpu::default()
        }
    }

    fn told(index: u32, pci: &str, links: &[&str]) -> ToldGpu {
        ToldGpu {
            index,
            uuid: format!("GPU-{index}"),
            name: "Tesla V100-SXM2-32GB".to_owned(),
            pci: pci.to_owned(),
            memory_bytes: Some(1 << 35),
            cpus: "0-3,64".parse().expect("a list"),
            links: links
                .iter()
                .map(|pci| ToldLink {
                    pci: (*pci).to_owned(),
                    vendor: 0x10de,
                    version: Some(2),
                })
                .collect(),
            ..ToldGpu::default()
        }
    }

    fn machine(gpus: Vec<Gpu>) -> Machine {
        Machine {
            online_cpus: "0-7".parse().expect("a list"),
            gpus,
            ..Machine::default()
        }
    }

    fn link(gpus: (u32, u32), links: u32) -> NvLink {
        NvLink {
            gpus,
            links,
            version: Some(2),
        }
    }

    #[test]
    fn the_driver_and_the_bus_tell_of_one_gpu() {
        let mut machine = machine(vec![on_bus("0000:0a:00.0"), on_bus("0000:06:00.0")]);
        let gpus = vec![
            told(0, "00000000:06:00.0", &[]),
            told(1, "00000000:0A:00.0", &[]),
        ];
        let told = Told {
            version: "550.54".to_owned(),
            gpus,
            paths: vec![((0, 1), PciPath::Phb)],
            notes: vec!["a note".to_owned()],
        };
        join(&mut machine, told);
        assert_eq!(machine.gpus.len(), 2);
        let gpu = &machine.gpus[0];
        assert_eq!(gpu.place.pci_path, ["pci0000:00", "0000:06:00.0"]);
        assert_eq!(gpu.place.node, Some(1));
        assert_eq!(gpu.place.cpus.to_string(), "0-3");
        assert_eq!(gpu.uuid.as_deref(), Some("GPU-0"));
        assert_eq!(gpu.name, "Tesla V100-SXM2-32GB");
        assert_eq!(
            machine.told_paths[0].devices,
            ("gpu0".to_owned(), "gpu1".to_owned())
        );
        assert_eq!(machine.sources, ["NVML 550.54"]);
        assert_eq!(machine.notes, ["a note"]);
    }

    #[test]
    fn a_gpu_that_the_driver_does_not_give_is_left_out_with_a_note() {
        let mut machine = machine(vec![on_bus("0000:06:00.0"), on_bus("0000:07:00.0")]);
        let told = Told {
            // Three links, to a GPU that is not given: no switch
            gpus: vec![told(0, "00000000:07:00.0", &["00000000:06:00.0"; 3])],
            ..Told::default()
        };
        join(&mut machine, told);
        assert_eq!(machine.gpus.len(), 1);
        assert!(machine.nvlinks.is_empty());
        assert!(machine.notes[0].contains("0000:06:00.0"));
    }

    #[test]
    fn a_gpu_that_sysfs_hides_keeps_what_the_driver_says() {
        let mut machine = machine(Vec::new());
        let mut gpu = told(0, "00000000:07:00.0", &[]);
        gpu.nodes = CpuSet::from_iter([3]);
        join(
            &mut machine,
            Told {
                gpus: vec![gpu],
                ..Told::default()
            },
        );
        assert_eq!(machine.gpus[0].place.pci_path, ["0000:07:00.0"]);
        assert_eq!(machine.gpus[0].place.node, Some(3));
    }

    #[test]
    fn links_are_counted_once_for_both_ends() {
        let gpus = [
            told(0, "0000:06:00.0", &["0000:07:00.0", "0000:07:00.0"]),
            told(1, "0000:07:00.0", &["0000:06:00.0", "0000:06:00.0"]),
            told(2, "0000:0a:00.0", &[]),
        ];
        assert_eq!(nvlinks(&gpus, &[]), [link((0, 1), 2)]);
    }

    #[test]
    fn a_switch_joins_all_that_lead_to_one() {
        let switches = ["0000:c4:00.0", "0000:c5:00.0", "fffffff:ffff:ff"];
        let gpus = [
            told(0, "0000:07:00.0", &switches),
            told(1, "0000:0f:00.0", &switches),
            told(2, "0000:47:00.0", &switches[..2]),
        ];
        let expected = [link((0, 1), 3), link((0, 2), 2), link((1, 2), 2)];
        assert_eq!(nvlinks(&gpus, &[]), expected);
    }

    #[test]
    fn a_cpu_with_nvlink_is_no_switch() {
        let mut gpus = [
            told(0, "0002:01:00.0", &["0004:00:00.0"]),
            told(1, "0003:01:00.0", &["0004:00:00.1"]),
        ];
        for gpu in &mut gpus {
            gpu.links[0].vendor = VENDOR_IBM;
        }
        assert!(nvlinks(&gpus, &[]).is_empty());
    }
}

//! Readers on random texts, and JSON of random machines

use backhaul_topology::CpuSet;
use backhaul_topology::model::{
    CacheDomain, Core, Disk, FORMAT, Gpu, GpuInstance, Machine, Nic, NicKind, NumaNode, NvLink,
    PciPath, Place, RdmaDevice, ToldPath,
};
use backhaul_topology::read::{Format, parse};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const TABLE: &str = include_str!("fixtures/dgx-a100.nvidia-smi.txt");
const MIG: &str = include_str!("fixtures/mig.nvidia-smi.txt");
const XML: &str = include_str!("fixtures/dgx-1.hwloc.xml");

/// Texts that a mutation puts in: parts of tables, of XML, of JSON, and bytes of none
const PARTS: [&str; 24] = [
    "",
    "\t",
    "\t\t",
    "\n",
    " ",
    "X",
    "NV",
    "NV12",
    "NV4294967296",
    "GPU0",
    "GPU",
    "NIC0",
    "MIG",
    "N/A",
    "0-",
    "9-1",
    "0-65535",
    "\u{1b}[",
    "\u{1b}[4m",
    "<object>",
    "\"",
    "0x",
    "é",
    "{",
];

/// `text` with parts cut out and others put in, at places of characters
fn mutated(text: &'static str) -> impl Strategy<Value = String> {
    vec((any::<Index>(), 0..20_usize, select(&PARTS[..])), 1..8).prop_map(move |changes| {
        let mut chars: Vec<char> = text.chars().collect();
        for (at, cut, part) in changes {
            let at = at.index(chars.len() + 1);
            let end = chars.len().min(at + cut);
            chars.splice(at..end, part.chars());
        }
        chars.into_iter().collect()
    })
}

fn cpus() -> impl Strategy<Value = CpuSet> {
    vec(0..512_u32, 0..40).prop_map(CpuSet::from_iter)
}

/// Sets without common members, from one number for each CPU
fn parts(owners: &[u8], count: u8) -> Vec<CpuSet> {
    let members = |part: u8| {
        let cpus = (0..).zip(owners).filter(move |(_, owner)| **owner == part);
        cpus.map(|(cpu, _): (u32, _)| cpu).collect()
    };
    (0..count).map(members).collect()
}

fn place() -> impl Strategy<Value = Place> {
    let address = "[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\\.[0-7]";
    let place = (vec(address, 0..4), of(0..4_u32), cpus());
    place.prop_map(|(pci_path, node, cpus)| Place {
        pci_path,
        node,
        cpus,
    })
}

fn gpus() -> impl Strategy<Value = Vec<Gpu>> {
    let gpu = (
        any::<String>(),
        of(any::<u64>()),
        place(),
        vec(any::<String>(), 0..3),
    );
    vec(gpu, 0..5).prop_map(|gpus| {
        (0..)
            .zip(gpus)
            .map(|(index, (name, memory_bytes, place, instances))| Gpu {
                index,
                uuid: Some(format!("GPU-{index}")),
                name,
                memory_bytes,
                place,
                instances: instances
                    .into_iter()
                    .map(|profile| GpuInstance {
                        uuid: format!("MIG-{profile}"),
                        profile,
                        memory_bytes,
                    })
                    .collect(),
            })
            .collect()
    })
}

fn devices() -> impl Strategy<Value = (Vec<Nic>, Vec<RdmaDevice>, Vec<Disk>)> {
    let kinds = [
        NicKind::Loopback,
        NicKind::Ethernet,
        NicKind::Infiniband,
        NicKind::Virtual,
        NicKind::Other,
    ];
    let device = (
        select(kinds.to_vec()),
        any::<bool>(),
        of(any::<u64>()),
        vec(any::<std::net::IpAddr>(), 0..3),
        place(),
    );
    vec(device, 0..4).prop_map(|devices| {
        let (mut nics, mut rdma, mut disks) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (kind, up, speed, addresses, place)) in devices.into_iter().enumerate() {
            nics.push(Nic {
                name: format!("ib{at}"),
                kind,
                up,
                bits_per_s: speed,
                addresses,
                place: place.clone(),
                rdma: up.then(|| format!("mlx5_{at}")),
            });
            rdma.push(RdmaDevice {
                name: format!("mlx5_{at}"),
                bits_per_s: speed,
                active: up.then_some(true),
                place: place.clone(),
            });
            disks.push(Disk {
                name: format!("nvme{at}n1"),
                bytes: speed,
                rotational: Some(up),
                place,
            });
        }
        (nics, rdma, disks)
    })
}

prop_compose! {
    fn machines()(
        owners in vec(0..4_u8, 1..64),
        names in vec(any::<String>(), 3),
        quota in of(1_u32..1_000_000),
        bytes in of(any::<u64>()),
        gpus in gpus(),
        (nics, rdma, storage) in devices(),
        links in 1..18_u32,
        path in select(&[PciPath::Pix, PciPath::Pxb, PciPath::Phb, PciPath::Node, PciPath::Sys][..]),
        allowed in cpus(),
    ) -> Machine {
        let sets = parts(&owners, 4);
        let online: CpuSet = sets.iter().flat_map(CpuSet::iter).collect();
        let pairs = gpus.iter().skip(1).map(|gpu| (0, gpu.index));
        Machine {
            format: FORMAT,
            name: names[0].clone(),
            sources: names[1..].to_vec(),
            cpu_model: names[1].clone(),
            allowed_cpus: online.intersection(&allowed),
            allowed_nodes: vec![0, 2],
            cpu_quota: quota.map(|quota| f64::from(quota) / 1e5),
            memory_bytes: bytes,
            memory_limit_bytes: bytes,
            nodes: (0..4)
                .map(|id| NumaNode {
                    id,
                    cpus: sets[id as usize].clone(),
                    memory_bytes: bytes,
                    distances: vec![10, 20, 20, 20],
                })
                .collect(),
            l3_domains: sets
                .iter()
                .map(|cpus| CacheDomain { cpus: cpus.clone(), bytes })
                .collect(),
            cores: sets.iter().map(|cpus| Core { package: 1, cpus: cpus.clone() }).collect(),
            nvlinks: pairs
                .clone()
                .map(|gpus| NvLink { gpus, links, version: Some(3) })
                .collect(),
            told_paths: pairs
                .map(|(a, b)| ToldPath { devices: (format!("gpu{a}"), format!("gpu{b}")), path })
                .collect(),
            notes: names,
            online_cpus: online,
            nics,
            rdma,
            gpus,
            storage,
        }
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        for format in Format::ALL {
            let _ = parse(&text, Some(format));
        }
        let _ = parse(&text, None);
    }

    #[test]
    fn any_words_of_a_table_are_read_or_refused(words in vec(select(&PARTS[..]), 0..60)) {
        let _ = parse(&words.join("\t"), Some(Format::NvidiaSmi));
        let _ = parse(&format!("GPU0\tGPU1\n{}", words.concat()), Some(Format::NvidiaSmi));
    }

    /// A table that is read after a change is still one of as many GPUs as its header has
    #[test]
    fn mutated_tables_are_read_or_refused(text in mutated(TABLE)) {
        if let Ok(machine) = parse(&text, Some(Format::NvidiaSmi)) {
            prop_assert!(machine.gpus.len() <= 9);
            prop_assert_eq!(machine.check(), Ok(()));
        }
    }

    #[test]
    fn mutated_lists_of_instances_are_read_or_refused(text in mutated(MIG)) {
        let _ = parse(&text, Some(Format::NvidiaSmi));
    }

    #[test]
    fn mutated_xml_is_read_or_refused(text in mutated(XML)) {
        if let Ok(machine) = parse(&text, Some(Format::HwlocXml)) {
            prop_assert_eq!(machine.check(), Ok(()));
        }
    }

    #[test]
    fn a_machine_is_what_its_json_says(machine in machines()) {
        prop_assert_eq!(machine.check(), Ok(()));
        let json = serde_json::to_string(&machine).expect("plain data");
        prop_assert_eq!(parse(&json, None).expect("a machine"), machine);
    }

    #[test]
    fn mutated_json_is_read_or_refused(
        machine in machines(),
        at in any::<Index>(),
        part in select(&PARTS[..]),
    ) {
        let mut json: Vec<char> = serde_json::to_string(&machine).expect("plain data").chars().collect();
        let at = at.index(json.len());
        json.splice(at..=at, part.chars());
        let json: String = json.into_iter().collect();
        let _ = parse(&json, Some(Format::Json));
    }
}

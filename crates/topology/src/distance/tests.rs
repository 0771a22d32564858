use super::*;
use crate::model::{
    CacheDomain, Core, Gpu, NicKind, NumaNode, NvLink, Place, RdmaDevice, ToldPath,
};

/// `0/1/2` stands for a path of PCI addresses
fn place(path: &str, node: Option<u32>) -> Place {
    Place {
        pci_path: path
            .split('/')
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect(),
        node,
        ..Place::default()
    }
}

fn gpu(index: u32, place: Place) -> Gpu {
    Gpu {
        index,
        place,
        ..Gpu::default()
    }
}

fn cpus(text: &str) -> crate::CpuSet {
    text.parse().expect(text)
}

/// Two nodes; on node 0 a tree of switches, on node 1 one GPU
fn machine() -> Machine {
    Machine {
        name: "box".to_owned(),
        online_cpus: cpus("0-15"),
        nodes: vec![
            NumaNode {
                id: 0,
                cpus: cpus("0-7"),
                ..NumaNode::default()
            },
            NumaNode {
                id: 1,
                cpus: cpus("8-15"),
                ..NumaNode::default()
            },
        ],
        l3_domains: ["0-3", "4-7", "8-15"]
            .map(|text| CacheDomain {
                cpus: cpus(text),
                bytes: None,
            })
            .to_vec(),
        cores: (0..8)
            .map(|core| Core {
                package: core / 4,
                cpus: [2 * core, 2 * core + 1].into_iter().collect(),
            })
            .collect(),
        gpus: vec![
            gpu(0, place("bridge0/port/up/down0/gpu0", Some(0))),
            gpu(1, place("bridge0/port/up/down1/gpu1", Some(0))),
            gpu(2, place("bridge0/port/up/down2/up2/down20/gpu2", Some(0))),
            gpu(3, place("bridge0/other/gpu3", Some(0))),
            gpu(4, place("bridge1/port/gpu4", Some(0))),
            gpu(5, place("bridge2/port/gpu5", Some(1))),
        ],
        nics: vec![
            Nic {
                name: "ib0".to_owned(),
                kind: NicKind::Infiniband,
                bits_per_s: Some(40_000_000_000),
                rdma: Some("mlx5_0".to_owned()),
                place: place("bridge0/port/up/down3/nic", Some(0)),
                ..Nic::default()
            },
            Nic {
                name: "docker0".to_owned(),
                kind: NicKind::Virtual,
                ..Nic::default()
            },
        ],
        rdma: vec![RdmaDevice {
            name: "mlx5_0".to_owned(),
            place: place("bridge0/port/up/down3/nic", Some(0)),
            ..RdmaDevice::default()
        }],
        ..Machine::default()
    }
}

fn class(machine: &Machine, one: &str, other: &str) -> Class {
    let find = |text| Device::find(machine, text).expect(text);
    let there = distance(machine, &find(one), &find(other)).expect("both are there");
    let back = distance(machine, &find(other), &find(one)).expect("both are there");
    assert_eq!(there, back, "{one} {other}");
    assert!(there.bandwidth_bytes_per_s > 0.0 && there.latency_s > 0.0);
    there.class
}

#[test]
fn pci_paths_tell_switches_and_host_bridges() {
    let machine = machine();
    for (one, other, expected) in [
        ("gpu0", "gpu0", Class::Same),
        ("gpu0", "gpu1", Class::Pix),
        ("gpu0", "gpu2", Class::Pxb),
        ("gpu0", "gpu3", Class::Phb),
        ("gpu0", "gpu4", Class::Node),
        ("gpu0", "gpu5", Class::Sys),
        ("gpu1", "ib0", Class::Pix),
        ("gpu5", "mlx5_0", Class::Sys),
        ("ib0", "mlx5_0", Class::Same),
    ] {
        assert_eq!(class(&machine, one, other), expected, "{one} {other}");
    }
}

#[test]
fn cpus_share_cores_caches_and_nodes() {
    let machine = machine();
    for (one, other, expected) in [
        ("cpu0", "cpu0", Class::Same),
        ("cpu0", "cpu1", Class::Core),
        ("cpu0", "cpu2", Class::L3),
        ("cpu0", "cpu4", Class::NumaNode),
        ("cpu0", "cpu8", Class::Sys),
        ("cpu0", "node0", Class::NumaNode),
        ("cpu0", "gpu0", Class::NumaNode),
        ("cpu9", "gpu0", Class::Sys),
        ("node0", "node1", Class::Sys),
        ("node1", "gpu5", Class::NumaNode),
    ] {
        assert_eq!(class(&machine, one, other), expected, "{one} {other}");
    }
}

#[test]
fn nvlink_wins_over_pci_and_a_told_path_over_a_derived_one() {
    let mut machine = machine();
    machine.nvlinks.push(NvLink {
        gpus: (0, 5),
        links: 4,
        version: Some(2),
    });
    machine.told_paths.push(ToldPath {
        devices: ("mlx5_0".to_owned(), "gpu1".to_owned()),
        path: PciPath::Pxb,
    });
    assert_eq!(class(&machine, "gpu5", "gpu0"), Class::NvLink { links: 4 });
    // Told for the RDMA device, asked for the interface
    assert_eq!(class(&machine, "gpu1", "ib0"), Class::Pxb);
    let nvlink = distance(&machine, &Device::Gpu(0), &Device::Gpu(5)).expect("both are there");
    assert!((nvlink.bandwidth_bytes_per_s - 80e9).abs() < 1.0);
}

#[test]
fn where_nothing_is_known_devices_are_far() {
    let mut machine = machine();
    machine.gpus[0].place = Place::default();
    assert_eq!(class(&machine, "gpu0", "gpu1"), Class::Sys);
    machine.nodes.truncate(1);
    assert_eq!(class(&machine, "gpu0", "gpu5"), Class::Node);
}

#[test]
fn an_interface_is_no_faster_than_itself() {
    let machine = machine();
    let nic = Device::Nic("ib0".to_owned());
    let path = distance(&machine, &Device::Gpu(0), &nic).expect("both are there");
    assert!((path.bandwidth_bytes_per_s - 5e9).abs() < 1.0);
    let network = distance_between_hosts(&machine.nics[0], &machine.nics[1]);
    assert_eq!(network.class, Class::Network);
    assert!(
        (network.bandwidth_bytes_per_s - 100e6).abs() < 1.0,
        "Dask's guess"
    );
}

#[test]
fn nearer_classes_are_faster() {
    let machine = machine();
    let distance =
        |other| distance(&machine, &Device::Gpu(0), &Device::Gpu(other)).expect("both are there");
    for (near, far) in [(1, 2), (2, 3), (3, 4), (4, 5)] {
        let (near, far) = (distance(near), distance(far));
        assert!(near.class.rank() < far.class.rank());
        assert!(near.bandwidth_bytes_per_s >= far.bandwidth_bytes_per_s);
        assert!(near.latency_s <= far.latency_s);
    }
}

#[test]
fn devices_that_are_not_there_are_named() {
    let machine = machine();
    for text in ["gpu9", "cpu16", "node2", "eth7", "gpu", ""] {
        let error = Device::find(&machine, text).expect_err(text).to_string();
        assert!(error.contains(&format!("{text:?}")), "{error}");
        assert!(error.contains("\"box\""), "{error}");
    }
    let absent = Device::Nic("eth7".to_owned());
    assert!(distance(&machine, &Device::Gpu(0), &absent).is_err());
}

#[test]
fn an_rdma_device_stands_for_its_interface_in_the_list_of_all() {
    let all: Vec<String> = Device::all(&machine())
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        all,
        ["gpu0", "gpu1", "gpu2", "gpu3", "gpu4", "gpu5", "mlx5_0"]
    );
}

//! Ways by others on recorded machines

use std::path::Path;

use backhaul_topology::distance::{Device, distance};
use backhaul_topology::route::{Reach, Transfer, direct, reach_seconds, route, spread};
use backhaul_topology::{Machine, read};

const GB: f64 = 1e9;

fn fixture(name: &str) -> Machine {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let text = std::fs::read_to_string(folder.join(name)).expect("there is a fixture");
    read::parse(&text, None).expect("the fixture is a machine")
}

/// Every machine that was recorded, by the name of its file
fn fixtures() -> Vec<(String, Machine)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let files = std::fs::read_dir(folder).expect("there is a folder");
    let names = files.map(|file| file.expect("it can be read").file_name());
    let mut names: Vec<_> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.ends_with(".json"))
        .collect();
    names.sort();
    assert!(names.len() >= 10, "{names:?}");
    names
        .into_iter()
        .map(|name| (name.clone(), fixture(&name)))
        .collect()
}

fn gpu(index: u32) -> Device {
    Device::Gpu(index)
}

#[test]
fn gpus_of_a_dgx_1_that_have_no_nvlink_reach_each_other_by_one_that_has() {
    for kind in ["dgx-1.nvidia-smi.json", "dgx-1.hwloc.json"] {
        let machine = fixture(kind);
        let straight = distance(&machine, &gpu(0), &gpu(5)).expect("both are there");
        assert!((straight.bandwidth_bytes_per_s / GB - 6.0).abs() < 0.1);
        let found = route(&machine, &gpu(0), &gpu(5)).expect("both are there");
        let by = &found.devices[1];
        assert!([gpu(1), gpu(4)].contains(by), "{found:?}");
        assert_eq!((found.hops(), found.devices.len()), (2, 3));
        let bandwidth = found.bandwidth_bytes_per_s / GB;
        assert!((18.0..=25.0).contains(&bandwidth), "{kind}: {bandwidth}");
        assert!(found.latency_s > straight.latency_s / 2.0);
    }
}

#[test]
fn gpus_that_have_an_nvlink_take_it_unless_a_relay_has_more() {
    let machine = fixture("dgx-1.nvidia-smi.json");
    let found = route(&machine, &gpu(0), &gpu(3)).expect("both are there");
    assert_eq!(found.hops(), 1);
    // One link directly, and two each way by GPU 3 or 4: the wider way wins.
    let wider = route(&machine, &gpu(0), &gpu(2)).expect("both are there");
    assert_eq!(wider.devices, [gpu(0), gpu(3), gpu(2)]);
}

#[test]
fn where_a_switch_joins_all_gpus_nothing_is_relayed() {
    let machine = fixture("dgx-a100.nvidia-smi.json");
    for (one, other) in pairs(&machine) {
        let found = route(&machine, &gpu(one), &gpu(other)).expect("both are there");
        assert_eq!(found.hops(), 1, "{one} to {other}");
    }
}

#[test]
fn a_route_is_never_slower_than_the_direct_path() {
    for (name, machine) in fixtures() {
        let mut devices = Device::all(&machine);
        devices.extend(machine.nodes.iter().map(|node| Device::Node(node.id)));
        for one in &devices {
            for other in &devices {
                let found = route(&machine, one, other).expect("both are there");
                let straight = distance(&machine, one, other).expect("both are there");
                assert!(
                    found.bandwidth_bytes_per_s >= straight.bandwidth_bytes_per_s,
                    "{name}: {one} to {other}"
                );
                assert_eq!(found.devices.first(), Some(one));
                assert_eq!(found.devices.last(), Some(other));
                if found.hops() == 1 {
                    assert_eq!(found.seconds(0), straight.latency_s);
                }
            }
        }
    }
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let machine = fixture("laptop.tree.json");
    let error = route(&machine, &gpu(0), &gpu(7)).expect_err("it has no GPU");
    assert!(error.to_string().contains("\"gpu0\""), "{error}");
    assert!(reach_seconds(&machine, &gpu(7), Reach::Host, 1).is_err());
    let transfer = Transfer {
        from: 0,
        to: 9,
        bytes: 1,
    };
    let machine = fixture("dgx-1.hwloc.json");
    let error = spread(&machine, &[transfer]).expect_err("it has eight GPUs");
    let text = "transfer 0 is from or to GPU 9, which the machine does not have";
    assert_eq!(error.to_string(), text);
}

#[test]
fn the_same_device_is_nearer_than_the_host_than_a_process_than_the_network() {
    let levels = [Reach::Device, Reach::Host, Reach::Process, Reach::Network];
    for (name, machine) in fixtures() {
        let gpus = machine.gpus.iter().map(|gpu| Device::Gpu(gpu.index));
        let nodes = machine.nodes.iter().map(|node| Device::Node(node.id));
        let cpu = machine.online_cpus.iter().next().map(Device::Cpu);
        let devices: Vec<_> = gpus.chain(nodes).chain(cpu).collect();
        assert!(!devices.is_empty(), "{name}");
        for device in devices {
            for bytes in [0, 1, 4096, 1 << 20, 1 << 30] {
                let seconds = levels.map(|reach| {
                    reach_seconds(&machine, &device, reach, bytes).expect("it is there")
                });
                assert!(
                    seconds.is_sorted_by(|a, b| a < b),
                    "{name}: {device}: {seconds:?}"
                );
            }
        }
    }
}

#[test]
fn another_gpu_of_the_process_is_as_far_as_its_host_is_and_nearer_than_another_process() {
    for (name, machine) in fixtures() {
        for (one, other) in pairs(&machine) {
            let bytes = 1 << 26;
            let seconds = route(&machine, &gpu(one), &gpu(other))
                .expect("both are there")
                .seconds(bytes);
            let reach = |reach| reach_seconds(&machine, &gpu(one), reach, bytes).expect("it is");
            assert!(reach(Reach::Device) < seconds, "{name}: {one} to {other}");
            assert!(seconds < reach(Reach::Process), "{name}: {one} to {other}");
        }
    }
}

#[test]
fn all_to_all_on_a_dgx_1_is_ten_times_as_fast_with_relays() {
    for kind in ["dgx-1.nvidia-smi.json", "dgx-1.hwloc.json"] {
        let machine = fixture(kind);
        let transfers: Vec<_> = pairs(&machine)
            .into_iter()
            .map(|(from, to)| Transfer {
                from,
                to,
                bytes: 1_000_000_000,
            })
            .collect();
        assert_eq!(transfers.len(), 56);
        let straight = direct(&machine, &transfers).expect("all are there");
        let relayed = spread(&machine, &transfers).expect("all are there");
        // Twelve pairs share the link between the sockets, in each direction.
        assert!(
            (straight.seconds - 2.0).abs() < 0.1,
            "{kind}: {}",
            straight.seconds
        );
        assert!(
            straight.seconds >= 10.0 * relayed.seconds,
            "{kind}: {} and {}",
            straight.seconds,
            relayed.seconds
        );
        for (number, transfer) in transfers.iter().enumerate() {
            let shares = relayed
                .shares
                .iter()
                .filter(|share| share.transfer == number);
            let bytes: u64 = shares.map(|share| share.bytes).sum();
            assert_eq!(bytes, transfer.bytes, "{kind}: nothing is lost");
        }
    }
}

fn pairs(machine: &Machine) -> Vec<(u32, u32)> {
    let gpus: Vec<_> = machine.gpus.iter().map(|gpu| gpu.index).collect();
    let others = |one: u32| gpus.iter().map(move |&other| (one, other));
    let all = gpus.iter().flat_map(|&one| others(one));
    all.filter(|(one, other)| one != other).collect()
}

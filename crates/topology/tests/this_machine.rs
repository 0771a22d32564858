//! The machine that runs the tests, against `lscpu`, `lstopo` and a recording of it

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use backhaul_topology::CpuSet;
use backhaul_topology::model::{Machine, NicKind};
use backhaul_topology::read::{DiscoverOptions, discover, parse};
use support::Unpacked;

fn here() -> Machine {
    discover(&DiscoverOptions::default()).expect("tests run on Linux")
}

/// Output of a program; `None`, with a word on why, if it is not installed
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            assert!(output.status.success(), "{program}: {output:?}");
            Some(String::from_utf8(output.stdout).expect("text"))
        }
        Err(error) => {
            eprintln!("not compared with {program}: {error}");
            None
        }
    }
}

#[test]
fn the_machine_fits_together_and_is_what_its_json_says() {
    let machine = here();
    assert_eq!(machine.check(), Ok(()));
    assert!(!machine.allowed_cpus.is_empty());
    let json = serde_json::to_string(&machine).expect("plain data");
    assert_eq!(parse(&json, None).expect("a machine"), machine);
}

#[test]
fn the_affinity_of_the_thread_narrows_what_is_allowed() {
    let first = here().allowed_cpus.iter().next().expect("a CPU");
    let narrowed = std::thread::spawn(move || {
        let mut mask = rustix::thread::CpuSet::new();
        mask.set(first as usize);
        rustix::thread::sched_setaffinity(None, &mask).expect("a CPU that is allowed");
        here()
    });
    let narrowed = narrowed.join().expect("no panic");
    assert_eq!(narrowed.allowed_cpus, CpuSet::from_iter([first]));
    assert_eq!(narrowed.online_cpus, here().online_cpus);
}

#[test]
fn cpus_are_those_of_lscpu() {
    let Some(text) = output("lscpu", &["--online", "--parse=CPU,CORE,SOCKET,NODE"]) else {
        return;
    };
    let machine = here();
    let rows: Vec<Vec<u32>> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            line.split(',')
                .map(|cell| cell.parse().unwrap_or(0))
                .collect()
        })
        .collect();
    let cpus: CpuSet = rows.iter().map(|row| row[0]).collect();
    assert_eq!(machine.online_cpus, cpus);
    let cores: BTreeSet<u32> = rows.iter().map(|row| row[1]).collect();
    assert_eq!(machine.cores.len(), cores.len());
    let sockets: BTreeSet<u32> = rows.iter().map(|row| row[2]).collect();
    let packages: BTreeSet<u32> = machine.cores.iter().map(|core| core.package).collect();
    assert_eq!(packages.len(), sockets.len());
    for node in &machine.nodes {
        let of_node = rows.iter().filter(|row| row[3] == node.id);
        let cpus: CpuSet = of_node.map(|row| row[0]).collect();
        assert_eq!(node.cpus, cpus, "node {}", node.id);
    }
}

#[test]
fn caches_memory_and_devices_are_those_of_lstopo() {
    // All of the machine, not what is allowed; devices that hwloc takes for unimportant, too
    let arguments = ["--of", "xml", "--disallowed", "--whole-io"];
    let Some(text) = output("lstopo-no-graphics", &arguments) else {
        return;
    };
    let (machine, other) = (here(), parse(&text, None).expect("XML of hwloc"));
    assert_eq!(machine.online_cpus, other.online_cpus);
    assert_eq!(machine.allowed_cpus, other.allowed_cpus);
    assert_eq!(machine.cores, other.cores);
    assert_eq!(machine.l3_domains, other.l3_domains);
    // A kernel without NUMA is one node to hwloc
    if !machine.nodes.is_empty() {
        assert_eq!(machine.allowed_nodes, other.allowed_nodes);
        for (node, other) in machine.nodes.iter().zip(&other.nodes) {
            assert_eq!((node.id, &node.cpus), (other.id, &other.cpus));
            assert_eq!(node.memory_bytes, other.memory_bytes);
        }
    }
    for nic in machine
        .nics
        .iter()
        .filter(|nic| nic.place.pci_path.len() > 1)
    {
        let other = other.nics.iter().find(|other| other.name == nic.name);
        let other = other.expect(&nic.name);
        assert_eq!(nic.place.pci_path, other.place.pci_path, "{}", nic.name);
    }
    for disk in machine
        .storage
        .iter()
        .filter(|disk| disk.place.pci_path.len() > 1)
    {
        let other = other.storage.iter().find(|other| other.name == disk.name);
        let other = other.expect(&disk.name);
        assert_eq!(disk.place.pci_path, other.place.pci_path, "{}", disk.name);
    }
}

#[test]
fn a_recording_is_read_as_the_machine_itself() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/record-tree.sh");
    let script = script.to_str().expect("a path");
    let read = |root: &Path| {
        let mut machine = discover(&DiscoverOptions {
            root: Some(root.to_owned()),
            ..DiscoverOptions::default()
        })
        .expect("a system");
        machine.nics.retain(|nic| nic.kind != NicKind::Virtual);
        machine
    };
    let recorded_and_itself = || {
        let tree = Unpacked::new("recording", &output("sh", &[script]).expect("a shell"));
        (read(tree.root()), read(Path::new("/")))
    };
    // Other programs make and end interfaces meanwhile: one that ends while it is recorded is in
    // the kernel's table and no more in /sys. A difference that is ours is there each time.
    let attempts = std::iter::repeat_with(recorded_and_itself).take(10);
    let mut shown = attempts.inspect(|(recorded, itself)| {
        if recorded != itself {
            eprintln!("recorded: {recorded:?}\nitself:   {itself:?}");
        }
    });
    assert!(shown.any(|(recorded, itself)| recorded == itself));
}

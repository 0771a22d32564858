//! Every fixture gives the machine that is written beside it
//!
//! `BACKHAUL_RENEW_FIXTURES=1 cargo test -p backhaul-topology --test golden` writes the machines
//! anew; read the difference before it is committed. `fixtures/README.md` says where each fixture
//! is from.

mod support;

use std::path::{Path, PathBuf};

use backhaul_topology::{Machine, read};
use support::Unpacked;

#[test]
fn texts_of_nvidia_smi_give_their_machines() {
    check_all(".nvidia-smi.txt", |text| {
        read::nvidia_smi::parse(text).expect("the fixture is a table")
    });
}

#[test]
fn recorded_trees_give_their_machines() {
    check_all(".tree.txt", |text| {
        let tree = Unpacked::new("golden", text);
        let told = read::sysfs::Told::default();
        read::sysfs::read(tree.root(), &told).expect("the fixture is a system")
    });
}

#[test]
fn xml_of_hwloc_gives_its_machines() {
    check_all(".hwloc.xml", |text| {
        read::parse(text, None).expect("the fixture is a topology")
    });
}

#[test]
fn readers_agree_on_one_machine() {
    for name in ["dgx-1", "dgx-a100"] {
        let machine = |kind: &str| {
            let path = folder().join(format!("{name}.{kind}"));
            let text = std::fs::read_to_string(path).expect("there is a fixture");
            read::parse(&text, None).expect("the fixture is a machine")
        };
        let (table, xml) = (machine("nvidia-smi.txt"), machine("hwloc.xml"));
        assert_eq!(table.nvlinks.len(), xml.nvlinks.len(), "{name}");
        for (told, read) in table.nvlinks.iter().zip(&xml.nvlinks) {
            assert_eq!((told.gpus, told.links), (read.gpus, read.links), "{name}");
        }
        for (told, read) in table.gpus.iter().zip(&xml.gpus) {
            assert_eq!(told.place.cpus, read.place.cpus, "{name}: {}", told.index);
        }
        for device in &table.rdma {
            let known = xml.rdma.iter().any(|other| other.name == device.name);
            assert!(known, "{name}: {}", device.name);
        }
    }
}

/// Reads every fixture whose name ends in `suffix`, and compares with the `.json` beside it
fn check_all(suffix: &str, parse: impl Fn(&str) -> Machine) {
    let mut count = 0;
    for path in fixtures() {
        let name = path.file_name().expect("a file").to_string_lossy();
        let Some(stem) = name.strip_suffix(suffix) else {
            continue;
        };
        let text = std::fs::read_to_string(&path).expect("fixtures can be read");
        let kind = suffix.trim_start_matches('.').split('.').next();
        let snapshot = format!("{stem}.{}.json", kind.expect("a kind"));
        check(&parse(&text), &path.with_file_name(snapshot));
        count += 1;
    }
    assert!(count > 0, "no fixture ends in {suffix}");
}

fn check(machine: &Machine, snapshot: &Path) {
    let mut json = serde_json::to_string_pretty(machine).expect("machines are plain data");
    json.push('\n');
    if std::env::var_os("BACKHAUL_RENEW_FIXTURES").is_some() {
        std::fs::write(snapshot, &json).expect("snapshots can be written");
    }
    let expected = std::fs::read_to_string(snapshot).unwrap_or_default();
    let difference = json
        .lines()
        .zip(expected.lines().chain(std::iter::repeat("")))
        .position(|(line, expected)| line != expected);
    assert!(
        json == expected,
        "{} differs from line {:?} on; it is now:\n{json}",
        snapshot.display(),
        difference.map(|line| line + 1),
    );
    let back = read::parse(&expected, None).expect("a snapshot is a machine");
    assert_eq!(&back, machine);
}

fn fixtures() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder())
        .expect("there are fixtures")
        .map(|entry| entry.expect("fixtures can be listed").path())
        .collect();
    paths.sort();
    paths
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

//! The reader of `/sys` and `/proc` on small trees: limits, what is hidden, what makes no sense

mod support;

use backhaul_topology::CpuSet;
use backhaul_topology::model::{Machine, NicKind};
use backhaul_topology::read::sysfs::{NoSystem, Told, read};
use support::Unpacked;

/// Eight CPUs on two nodes, without limits
const HOST: &str = "\
sys/devices/system/cpu/online: 0-7
sys/devices/system/node/online: 0-1
sys/devices/system/node/node0/cpulist: 0-3
sys/devices/system/node/node0/distance: 10 21
sys/devices/system/node/node1/cpulist: 4-7
sys/devices/system/node/node1/distance: 21 10
proc/meminfo: MemTotal: 8388608 kB
";

/// Where version 2 is mounted, and the group of the process
const GROUP_TWO: &str = "\
proc/self/mountinfo: 31 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw
proc/self/cgroup: 0::/a/b
";

fn machine(name: &str, parts: &[&str]) -> Machine {
    let tree = Unpacked::new(name, &parts.concat());
    read(tree.root(), &Told::default()).expect("a system")
}

#[test]
fn a_host_without_limits_allows_everything() {
    let machine = machine("unlimited", &[HOST]);
    assert_eq!(machine.allowed_cpus.to_string(), "0-7");
    assert_eq!(machine.allowed_nodes, [0, 1]);
    assert_eq!(machine.cpu_quota, None);
    assert_eq!(machine.memory_limit_bytes, None);
    assert_eq!(machine.nodes[1].distances, [21, 10]);
}

#[test]
fn offline_cpus_are_in_no_set() {
    let offline = "\
sys/devices/system/cpu/online: 0,2-3
sys/devices/system/cpu/cpu0/topology/core_cpus_list: 0-1
sys/devices/system/cpu/cpu2/topology/core_cpus_list: 2-3
sys/devices/system/cpu/cpu0/cache/index3/level: 3
sys/devices/system/cpu/cpu0/cache/index3/type: Unified
sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list: 0-3
sys/devices/system/node/node0/cpulist: 0-3
proc/self/status: Cpus_allowed_list: 0-3
";
    let machine = machine("offline", &[offline]);
    assert_eq!(machine.online_cpus.to_string(), "0,2-3");
    assert_eq!(machine.allowed_cpus.to_string(), "0,2-3");
    assert_eq!(machine.nodes[0].cpus.to_string(), "0,2-3");
    assert_eq!(machine.l3_domains[0].cpus.to_string(), "0,2-3");
    let cores: Vec<String> = machine.cores.iter().map(|c| c.cpus.to_string()).collect();
    assert_eq!(cores, ["0", "2-3"]);
}

#[test]
fn the_narrowest_of_mask_status_and_cpuset_counts() {
    let limits = "\
proc/self/status: Cpus_allowed_list: 0-5
proc/self/status: Mems_allowed_list: 0-31
sys/fs/cgroup/a/b/cpuset.cpus.effective: 2-7
sys/fs/cgroup/a/b/cpuset.mems.effective: 1
";
    let tree = Unpacked::new("narrowest", &[HOST, GROUP_TWO, limits].concat());
    let told = Told {
        affinity: Some("1-4".parse().expect("a list")),
        ..Told::default()
    };
    let machine = read(tree.root(), &told).expect("a system");
    assert_eq!(machine.allowed_cpus.to_string(), "2-4");
    assert_eq!(machine.allowed_nodes, [1]);
}

#[test]
fn a_bound_that_leaves_no_cpu_is_noted_and_left_out() {
    let tree = Unpacked::new("contradiction", HOST);
    let told = Told {
        affinity: Some(CpuSet::from_iter([64])),
        ..Told::default()
    };
    let machine = read(tree.root(), &told).expect("a system");
    assert_eq!(machine.allowed_cpus.to_string(), "0-7");
    assert!(machine.notes.iter().any(|note| note.contains("64")));
}

#[test]
fn the_least_of_all_groups_above_counts() {
    let limits = "\
sys/fs/cgroup/a/cpu.max: 150000 100000
sys/fs/cgroup/a/b/cpu.max: 400000 100000
sys/fs/cgroup/a/memory.max: 1073741824
sys/fs/cgroup/a/b/memory.max: max
sys/fs/cgroup/a/cpuset.cpus.effective: 0-3
sys/fs/cgroup/cpuset.cpus.effective: 0-7
sys/fs/cgroup/a/b/cgroup.procs: 1
";
    let machine = machine("above", &[HOST, GROUP_TWO, limits]);
    assert_eq!(machine.cpu_quota, Some(1.5));
    assert_eq!(machine.memory_limit_bytes, Some(1 << 30));
    // The nearest group that has the controller
    assert_eq!(machine.allowed_cpus.to_string(), "0-3");
}

#[test]
fn groups_of_version_one_have_a_hierarchy_each() {
    let limits = "\
proc/self/mountinfo: 33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
proc/self/mountinfo: 34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
proc/self/mountinfo: 35 31 0:32 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
proc/self/mountinfo: 36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
proc/self/cgroup: 4:memory:/docker/1
proc/self/cgroup: 3:cpuacct,cpu:/docker/1
proc/self/cgroup: 2:cpuset:/docker/1
proc/self/cgroup: 0::/elsewhere
sys/fs/cgroup/cpuset/docker/1/cpuset.cpus: 6-7
sys/fs/cgroup/cpuset/docker/1/cpuset.mems: 1
sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us: 50000
sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us: 100000
sys/fs/cgroup/memory/memory.limit_in_bytes: 268435456
";
    let machine = machine("version-one", &[HOST, limits]);
    assert_eq!(machine.allowed_cpus.to_string(), "6-7");
    assert_eq!(machine.allowed_nodes, [1]);
    assert_eq!(machine.cpu_quota, Some(0.5));
    assert_eq!(machine.memory_limit_bytes, Some(1 << 28));
}

#[test]
fn a_group_outside_the_namespace_is_the_mount_point() {
    let limits = "\
proc/self/mountinfo: 31 24 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
proc/self/cgroup: 0::/../../other
sys/fs/cgroup/cpu.max: 200000 100000
other/cpu.max: 1 100000
";
    assert_eq!(machine("outside", &[HOST, limits]).cpu_quota, Some(2.0));
}

#[test]
fn groups_that_are_hidden_are_noted() {
    let machine = machine("unmounted", &[HOST, "proc/self/cgroup: 0::/a\n"]);
    let noted = |note: &String| note.contains("control groups are hidden");
    assert!(machine.notes.iter().any(noted), "{:?}", machine.notes);
}

#[test]
fn a_limit_above_the_memory_of_the_host_is_none() {
    let limits = "sys/fs/cgroup/a/b/memory.max: 17179869184\n";
    let machine = machine("above-host", &[HOST, GROUP_TWO, limits]);
    assert_eq!(machine.memory_limit_bytes, None);
}

#[test]
fn what_makes_no_sense_is_noted_with_its_file() {
    let nonsense = "\
sys/devices/system/cpu/cpu0/cache/index3/level: three
sys/devices/system/cpu/cpu0/topology/core_cpus_list: 3-1
sys/class/net/eth0/type: ether
sys/fs/cgroup/a/b/cpu.max: some more
sys/fs/cgroup/a/b/cpuset.cpus.effective: all
";
    let nodes = HOST.replace("10 21", "10 near");
    let machine = machine("nonsense", &[&nodes, GROUP_TWO, nonsense]);
    for file in [
        "index3/level",
        "core_cpus_list",
        "eth0/type",
        "node0/distance",
        "cpuset.cpus",
    ] {
        assert!(
            machine.notes.iter().any(|note| note.contains(file)),
            "{file}: {:?}",
            machine.notes
        );
    }
    assert_eq!(machine.cpu_quota, None);
    assert_eq!(machine.allowed_cpus.to_string(), "0-7");
}

/// Content of `/proc/net/dev` for two interfaces
const NAMESPACE: &str = "\
proc/net/dev: Inter-|   Receive                                                |  Transmit
proc/net/dev:  face |bytes    packets errs drop fifo frame compressed multicast|bytes
proc/net/dev:     lo:       0       0    0
proc/net/dev:   eth0:    1034      11    0
";

#[test]
fn interfaces_that_sys_hides_are_those_of_the_namespace() {
    let machine = machine(
        "hidden-nics",
        &[HOST, NAMESPACE, "sys/class/net/eth0/type: 1\n"],
    );
    let nics: Vec<_> = machine
        .nics
        .iter()
        .map(|n| (n.name.as_str(), n.kind))
        .collect();
    assert_eq!(nics, [("eth0", NicKind::Virtual), ("lo", NicKind::Other)]);
    let noted = |note: &String| note.ends_with("what these interfaces are: lo");
    assert!(machine.notes.iter().any(noted), "{:?}", machine.notes);
}

#[test]
fn nothing_is_taken_from_the_sys_of_another_namespace() {
    let sys = "sys/class/net/eth0/type: 1\nsys/class/net/eth1/type: 1\n";
    let machine = machine("foreign-nics", &[HOST, NAMESPACE, sys]);
    let nics: Vec<_> = machine
        .nics
        .iter()
        .map(|n| (n.name.as_str(), n.kind))
        .collect();
    assert_eq!(nics, [("eth0", NicKind::Other), ("lo", NicKind::Other)]);
    let noted = |note: &String| note.contains("another network namespace");
    assert!(machine.notes.iter().any(noted), "{:?}", machine.notes);
}

#[test]
fn an_interface_on_others_is_where_they_are() {
    let card = |bus: &str, node: u32| {
        let pci = format!("pci0000:{bus}0/0000:{bus}0:01.0/0000:{bus}1:00.0");
        let name = format!("eth{bus}");
        format!(
            "sys/class/net/{name} -> ../../devices/{pci}/net/{name}
sys/devices/{pci}/net/{name}/type: 1
sys/devices/{pci}/numa_node: {node}
sys/devices/{pci}/local_cpulist: 0-3
"
        )
    };
    let upper = "\
sys/class/net/vlan -> ../../devices/virtual/net/vlan
sys/devices/virtual/net/vlan/type: 1
sys/devices/virtual/net/vlan/lower_eth1 -> ../eth1
sys/class/net/bond0 -> ../../devices/virtual/net/bond0
sys/devices/virtual/net/bond0/type: 1
sys/devices/virtual/net/bond0/lower_eth1 -> ../eth1
sys/devices/virtual/net/bond0/lower_eth2 -> ../eth2
";
    let machine = machine("upper", &[HOST, &card("1", 0), &card("2", 0), upper]);
    let nic = |name: &str| {
        let nic = machine.nics.iter().find(|nic| nic.name == name);
        nic.expect(name)
    };
    assert_eq!(nic("vlan").place, nic("eth1").place);
    assert_eq!(nic("bond0").kind, NicKind::Virtual);
    assert!(nic("bond0").place.pci_path.is_empty());
    assert_eq!(nic("bond0").place.node, Some(0));
    assert_eq!(nic("bond0").place.cpus.to_string(), "0-3");
}

#[test]
fn a_task_of_slurm_under_version_two_has_its_step() {
    let limits = "\
proc/self/mountinfo: 31 24 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw
proc/self/cgroup: 0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0
proc/self/status: Cpus_allowed_list: 4-7
sys/fs/cgroup/cpuset.cpus.effective: 0-7
sys/fs/cgroup/system.slice/slurmstepd.scope/job_42/cpuset.cpus.effective: 4-7
sys/fs/cgroup/system.slice/slurmstepd.scope/job_42/cpuset.mems.effective: 1
sys/fs/cgroup/system.slice/slurmstepd.scope/job_42/memory.max: 2147483648
sys/fs/cgroup/system.slice/slurmstepd.scope/job_42/step_0/user/task_0/memory.max: max
";
    let machine = machine("slurm-two", &[HOST, limits]);
    assert_eq!(machine.allowed_cpus.to_string(), "4-7");
    assert_eq!(machine.allowed_nodes, [1]);
    assert_eq!(machine.memory_limit_bytes, Some(2 << 30));
}

#[test]
fn gpus_are_found_on_the_bus_in_the_order_of_their_addresses() {
    let gpus = "\
sys/bus/pci/devices/0000:0f:00.0 -> ../../../devices/pci0000:00/0000:00:01.0/0000:0f:00.0
sys/devices/pci0000:00/0000:00:01.0/0000:0f:00.0/vendor: 0x10de
sys/devices/pci0000:00/0000:00:01.0/0000:0f:00.0/class: 0x030200
sys/devices/pci0000:00/0000:00:01.0/0000:0f:00.0/device: 0x20b0
sys/devices/pci0000:00/0000:00:01.0/0000:0f:00.0/numa_node: 1
sys/bus/pci/devices/0000:07:00.0 -> ../../../devices/pci0000:00/0000:00:02.0/0000:07:00.0
sys/devices/pci0000:00/0000:00:02.0/0000:07:00.0/vendor: 0x10de
sys/devices/pci0000:00/0000:00:02.0/0000:07:00.0/class: 0x030000
sys/bus/pci/devices/0000:08:00.0 -> ../../../devices/pci0000:00/0000:00:02.0/0000:08:00.0
sys/devices/pci0000:00/0000:00:02.0/0000:08:00.0/vendor: 0x10de
sys/devices/pci0000:00/0000:00:02.0/0000:08:00.0/class: 0x068000
sys/bus/pci/devices/0000:09:00.0 -> ../../../devices/pci0000:00/0000:00:02.0/0000:09:00.0
sys/devices/pci0000:00/0000:00:02.0/0000:09:00.0/vendor: 0x1002
sys/devices/pci0000:00/0000:00:02.0/0000:09:00.0/class: 0x030000
";
    let driver = "\
proc/driver/nvidia/gpus/0000:07:00.0/information: Model: \t\t Tesla V100-SXM2-32GB
proc/driver/nvidia/gpus/0000:07:00.0/information: GPU UUID: \t GPU-00ff
proc/driver/nvidia/gpus/0000:0f:00.0/information: GPU UUID: \t GPU-????????
";
    let without = machine("gpus", &[HOST, gpus]);
    let addresses: Vec<_> = without
        .gpus
        .iter()
        .map(|gpu| gpu.place.pci_path.last().map(String::as_str))
        .collect();
    assert_eq!(addresses, [Some("0000:07:00.0"), Some("0000:0f:00.0")]);
    assert_eq!(without.gpus[1].place.node, Some(1));
    assert_eq!(without.gpus[1].name, "NVIDIA device 0x20b0");
    assert!(without.notes.iter().any(|note| note.contains("no driver")));

    let with = machine("gpus-driver", &[HOST, gpus, driver]);
    assert_eq!(with.gpus[0].uuid.as_deref(), Some("GPU-00ff"));
    assert_eq!(with.gpus[0].name, "Tesla V100-SXM2-32GB");
    assert_eq!(with.gpus[1].uuid, None);
    assert!(!with.notes.iter().any(|note| note.contains("no driver")));
}

#[test]
fn memory_of_gpus_is_no_node_of_the_host() {
    let nodes = "\
sys/devices/system/cpu/online: 0-1
sys/devices/system/node/online: 0,8,255
sys/devices/system/node/node0/cpulist: 0
sys/devices/system/node/node0/distance: 10 40 80
sys/devices/system/node/node8/cpulist: 1
sys/devices/system/node/node8/distance: 40 10 80
sys/devices/system/node/node255/distance: 80 80 10
proc/driver/nvidia/gpus/0004:04:00.0/numa_status: Node:      255
proc/driver/nvidia/gpus/0004:04:00.0/numa_status: Status:    online
";
    let machine = machine("gpu-nodes", &[nodes]);
    assert_eq!(machine.allowed_nodes, [0, 8]);
    assert_eq!(machine.nodes[1].distances, [40, 10]);
    assert!(machine.notes.iter().any(|note| note.contains("255")));
}

#[test]
fn nodes_without_memory_give_none() {
    let empty = "sys/devices/system/node/node1/meminfo: Node 1 MemTotal: 0 kB\n";
    assert_eq!(machine("empty-node", &[HOST, empty]).allowed_nodes, [0]);
}

#[test]
fn a_cpu_is_in_one_node() {
    let nodes = HOST.replace("node1/cpulist: 4-7", "node1/cpulist: 3-7");
    let machine = machine("two-nodes", &[&nodes]);
    assert_eq!(machine.nodes[1].cpus.to_string(), "4-7");
    assert!(machine.notes.iter().any(|note| note.starts_with("CPUs 3 ")));
}

#[test]
fn a_list_that_ends_with_zero_is_read() {
    let tree = Unpacked::new(
        "zero",
        &HOST.replace("cpu/online: 0-7", "cpu/online: 0-7\u{0}"),
    );
    let machine = read(tree.root(), &Told::default()).expect("a system");
    assert_eq!(machine.online_cpus.to_string(), "0-7");
}

#[test]
fn cores_and_caches_that_overlap_are_taken_apart() {
    let overlap = "\
sys/devices/system/cpu/cpu0/topology/core_cpus_list: 0-1
sys/devices/system/cpu/cpu2/topology/core_cpus_list: 0-1
sys/devices/system/cpu/cpu0/cache/index3/level: 3
sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list: 0-1
sys/devices/system/cpu/cpu2/cache/index3/level: 3
sys/devices/system/cpu/cpu2/cache/index3/shared_cpu_list: 0-1
";
    let machine = machine("overlap", &[HOST, overlap]);
    let domains: Vec<String> = machine
        .l3_domains
        .iter()
        .map(|d| d.cpus.to_string())
        .collect();
    assert_eq!(domains, ["0-1", "2"]);
    let cores: usize = machine.cores.iter().map(|core| core.cpus.len()).sum();
    assert_eq!(cores, 8);
}

#[test]
fn a_folder_that_is_no_root_is_refused_by_name() {
    let tree = Unpacked::new("empty", "etc/hostname: nowhere\n");
    let error = read(tree.root(), &Told::default()).expect_err("no CPUs there");
    assert_eq!(
        error,
        NoSystem {
            root: tree.root().to_owned()
        }
    );
    assert!(error.to_string().contains("empty-"));
}

#[test]
fn cpus_are_those_of_cpuinfo_where_sys_is_hidden() {
    let info = "\
proc/cpuinfo: processor : 0
proc/cpuinfo: model name : Some CPU
proc/cpuinfo: processor : 1
";
    let machine = machine("cpuinfo", &[info]);
    assert_eq!(machine.online_cpus.to_string(), "0-1");
    assert_eq!(machine.cpu_model, "Some CPU");
    assert_eq!(machine.cores.len(), 2);
}

//! Texts about machines: JSON, XML of hwloc, tables of nvidia-smi, files of sysfs, plans.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use backhaul_topology::plan::{Policy, plan};
use backhaul_topology::read::{DiscoverOptions, Format, discover, parse};
use backhaul_topology::{CpuSet, Machine, Options, Plan, locality, render};

use crate::Input;

/// The result is a machine whose parts fit together, that is written and read again the same
pub(super) fn machine_text(data: &[u8]) {
    let Some((first, text)) = data.split_first() else {
        return;
    };
    let Ok(text) = str::from_utf8(text) else {
        return;
    };
    let format = match first % 4 {
        0 => None,
        1 => Some(Format::Json),
        2 => Some(Format::HwlocXml),
        _ => Some(Format::NvidiaSmi),
    };
    match parse(text, format) {
        Ok(machine) => use_machine(&machine, *first),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A plan for a machine keeps to the machine's description, whatever that is
fn use_machine(machine: &Machine, choice: u8) {
    machine.check().expect("it is checked when it is read");
    let json = serde_json::to_string(machine).expect("plain data");
    assert_eq!(parse(&json, Some(Format::Json)).as_ref().unwrap(), machine);
    if machine.online_cpus.len() > CPUS_MAX || machine.gpus.len() > GPUS_MAX {
        return;
    }
    let policies = [Policy::PerGpu, Policy::PerNuma, Policy::PerL3, Policy::N];
    let options = Options {
        policy: policies[usize::from(choice >> 2) % policies.len()],
        ..Options::default()
    };
    let plan = plan(machine, &options).ok();
    if let Some(plan) = &plan {
        for worker in &plan.workers {
            assert!(worker.threads > 0 && !worker.cpus.is_empty());
            assert!(worker.cpus.is_subset(&machine.online_cpus));
        }
        check_plan(plan);
        assert!(!render::workers(plan).is_empty());
    }
    assert!(!render::tree(machine).is_empty());
    let _ = render::matrix(machine);
    let _ = locality::localities(machine);
    assert!(render::svg(machine, plan.as_ref()).contains("</svg>"));
}

/// A plan as it may lie in a file, and a list of CPUs
pub(super) fn plan_text(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    if let Ok(plan) = serde_json::from_str::<Plan>(text) {
        check_plan(&plan);
        assert!(!render::workers(&plan).is_empty());
    }
    if let Ok(cpus) = text.parse::<CpuSet>() {
        assert_eq!(cpus.to_string().parse(), Ok(cpus));
    }
}

fn check_plan(plan: &Plan) {
    let json = serde_json::to_string(plan).expect("plain data");
    let again: Plan = serde_json::from_str(&json).expect("as it was written");
    assert_eq!(again, *plan);
}

/// Files of sysfs and procfs that say anything
pub(super) fn sysfs(data: &[u8]) {
    let mut input = Input::new(data);
    let root = root();
    let mut written: Vec<PathBuf> = Vec::new();
    while !input.is_empty() {
        let path = root.join(input.choose(FILES));
        if fs::write(&path, input.piece()).is_ok() {
            written.push(path);
        }
    }
    let options = DiscoverOptions {
        root: Some(root.to_owned()),
        nvml: false,
    };
    if let Ok(machine) = discover(&options) {
        use_machine(&machine, 0);
    }
    for path in written {
        fs::remove_file(path).ok();
    }
}

/// A folder of this process with the folders of a small machine, and no files
fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        let root = parent.join(format!("backhaul-fuzz-{}", std::process::id()));
        for file in FILES {
            let folder = root
                .join(file)
                .parent()
                .expect("a file in a folder")
                .to_owned();
            fs::create_dir_all(folder).expect("a folder for files");
        }
        root
    })
}

/// Files that the reader looks at
const FILES: &[&str] = &[
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/cpu0/topology/core_cpus_list",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id",
    "sys/devices/system/cpu/cpu0/cache/index3/level",
    "sys/devices/system/cpu/cpu0/cache/index3/type",
    "sys/devices/system/cpu/cpu0/cache/index3/size",
    "sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list",
    "sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_map",
    "sys/devices/system/cpu/cpu1/topology/core_cpus_list",
    "sys/devices/system/node/online",
    "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/node/node0/cpumap",
    "sys/devices/system/node/node0/distance",
    "sys/devices/system/node/node0/meminfo",
    "sys/devices/system/node/node1/cpulist",
    "sys/devices/system/node/node1/distance",
    "sys/class/net/eth0/speed",
    "sys/class/net/eth0/operstate",
    "sys/class/net/eth0/type",
    "sys/class/net/eth0/carrier",
    "sys/class/infiniband/mlx5_0/ports/1/rate",
    "sys/class/infiniband/mlx5_0/ports/1/state",
    "sys/class/infiniband/mlx5_0/ports/1/link_layer",
    "sys/block/nvme0n1/size",
    "sys/block/nvme0n1/queue/rotational",
    "sys/bus/pci/devices/0000:01:00.0/class",
    "sys/bus/pci/devices/0000:01:00.0/vendor",
    "sys/bus/pci/devices/0000:01:00.0/numa_node",
    "sys/bus/pci/devices/0000:01:00.0/local_cpulist",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/memory.max",
    "sys/fs/cgroup/cpuset.cpus.effective",
    "sys/fs/cgroup/cpuset.mems.effective",
    "sys/fs/cgroup/cgroup.controllers",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us",
    "sys/fs/cgroup/memory/memory.limit_in_bytes",
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/self/status",
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "proc/net/dev",
    "proc/driver/nvidia/gpus/0000:01:00.0/information",
];

/// Larger machines take long to draw
const CPUS_MAX: usize = 512;
const GPUS_MAX: usize = 32;

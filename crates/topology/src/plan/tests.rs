use super::*;
use crate::model::{CacheDomain, Core, Gpu, GpuInstance, Nic, NicKind, NumaNode, NvLink, Place};
use crate::read::nvidia_smi;

fn cpus(text: &str) -> CpuSet {
    text.parse().expect(text)
}

/// Two sockets of 8 CPUs in 4 cores, 2 caches each; 64 GiB each
fn two_sockets() -> Machine {
    Machine {
        name: "two".to_owned(),
        online_cpus: cpus("0-15"),
        allowed_cpus: cpus("0-15"),
        allowed_nodes: vec![0, 1],
        memory_bytes: Some(128 * GIB),
        nodes: [(0, "0-7"), (1, "8-15")]
            .map(|(id, text)| NumaNode {
                id,
                cpus: cpus(text),
                memory_bytes: Some(64 * GIB),
                ..NumaNode::default()
            })
            .to_vec(),
        l3_domains: ["0-3", "4-7", "8-11", "12-15"]
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
        ..Machine::default()
    }
}

/// `two_sockets` with a GPU and an interface on each socket
fn with_devices() -> Machine {
    let place = |node: u32| Place {
        node: Some(node),
        ..Place::default()
    };
    let nic = |name: &str, node| Nic {
        name: name.to_owned(),
        kind: NicKind::Infiniband,
        up: true,
        place: place(node),
        ..Nic::default()
    };
    Machine {
        gpus: (0..2)
            .map(|index| Gpu {
                index,
                uuid: Some(format!("GPU-{index}{index}aa")),
                place: place(index),
                ..Gpu::default()
            })
            .collect(),
        nics: vec![nic("ib1", 1), nic("ib0", 0)],
        ..two_sockets()
    }
}

fn dgx1() -> Machine {
    nvidia_smi::parse(include_str!("../../tests/fixtures/dgx-1.nvidia-smi.txt")).expect("a table")
}

fn options(policy: Policy) -> Options {
    Options {
        policy,
        ..Options::default()
    }
}

fn of_n(n: u32) -> Options {
    Options {
        n: Some(n),
        ..options(Policy::N)
    }
}

fn cpus_of(plan: &Plan) -> Vec<String> {
    plan.workers
        .iter()
        .map(|worker| worker.cpus.to_string())
        .collect()
}

#[test]
fn the_plan_of_a_dgx1_is_that_of_the_function_written_by_hand() {
    let machine = dgx1();
    let asked = Options {
        interface: Some("ib".to_owned()),
        ..options(Policy::PerGpu)
    };
    let plan = plan(&machine, &asked).expect("there are GPUs");
    assert_eq!(plan.workers.len(), 8);
    for (index, worker) in (0_u32..).zip(&plan.workers) {
        let near = if index < 4 {
            "0-19,40-59"
        } else {
            "20-39,60-79"
        };
        assert_eq!(worker.cpus.to_string(), near, "{index}");
        assert_eq!(worker.nic, Some(format!("ib{}", index / 2)));
        assert_eq!(worker.rdma, Some(format!("mlx5_{}", index / 2)));
        assert_eq!(worker.threads, 1);
        assert_eq!(worker.gpus.len(), 8);
        assert_eq!(worker.gpus[0].index, index);
    }
    // NVLink ×2 to 3 and 4, ×1 to 1 and 2, then those without
    let order: Vec<u32> = plan.workers[0].gpus.iter().map(|gpu| gpu.index).collect();
    assert_eq!(order, [0, 3, 4, 1, 2, 5, 6, 7]);
    assert!(
        plan.warnings[0].contains("ib0 is mlx5_0"),
        "{:?}",
        plan.warnings
    );
}

#[test]
fn without_an_interface_asked_for_dask_chooses_it() {
    let plan = plan(&dgx1(), &options(Policy::PerGpu)).expect("there are GPUs");
    assert!(plan.workers.iter().all(|worker| worker.nic.is_none()));
    assert_eq!(plan.workers[7].rdma.as_deref(), Some("mlx5_3"));
    assert!(
        plan.explanation
            .iter()
            .any(|line| line.contains("Dask chooses"))
    );
}

#[test]
fn gpus_are_named_by_number_uuid_or_the_beginning_of_it() {
    let machine = with_devices();
    let order = |gpus: &[&str]| {
        let asked = Options {
            gpus: Some(gpus.iter().map(|&gpu| gpu.to_owned()).collect()),
            ..options(Policy::PerGpu)
        };
        plan(&machine, &asked).map(|plan| {
            plan.workers
                .iter()
                .map(|worker| worker.gpus.iter().map(|gpu| gpu.index).collect())
                .collect::<Vec<Vec<u32>>>()
        })
    };
    assert_eq!(order(&["1"]), Ok(vec![vec![1]]));
    assert_eq!(order(&["GPU-11aa", "0"]), Ok(vec![vec![1, 0], vec![0, 1]]));
    assert_eq!(order(&["gpu-0"]), Ok(vec![vec![0]]));
    let message = |gpus| order(gpus).expect_err("impossible").to_string();
    assert!(message(&["7"]).contains("\"7\"; there are 0 (GPU-00aa), 1"));
    assert!(message(&["GPU-"]).contains("no GPU \"GPU-\""));
    assert!(message(&["1", "GPU-11"]).contains("twice"));
    assert!(message(&[]).contains("gpus is empty"));
}

#[test]
fn each_instance_of_a_gpu_has_a_worker_that_sees_it_alone() {
    let mut machine = with_devices();
    machine.gpus[1].instances = ["MIG-a1", "MIG-a2"]
        .map(|uuid| GpuInstance {
            uuid: uuid.to_owned(),
            ..GpuInstance::default()
        })
        .to_vec();
    let all = plan(&machine, &options(Policy::PerGpu)).expect("there are GPUs");
    let seen: Vec<(String, Vec<Option<String>>)> = all
        .workers
        .iter()
        .map(|worker| {
            let uuids = worker.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
            (worker.name.clone(), uuids)
        })
        .collect();
    let one = |uuid: &str| vec![Some(uuid.to_owned())];
    assert_eq!(
        seen,
        [
            ("gpu0".to_owned(), one("GPU-00aa")),
            ("gpu1-0".to_owned(), one("MIG-a1")),
            ("gpu1-1".to_owned(), one("MIG-a2")),
        ]
    );
    let asked = |gpu: &str| {
        let asked = Options {
            gpus: Some(vec![gpu.to_owned()]),
            ..options(Policy::PerGpu)
        };
        plan(&machine, &asked).map(|plan| plan.workers.len())
    };
    assert_eq!(asked("MIG-a2"), Ok(1));
    assert_eq!(asked("1"), Ok(2));
    assert!(matches!(
        asked("MIG-a"),
        Err(PlanError::AmbiguousGpu { .. })
    ));
}

#[test]
fn nvlink_comes_before_nearness() {
    let mut machine = with_devices();
    machine.gpus.push(Gpu {
        index: 2,
        place: machine.gpus[0].place.clone(),
        ..Gpu::default()
    });
    let order = |machine: &Machine| -> Vec<u32> {
        let plan = plan(machine, &options(Policy::PerGpu)).expect("there are GPUs");
        plan.workers[0].gpus.iter().map(|gpu| gpu.index).collect()
    };
    assert_eq!(order(&machine), [0, 2, 1]);
    machine.nvlinks.push(NvLink {
        gpus: (0, 1),
        links: 1,
        version: None,
    });
    assert_eq!(order(&machine), [0, 1, 2]);
}

#[test]
fn gpus_of_a_node_share_its_cpus_or_divide_them() {
    let mut machine = with_devices();
    machine.gpus[1].place.node = Some(0);
    let shared = plan(&machine, &options(Policy::PerGpu)).expect("there are GPUs");
    assert_eq!(cpus_of(&shared), ["0-7", "0-7"]);
    assert!(
        shared
            .explanation
            .iter()
            .any(|line| line == "gpu0, gpu1 share CPUs 0-7.")
    );
    let asked = Options {
        exclusive_cpus: true,
        ..options(Policy::PerGpu)
    };
    let divided = plan(&machine, &asked).expect("there are GPUs");
    assert_eq!(cpus_of(&divided), ["0-3", "4-7"]);
    machine.allowed_cpus = cpus("3");
    let error = plan(&machine, &asked).expect_err("two workers on one CPU");
    assert_eq!(
        error.to_string(),
        "2 workers need as many CPUs, and 1 may be used (3): ask for at most 1"
    );
}

#[test]
fn a_gpu_whose_cpus_are_forbidden_has_others_and_a_warning() {
    let mut machine = with_devices();
    machine.allowed_cpus = cpus("0-3");
    machine.allowed_nodes = vec![0];
    let plan = plan(&machine, &options(Policy::PerGpu)).expect("there are GPUs");
    assert_eq!(cpus_of(&plan), ["0-3", "0-3"]);
    assert_eq!(plan.workers[1].memory_nodes, [0]);
    assert!(
        plan.warnings[0].contains("CPUs 8-15 are near GPU 1 and may not be used"),
        "{:?}",
        plan.warnings
    );
}

#[test]
fn each_node_has_a_worker_with_its_cpus_and_memory() {
    let plan = plan(&two_sockets(), &options(Policy::PerNuma)).expect("there are nodes");
    assert_eq!(cpus_of(&plan), ["0-7", "8-15"]);
    let worker = &plan.workers[1];
    assert_eq!(worker.name, "numa1");
    assert_eq!(worker.memory_nodes, [1]);
    assert_eq!(worker.threads, 8);
    assert_eq!(worker.memory_bytes, 64 * GIB);
    assert_eq!(worker.lanes, ["shm", "tcp"]);
    assert_eq!(worker.why, "8 CPUs on NUMA node 1.");
}

#[test]
fn affinities_of_gpus_stand_for_nodes_that_are_not_told() {
    let plan = plan(&dgx1(), &options(Policy::PerNuma)).expect("there are CPUs");
    assert_eq!(cpus_of(&plan), ["0-19,40-59", "20-39,60-79"]);
    assert!(
        plan.workers
            .iter()
            .all(|worker| worker.memory_nodes.is_empty())
    );
    assert!(plan.warnings[0].contains("stand for them"));
}

#[test]
fn each_cache_has_a_worker() {
    let plan_of = |machine: &Machine| plan(machine, &options(Policy::PerL3));
    let plan = plan_of(&two_sockets()).expect("there are caches");
    assert_eq!(cpus_of(&plan), ["0-3", "4-7", "8-11", "12-15"]);
    assert_eq!(plan.workers[2].name, "l3-2");
    assert_eq!(plan.workers[2].memory_nodes, [1]);
    assert_eq!(plan.workers[2].memory_bytes, 32 * GIB);
    let mut machine = two_sockets();
    machine.l3_domains.clear();
    assert!(matches!(plan_of(&machine), Err(PlanError::NoL3 { .. })));
}

#[test]
fn workers_by_number_keep_to_nodes_caches_and_cores() {
    let machine = two_sockets();
    let cpus_for = |n| cpus_of(&plan(&machine, &of_n(n)).expect("enough CPUs"));
    assert_eq!(cpus_for(1), ["0-15"]);
    assert_eq!(cpus_for(2), ["0-7", "8-15"]);
    assert_eq!(cpus_for(3), ["0-3", "4-7", "8-15"]);
    assert_eq!(cpus_for(4), ["0-3", "4-7", "8-11", "12-15"]);
    assert_eq!(cpus_for(8)[1], "2-3");
    assert_eq!(cpus_for(16)[1], "1");
    let one = plan(&machine, &of_n(1)).expect("enough CPUs");
    assert!(one.workers[0].memory_nodes.is_empty());
    let error = plan(&machine, &of_n(17)).expect_err("too many").to_string();
    assert!(
        error.contains("17 workers") && error.contains("at most 16"),
        "{error}"
    );
}

#[test]
fn as_many_cpus_as_can_be_told_are_planned_for_at_once() {
    let machine = Machine {
        online_cpus: (0..crate::cpuset::CPUS_MAX).collect(),
        ..Machine::default()
    };
    let before = std::time::Instant::now();
    let plan = plan(&machine, &of_n(1)).expect("enough CPUs");
    assert_eq!(plan.workers[0].threads, crate::cpuset::CPUS_MAX);
    // A union for each CPU takes a minute.
    assert!(before.elapsed().as_secs() < 15, "{:?}", before.elapsed());
}

#[test]
fn cpus_that_are_off_or_forbidden_are_refused_by_number() {
    let mut machine = two_sockets();
    machine.online_cpus = cpus("0-13");
    machine.allowed_cpus = cpus("0-11");
    let refused = |text: &str| {
        let asked = Options {
            cpus: Some(cpus(text)),
            ..options(Policy::PerNuma)
        };
        plan(&machine, &asked).expect_err(text).to_string()
    };
    assert!(refused("13-15").contains("CPUs 14-15 do not exist or are offline"));
    assert!(refused("11-12").contains("CPUs 12 may not be used"));
    assert!(refused("").contains("cpus is empty"));
    let asked = Options {
        cpus: Some(cpus("6-9")),
        ..options(Policy::PerNuma)
    };
    let plan = plan(&machine, &asked).expect("these are allowed");
    assert_eq!(cpus_of(&plan), ["6-7", "8-9"]);
    // 2 of the 12 that are allowed
    assert_eq!(plan.workers[0].memory_bytes, 128 * GIB / 6);
}

#[test]
fn limits_of_the_cgroup_bound_threads_and_memory() {
    let mut machine = two_sockets();
    machine.cpu_quota = Some(3.5);
    machine.memory_limit_bytes = Some(2 * GIB);
    let plan_of = |options: &Options| plan(&machine, options).expect("enough CPUs");
    let plan = plan_of(&options(Policy::PerNuma));
    assert_eq!(plan.workers[0].threads, 1);
    assert_eq!(plan.workers[0].memory_bytes, GIB);
    assert!(plan.warnings.is_empty());
    let uneven = Options {
        cpus: Some(cpus("0-7,8")),
        ..options(Policy::PerNuma)
    };
    // 3.1 and 0.4, and the second has one all the same
    let threads: Vec<u32> = plan_of(&uneven).workers.iter().map(|w| w.threads).collect();
    assert_eq!(threads, [2, 1]);
    let plan = plan_of(&of_n(4));
    assert!(plan.workers.iter().all(|worker| worker.threads == 1));
    assert!(plan.warnings[0].contains("the time of 3.5 CPUs, and there are 4 workers"));
}

#[test]
fn memory_is_as_asked_for() {
    let machine = two_sockets();
    let plan_of = |options: Options| plan(&machine, &options).expect("enough CPUs");
    let half = plan_of(Options {
        memory_fraction: Some(0.5),
        ..options(Policy::PerNuma)
    });
    assert_eq!(half.workers[0].memory_bytes, 32 * GIB);
    let none = plan_of(Options {
        memory_limit_bytes: Some(0),
        ..options(Policy::PerNuma)
    });
    assert_eq!(none.workers[0].memory_bytes, 0);
    assert!(none.warnings.is_empty());
    let much = plan_of(Options {
        memory_limit_bytes: Some(100 * GIB),
        ..options(Policy::PerNuma)
    });
    assert_eq!(much.workers[0].memory_bytes, 100 * GIB);
    assert!(much.warnings[0].contains("want 200 GiB, and there are 128 GiB"));
}

#[test]
fn memory_of_a_forbidden_node_is_not_bound() {
    let mut machine = two_sockets();
    machine.allowed_nodes = vec![0];
    let plan = plan(&machine, &options(Policy::PerNuma)).expect("there are nodes");
    assert_eq!(plan.workers[0].memory_nodes, [0]);
    assert!(plan.workers[1].memory_nodes.is_empty());
    let memory: Vec<u64> = plan
        .workers
        .iter()
        .map(|worker| worker.memory_bytes)
        .collect();
    assert_eq!(memory, [32 * GIB; 2], "both live in node 0");
    assert!(plan.warnings[0].contains("worker numa1 may have no memory of NUMA node 1"));
}

#[test]
fn interfaces_are_the_nearest_of_those_asked_for() {
    let machine = with_devices();
    let nics = |asked: Options| {
        plan(&machine, &asked).map(|plan| {
            plan.workers
                .into_iter()
                .map(|worker| worker.nic.unwrap_or_default())
                .collect::<Vec<_>>()
        })
    };
    let with = |interface: &str, policy| Options {
        interface: Some(interface.to_owned()),
        ..options(policy)
    };
    let named = |names: &[&str]| Options {
        nics: Some(names.iter().map(|&name| name.to_owned()).collect()),
        ..options(Policy::PerNuma)
    };
    assert_eq!(
        nics(with("ib", Policy::PerGpu)),
        Ok(vec!["ib0".to_owned(), "ib1".to_owned()])
    );
    assert_eq!(
        nics(with("ib", Policy::PerNuma)),
        Ok(vec!["ib0".to_owned(), "ib1".to_owned()])
    );
    assert_eq!(
        nics(with("ib1", Policy::PerNuma)),
        Ok(vec!["ib1".to_owned(); 2])
    );
    assert_eq!(nics(named(&["ib0"])), Ok(vec!["ib0".to_owned(); 2]));
    let message = |options| nics(options).expect_err("impossible").to_string();
    assert_eq!(
        message(with("bond", Policy::PerNuma)),
        "no interface begins with \"bond\"; there are ib1, ib0"
    );
    assert_eq!(
        message(named(&["eth9"])),
        "no interface \"eth9\"; there are ib1, ib0"
    );
    assert!(message(named(&[])).contains("nics is empty"));
}

#[test]
fn interfaces_as_near_as_each_other_are_spread() {
    let mut machine = with_devices();
    for nic in &mut machine.nics {
        nic.place = Place::default();
    }
    let asked = Options {
        interface: Some("ib".to_owned()),
        ..of_n(4)
    };
    let plan_of = |machine: &Machine| plan(machine, &asked).expect("there are interfaces");
    let nics: Vec<Option<String>> = plan_of(&machine)
        .workers
        .into_iter()
        .map(|worker| worker.nic)
        .collect();
    let expected = ["ib0", "ib1", "ib0", "ib1"].map(|name| Some(name.to_owned()));
    assert_eq!(nics, expected);
    machine.nics[0].up = false;
    let plan = plan_of(&machine);
    assert!(
        plan.workers
            .iter()
            .all(|worker| worker.nic.as_deref() == Some("ib0"))
    );
    assert_eq!(
        plan.warnings,
        ["interfaces down or without a carrier: ib1; no worker has them"]
    );
}

#[test]
fn interfaces_that_nothing_can_listen_on_are_never_given_out_silently() {
    let mut machine = with_devices();
    let named = |names: &[&str]| Options {
        nics: Some(names.iter().map(|&name| name.to_owned()).collect()),
        ..of_n(2)
    };
    let nics = |machine: &Machine, asked: &Options| {
        let plan = plan(machine, asked).expect("they are there");
        let nics: Vec<String> = plan.workers.iter().filter_map(|w| w.nic.clone()).collect();
        (nics, plan.warnings)
    };
    machine.nics[0].up = false;
    let (given, warnings) = nics(&machine, &named(&["ib0", "ib1"]));
    assert_eq!(given, ["ib0", "ib0"]);
    assert!(
        warnings[0].contains("carrier: ib1; no worker"),
        "{warnings:?}"
    );
    let (given, warnings) = nics(&machine, &named(&["ib1"]));
    assert_eq!(given, ["ib1", "ib1"], "nothing else was asked for");
    assert!(warnings[0].contains("ib1; workers that"), "{warnings:?}");
    machine.nics[0].up = true;
    machine.nics[1].addresses = vec!["10.0.0.1".parse().expect("an address")];
    let (given, warnings) = nics(&machine, &named(&["ib0", "ib1"]));
    assert_eq!(given, ["ib0", "ib0"]);
    assert_eq!(
        warnings,
        ["interfaces without an IP address: ib1; no worker has them"]
    );
}

#[test]
fn what_no_worker_has_is_said() {
    let mut machine = with_devices();
    machine.gpus.truncate(1);
    let plan = plan(&machine, &options(Policy::PerGpu)).expect("there is a GPU");
    let said = |words: &str| plan.explanation.iter().any(|line| line.contains(words));
    assert!(said("CPUs 8-15 are not the nearest"), "{plan:?}");
    assert!(said("Memory of NUMA node 1 is for no worker."), "{plan:?}");
}

#[test]
fn options_that_contradict_are_refused() {
    let machine = with_devices();
    let refused = |options: Options| plan(&machine, &options).expect_err("contradictory");
    assert_eq!(refused(options(Policy::N)), PlanError::CountMissing);
    assert_eq!(refused(of_n(0)), PlanError::NoWorkers);
    assert!(matches!(
        refused(Options {
            n: Some(2),
            ..options(Policy::PerGpu)
        }),
        PlanError::CountWithPolicy { .. }
    ));
    assert!(matches!(
        refused(Options {
            gpus: Some(vec![]),
            ..of_n(2)
        }),
        PlanError::GpusWithPolicy { .. }
    ));
    assert_eq!(
        refused(Options {
            threads_per_worker: Some(0),
            ..of_n(2)
        }),
        PlanError::NoThreads
    );
    assert_eq!(
        refused(Options {
            interface: Some(String::new()),
            ..of_n(2)
        }),
        PlanError::EmptyPrefix
    );
    assert_eq!(
        refused(Options {
            memory_fraction: Some(0.5),
            memory_limit_bytes: Some(0),
            ..of_n(2)
        }),
        PlanError::LimitAndFraction
    );
    for fraction in [0.0, -1.0, 1.5, f64::NAN] {
        assert!(matches!(
            refused(Options {
                memory_fraction: Some(fraction),
                ..of_n(2)
            }),
            PlanError::BadFraction { .. }
        ));
    }
    assert!("per-core".parse::<Policy>().is_err());
    let without = plan(&two_sockets(), &options(Policy::PerGpu)).expect_err("no GPUs");
    assert!(
        without.to_string().contains("\"two\" has no GPU"),
        "{without}"
    );
    let empty = plan(&Machine::default(), &options(Policy::PerNuma)).expect_err("no CPUs");
    assert!(matches!(empty, PlanError::NoCpus { .. }));
}

const GIB: u64 = 1 << 30;

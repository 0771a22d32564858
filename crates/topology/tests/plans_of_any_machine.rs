//! Invariants of every plan of every machine

use backhaul_topology::model::{
    CacheDomain, Core, FORMAT, Gpu, Nic, NumaNode, NvLink, Place, RdmaDevice,
};
use backhaul_topology::plan::{Plan, Policy, plan};
use backhaul_topology::{CpuSet, Machine, Options, PlanError, render};
use proptest::prelude::*;

/// How a machine is drawn
#[derive(Clone, Debug)]
struct Shape {
    nodes: u32,
    caches_per_node: u32,
    cores_per_cache: u32,
    threads_per_core: u32,
    gpus: u32,
    nics: u32,
    /// Numbers from which places, links and CPUs that are off or forbidden are drawn
    draws: Vec<u32>,
    memory_gib: u64,
    limit_mib: Option<u64>,
    quota: Option<f64>,
    places_known: bool,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let sizes = (1..5_u32, 1..4_u32, 1..5_u32, 1..3_u32, 0..9_u32, 0..5_u32);
    let limits = (
        proptest::collection::vec(any::<u32>(), 64),
        1..512_u64,
        proptest::option::of(1..1_000_000_u64),
        proptest::option::of(0.1..64.0_f64),
        any::<bool>(),
    );
    (sizes, limits).prop_map(|(sizes, limits)| {
        let (nodes, caches_per_node, cores_per_cache, threads_per_core, gpus, nics) = sizes;
        let (draws, memory_gib, limit_mib, quota, places_known) = limits;
        Shape {
            nodes,
            caches_per_node,
            cores_per_cache,
            threads_per_core,
            gpus,
            nics,
            draws,
            memory_gib,
            limit_mib,
            quota,
            places_known,
        }
    })
}

fn machine(shape: &Shape) -> Machine {
    let mut draws = shape.draws.iter().copied().cycle();
    let mut draw = |below: u32| draws.next().expect("it repeats") % below.max(1);
    let cores_per_node = shape.caches_per_node * shape.cores_per_cache;
    let core_count = cores_per_node * shape.nodes;
    // Threads of a core are numbered apart, as Linux does on x86
    let threads = |cores: std::ops::Range<u32>| -> CpuSet {
        (0..shape.threads_per_core)
            .flat_map(|thread| cores.clone().map(move |core| core + thread * core_count))
            .collect()
    };
    let all = threads(0..core_count);
    let online: CpuSet = all.iter().filter(|_| draw(10) > 0).collect();
    let allowed: CpuSet = online.iter().filter(|_| draw(4) > 0).collect();
    let mut place = |known: bool| Place {
        node: known.then(|| draw(shape.nodes)),
        ..Place::default()
    };
    let gpus: Vec<Gpu> = (0..shape.gpus)
        .map(|index| Gpu {
            index,
            uuid: (index % 2 == 0).then(|| format!("GPU-{index:08}")),
            place: place(shape.places_known),
            ..Gpu::default()
        })
        .collect();
    let nics: Vec<Nic> = (0..shape.nics)
        .map(|number| Nic {
            name: format!("ib{number}"),
            up: number % 3 > 0,
            place: place(shape.places_known),
            ..Nic::default()
        })
        .collect();
    let rdma = (0..shape.nics)
        .map(|number| RdmaDevice {
            name: format!("mlx5_{number}"),
            place: place(true),
            ..RdmaDevice::default()
        })
        .collect();
    let node_bytes = (shape.memory_gib << 30) / u64::from(shape.nodes);
    Machine {
        format: FORMAT,
        name: "any".to_owned(),
        online_cpus: online,
        allowed_cpus: allowed,
        allowed_nodes: (0..shape.nodes).filter(|_| draw(5) > 0).collect(),
        cpu_quota: shape.quota,
        memory_bytes: Some(shape.memory_gib << 30),
        memory_limit_bytes: shape.limit_mib.map(|mib| mib << 20),
        nodes: (0..shape.nodes)
            .map(|id| NumaNode {
                id,
                cpus: threads(id * cores_per_node..(id + 1) * cores_per_node),
                memory_bytes: Some(node_bytes),
                ..NumaNode::default()
            })
            .collect(),
        l3_domains: (0..shape.nodes * shape.caches_per_node)
            .map(|cache| CacheDomain {
                cpus: threads(cache * shape.cores_per_cache..(cache + 1) * shape.cores_per_cache),
                bytes: None,
            })
            .collect(),
        cores: (0..core_count)
            .map(|core| Core {
                package: core / cores_per_node,
                cpus: threads(core..core + 1),
            })
            .collect(),
        nvlinks: (1..shape.gpus)
            .map(|gpu| NvLink {
                gpus: (draw(gpu), gpu),
                links: draw(4),
                version: None,
            })
            .collect(),
        gpus,
        nics,
        rdma,
        ..Machine::default()
    }
}

/// Checks the invariants of a plan
fn check(machine: &Machine, options: &Options, plan: &Plan) {
    assert!(!plan.workers.is_empty());
    let mut used = CpuSet::default();
    let mut names = Vec::new();
    for worker in &plan.workers {
        assert!(!worker.cpus.is_empty(), "{}", worker.name);
        // Sets that are empty say that it is not known
        assert!(machine.allowed_cpus.is_empty() || worker.cpus.is_subset(&machine.allowed_cpus));
        assert!(machine.online_cpus.is_empty() || worker.cpus.is_subset(&machine.online_cpus));
        assert!(worker.threads >= 1);
        if options.policy != Policy::PerGpu || options.exclusive_cpus {
            assert!(used.intersection(&worker.cpus).is_empty(), "{plan:#?}");
        }
        used = used.union(&worker.cpus);
        for node in &worker.memory_nodes {
            assert!(machine.allowed_nodes.is_empty() || machine.allowed_nodes.contains(node));
        }
        assert!(!names.contains(&worker.name));
        names.push(worker.name.clone());
        assert!(worker.why.ends_with('.'));
        assert_eq!(worker.nic.is_some(), options.interface.is_some());
    }
    let limit = machine.memory_limit_bytes.unwrap_or(u64::MAX);
    let memory: u64 = plan.workers.iter().map(|worker| worker.memory_bytes).sum();
    assert!(memory <= limit.min(machine.memory_bytes.expect("it is drawn")));
    for node in &machine.nodes {
        // Workers that are bound to one node alone must fit into it
        let bound = plan
            .workers
            .iter()
            .filter(|worker| worker.memory_nodes == [node.id]);
        let memory: u64 = bound.map(|worker| worker.memory_bytes).sum();
        assert!(memory <= node.memory_bytes.expect("it is drawn"));
    }
    let allowed = machine.nodes.iter().filter(|node| {
        machine.allowed_nodes.is_empty() || machine.allowed_nodes.contains(&node.id)
    });
    let of_nodes: u64 = allowed.filter_map(|node| node.memory_bytes).sum();
    assert!(memory <= of_nodes, "there is no more that may be used");
    if let Some(quota) = machine.cpu_quota
        && options.policy != Policy::PerGpu
    {
        let threads: u32 = plan.workers.iter().map(|worker| worker.threads).sum();
        assert!(f64::from(threads) <= quota.max(plan.workers.len() as f64));
    }
    if options.policy == Policy::PerGpu {
        let own: Vec<u32> = plan
            .workers
            .iter()
            .map(|worker| worker.gpus[0].index)
            .collect();
        let all: Vec<u32> = machine.gpus.iter().map(|gpu| gpu.index).collect();
        assert_eq!(own, all, "every GPU has one worker");
        for worker in &plan.workers {
            let mut order: Vec<u32> = worker.gpus.iter().map(|gpu| gpu.index).collect();
            order.sort_unstable();
            assert_eq!(order, all, "every worker sees every GPU once");
        }
    }
    let svg = render::svg(machine, Some(plan));
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    assert!(render::tree(machine).starts_with("any"));
    let matrix = render::matrix(machine);
    for gpu in &machine.gpus {
        assert!(matrix.contains(&format!("\nGPU{} ", gpu.index)));
    }
    for worker in &plan.workers {
        assert!(render::workers(plan).contains(&format!("\n{}", worker.name)));
    }
    let json = serde_json::to_string(plan).expect("plain data");
    let back: Plan = serde_json::from_str(&json).expect("it was written by us");
    assert_eq!(&back, plan);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_keep_to_what_is_allowed(
        shape in shapes(),
        policy in proptest::sample::select(&Policy::ALL[..]),
        n in 1..40_u32,
        exclusive_cpus: bool,
        interface: bool,
    ) {
        let machine = machine(&shape);
        let options = Options {
            policy,
            n: (policy == Policy::N).then_some(n),
            interface: interface.then(|| "ib".to_owned()),
            exclusive_cpus,
            ..Options::default()
        };
        match plan(&machine, &options) {
            Ok(plan) => {
                check(&machine, &options, &plan);
                if policy == Policy::N {
                    prop_assert_eq!(plan.workers.len(), n as usize);
                    let used: usize = plan.workers.iter().map(|worker| worker.cpus.len()).sum();
                    let allowed = match machine.allowed_cpus.len() {
                        0 => machine.online_cpus.len(),
                        allowed => allowed,
                    };
                    if !machine.online_cpus.is_empty() {
                        prop_assert_eq!(used, allowed, "no CPU is idle");
                    }
                }
            }
            Err(PlanError::NoCpus { .. }) => prop_assert!(machine.online_cpus.is_empty()),
            Err(PlanError::NoGpus { .. }) => prop_assert!(machine.gpus.is_empty()),
            Err(PlanError::NoNicWithPrefix { .. }) => prop_assert!(machine.nics.is_empty()),
            Err(PlanError::TooManyWorkers { workers, cpus }) => {
                prop_assert!(workers > cpus.len());
                prop_assert!(policy == Policy::N || exclusive_cpus);
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }
}

//! The launch plan: which workers a machine should run, and what each of them should use
//!
//! Pure: the same [`Machine`] and [`Options`] give the same [`Plan`], here or on another host. A
//! plan keeps to what the process may use (affinity mask, cgroup), and says in words why it is what
//! it is. A request that is impossible is a [`PlanError`]; one that is possible only in part is a
//! warning in the plan.

mod cpus;
mod errors;
mod gpus;
mod memory;
mod nics;
mod options;
mod threads;
mod words;

use serde::{Deserialize, Serialize};

pub use self::errors::PlanError;
pub(crate) use self::memory::memory_text;
pub use self::options::{Options, Policy};
use crate::cpuset::CpuSet;
use crate::model::Machine;

/// Workers that a machine should run
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The policy that it follows
    pub policy: Policy,
    /// Name of the machine
    pub machine: String,
    /// The workers, in the order in which to start them
    pub workers: Vec<WorkerPlan>,
    /// Decisions and their reasons, for people
    pub explanation: Vec<String>,
    /// Requests that were granted in part, and facts that are not known, for people
    pub warnings: Vec<String>,
}

/// Resources that one worker should use
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerPlan {
    /// Unique on the host: `gpu0`, `numa1`, `l3-2`, `0`
    pub name: String,
    /// CPUs to run on; never empty
    pub cpus: CpuSet,
    /// NUMA nodes to have memory from; empty for no memory policy
    pub memory_nodes: Vec<u32>,
    /// How many tasks to run at once; at least 1
    pub threads: u32,
    /// How much memory to use, in bytes; 0 when not known, or when no limit was asked for
    pub memory_bytes: u64,
    /// Its own GPU first, then the others by nearness; empty without GPUs
    pub gpus: Vec<PlannedGpu>,
    /// Interface for its address; `None` to let Dask choose
    pub nic: Option<String>,
    /// RDMA device
    pub rdma: Option<String>,
    /// Lanes that it has, best first
    pub lanes: Vec<String>,
    /// Why, in one sentence
    pub why: String,
}

/// A GPU of a worker
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedGpu {
    /// NVML's number of the GPU, or of the one that an instance is cut from
    pub index: u32,
    /// UUID of the GPU, or of the instance (MIG)
    pub uuid: Option<String>,
}

/// Plans what a machine should run
///
/// # Errors
///
/// [`PlanError`] if it is impossible; its message has the value and the way out.
pub fn plan(machine: &Machine, options: &Options) -> Result<Plan, PlanError> {
    options.check()?;
    let usable = cpus::usable(machine, options)?;
    let mut notes = Notes::default();
    let mut drafts = match options.policy {
        Policy::PerGpu => gpus::drafts(machine, options, &usable, &mut notes)?,
        Policy::PerNuma => cpus::per_numa(machine, &usable, &mut notes),
        Policy::PerL3 => cpus::per_l3(machine, &usable, &mut notes)?,
        Policy::N => cpus::per_count(machine, &usable, options.count()?)?,
    };
    words::explain_workers(machine, options, &drafts, &mut notes);
    memory::bind(machine, &mut drafts, &mut notes);
    let threads = threads::share(machine, options, &drafts, &mut notes);
    let bytes = memory::share(machine, options, &drafts, &mut notes);
    let network = nics::choose(machine, options, &drafts, &mut notes)?;
    let workers = drafts
        .into_iter()
        .zip(threads.into_iter().zip(bytes))
        .zip(network)
        .map(|((draft, (threads, memory_bytes)), network)| WorkerPlan {
            why: words::why(machine, &draft, &network),
            name: draft.name,
            cpus: draft.cpus,
            memory_nodes: draft.memory_nodes,
            threads,
            memory_bytes,
            gpus: draft.gpus,
            nic: network.nic,
            rdma: network.rdma,
            lanes: LANES.map(str::to_owned).to_vec(),
        })
        .collect();
    Ok(Plan {
        policy: options.policy,
        machine: machine.name.clone(),
        workers,
        explanation: notes.explanation,
        warnings: notes.warnings,
    })
}

/// A worker before threads, memory and network are shared out
#[derive(Debug, Default)]
struct Draft {
    name: String,
    cpus: CpuSet,
    /// NUMA nodes that its CPUs are on
    nodes: Vec<u32>,
    memory_nodes: Vec<u32>,
    gpus: Vec<PlannedGpu>,
}

/// Texts beside the workers
#[derive(Debug, Default)]
struct Notes {
    explanation: Vec<String>,
    warnings: Vec<String>,
}

/// Lanes that Backhaul has between processes, best first
const LANES: [&str; 2] = ["shm", "tcp"];

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;

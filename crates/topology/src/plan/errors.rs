//! Why there is no plan

use thiserror::Error;

use super::Policy;
use crate::cpuset::CpuSet;

/// A plan that is impossible: what was asked for, what there is, and the way out
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum PlanError {
    /// No such policy
    #[error("no policy {policy:?}; there are per-gpu, per-numa, per-l3 and n")]
    UnknownPolicy {
        /// Text that was given
        policy: String,
    },
    /// Policy `n` without a number
    #[error("policy n needs the number of workers: give n (--workers)")]
    CountMissing,
    /// A number of workers where the machine gives it
    #[error(
        "policy {policy} takes its number of workers from the machine: leave n out, or use policy n"
    )]
    CountWithPolicy {
        /// The policy
        policy: Policy,
    },
    /// GPUs named where none are given out
    #[error("policy {policy} gives out no GPUs: leave gpus out, or use policy per-gpu")]
    GpusWithPolicy {
        /// The policy
        policy: Policy,
    },
    /// No workers asked for
    #[error("n is 0: ask for at least 1 worker")]
    NoWorkers,
    /// No threads asked for
    #[error("threads per worker are 0: ask for at least 1")]
    NoThreads,
    /// A part that is none
    #[error("memory fraction is {fraction}: it must be above 0 and at most 1")]
    BadFraction {
        /// Fraction that was given
        fraction: f64,
    },
    /// Interfaces asked for in two ways
    #[error("both an interface prefix and names of interfaces are given: leave one out")]
    InterfaceAndNics,
    /// A prefix that every name begins with
    #[error("the prefix of interfaces is empty: give one such as ib, or leave it out")]
    EmptyPrefix,
    /// Memory asked for in two ways
    #[error("both a memory limit and a memory fraction are given: leave one out")]
    LimitAndFraction,
    /// More workers than CPUs
    #[error("{workers} workers need as many CPUs, and {} may be used ({cpus}): ask for at most {}", .cpus.len(), .cpus.len())]
    TooManyWorkers {
        /// How many were asked for
        workers: usize,
        /// The CPUs that they would share
        cpus: CpuSet,
    },
    /// The machine has no CPU that may be used
    #[error("machine {machine:?} tells no CPU that may be used: record it again, or give cpus")]
    NoCpus {
        /// Its name
        machine: String,
    },
    /// An empty list of CPUs was given
    #[error("cpus is empty: name at least one of {allowed}, or leave it out")]
    NoCpusAsked {
        /// CPUs that may be used
        allowed: CpuSet,
    },
    /// CPUs that the machine does not have, or that are off
    #[error("CPUs {cpus} do not exist or are offline: choose from {online}")]
    CpusOffline {
        /// CPUs in question
        cpus: CpuSet,
        /// CPUs of the machine
        online: CpuSet,
    },
    /// CPUs that the affinity mask or the cgroup forbids
    #[error(
        "CPUs {cpus} may not be used by this process (affinity mask or cgroup): choose from {allowed}"
    )]
    CpusNotAllowed {
        /// CPUs in question
        cpus: CpuSet,
        /// CPUs that may be used
        allowed: CpuSet,
    },
    /// No GPU at all
    #[error("machine {machine:?} has no GPU that is known: use per-numa, per-l3 or n")]
    NoGpus {
        /// Its name
        machine: String,
    },
    /// An empty list of GPUs was given
    #[error("gpus is empty: name at least one of {}, or leave it out", .known.join(", "))]
    NoGpusAsked {
        /// The GPUs there are
        known: Vec<String>,
    },
    /// A GPU that the machine does not have
    #[error("no GPU {gpu:?}; there are {}", .known.join(", "))]
    UnknownGpu {
        /// Text that was given
        gpu: String,
        /// The GPUs there are
        known: Vec<String>,
    },
    /// A shortened UUID that fits several
    #[error("GPU {gpu:?} may be {}: write more of it", .matches.join(" or "))]
    AmbiguousGpu {
        /// Text that was given
        gpu: String,
        /// GPUs that the text fits
        matches: Vec<String>,
    },
    /// A GPU named twice
    #[error("GPU {gpu:?} is named twice: name each one once")]
    GpuTwice {
        /// Text that was given the second time
        gpu: String,
    },
    /// Two GPUs of one number, or of one UUID: no plan could tell them apart
    #[error("machine {machine:?} has two GPUs called {gpu:?}: mend its description")]
    GpusAlike {
        /// Name of the machine
        machine: String,
        /// Name that both have
        gpu: String,
    },
    /// An interface that the machine does not have
    #[error("no interface {nic:?}; there are {}", names(.known))]
    UnknownNic {
        /// Text that was given
        nic: String,
        /// The interfaces there are
        known: Vec<String>,
    },
    /// No interface begins like this
    #[error("no interface begins with {prefix:?}; there are {}", names(.known))]
    NoNicWithPrefix {
        /// Text that was given
        prefix: String,
        /// The interfaces there are
        known: Vec<String>,
    },
    /// An empty list of interfaces was given
    #[error("nics is empty: name at least one of {}, or leave it out", names(.known))]
    NoNicsAsked {
        /// The interfaces there are
        known: Vec<String>,
    },
    /// The machine has no record of CPUs that share a cache
    #[error(
        "machine {machine:?} tells no groups of CPUs that share a last-level cache: use per-numa or n"
    )]
    NoL3 {
        /// Its name
        machine: String,
    },
}

fn names(known: &[String]) -> String {
    if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    }
}

//! Options of a plan

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::PlanError;
use crate::cpuset::CpuSet;

/// Part of the machine that each worker runs for
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Each GPU, or each instance of a GPU that is cut into instances
    PerGpu,
    /// Each NUMA node that has CPUs
    #[default]
    PerNuma,
    /// Each group of CPUs that shares a last-level cache
    PerL3,
    /// As many as asked for
    N,
}

impl Policy {
    /// All of them
    pub const ALL: [Self; 4] = [Self::PerGpu, Self::PerNuma, Self::PerL3, Self::N];

    /// Its name
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PerGpu => "per-gpu",
            Self::PerNuma => "per-numa",
            Self::PerL3 => "per-l3",
            Self::N => "n",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Policy {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| PlanError::UnknownPolicy {
                policy: text.to_owned(),
            })
    }
}

/// Options of a plan
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Part of the machine that each worker runs for
    pub policy: Policy,
    /// How many workers, for [`Policy::N`] alone
    pub n: Option<u32>,
    /// Threads of each worker; `None` for one with a GPU, and for as many as CPUs without
    pub threads_per_worker: Option<u32>,
    /// Memory of each worker, in bytes; 0 for no limit, `None` for a share of the machine's
    pub memory_limit_bytes: Option<u64>,
    /// Part of the machine's memory that the workers share; `None` for all of it
    pub memory_fraction: Option<f64>,
    /// GPUs, by index, UUID or UUID of an instance (MIG), each possibly shortened as
    /// `CUDA_VISIBLE_DEVICES` allows; `None` for all
    pub gpus: Option<Vec<String>>,
    /// Prefix of the interfaces to use, as `ib`
    pub interface: Option<String>,
    /// Names of the interfaces to use
    pub nics: Option<Vec<String>>,
    /// CPUs to keep to; `None` for all that are allowed
    pub cpus: Option<CpuSet>,
    /// True if workers with GPUs of one NUMA node divide its CPUs instead of sharing them
    pub exclusive_cpus: bool,
}

impl Options {
    /// Checks that each value is possible by itself
    pub(super) fn check(&self) -> Result<(), PlanError> {
        if self.n == Some(0) {
            return Err(PlanError::NoWorkers);
        }
        if self.threads_per_worker == Some(0) {
            return Err(PlanError::NoThreads);
        }
        if let Some(fraction) = self.memory_fraction
            && !(fraction > 0.0 && fraction <= 1.0)
        {
            return Err(PlanError::BadFraction { fraction });
        }
        if self.interface.is_some() && self.nics.is_some() {
            return Err(PlanError::InterfaceAndNics);
        }
        if self.interface.as_deref() == Some("") {
            return Err(PlanError::EmptyPrefix);
        }
        if self.memory_limit_bytes.is_some() && self.memory_fraction.is_some() {
            return Err(PlanError::LimitAndFraction);
        }
        if self.policy != Policy::N && self.n.is_some() {
            return Err(PlanError::CountWithPolicy {
                policy: self.policy,
            });
        }
        if self.policy != Policy::PerGpu && self.gpus.is_some() {
            return Err(PlanError::GpusWithPolicy {
                policy: self.policy,
            });
        }
        Ok(())
    }

    /// How many workers [`Policy::N`] is to make
    pub(super) fn count(&self) -> Result<usize, PlanError> {
        self.n.map(|n| n as usize).ok_or(PlanError::CountMissing)
    }
}

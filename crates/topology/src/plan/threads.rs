//! How many tasks each worker runs at once

use super::{Draft, Notes, Options, Policy};
use crate::model::Machine;

/// Threads of each worker, at least 1
///
/// A worker with a GPU has one, as one process that drives a GPU seldom gains by more; others have
/// one for each CPU. A cgroup's quota of CPU time is shared out in proportion to CPUs.
pub(super) fn share(
    machine: &Machine,
    options: &Options,
    drafts: &[Draft],
    notes: &mut Notes,
) -> Vec<u32> {
    let quota = machine.cpu_quota.filter(|quota| quota.is_finite());
    if let Some(quota) = quota.filter(|&quota| quota < drafts.len() as f64) {
        notes.warnings.push(format!(
            "the cgroup allows the time of {quota} CPUs, and there are {} workers: they will wait for each other",
            drafts.len()
        ));
    }
    if let Some(threads) = options.threads_per_worker {
        if let Some(small) = drafts
            .iter()
            .find(|draft| (draft.cpus.len() as u64) < u64::from(threads))
        {
            notes.warnings.push(format!(
                "{threads} threads per worker are more than the {} CPUs of worker {}",
                small.cpus.len(),
                small.name
            ));
        }
        return vec![threads; drafts.len()];
    }
    if options.policy == Policy::PerGpu {
        return vec![1; drafts.len()];
    }
    let cpus: usize = drafts.iter().map(|draft| draft.cpus.len()).sum();
    let quota = quota.filter(|&quota| quota < cpus as f64);
    if let Some(quota) = quota {
        notes.explanation.push(format!(
            "The cgroup allows the time of {quota} CPUs: threads are fewer than CPUs."
        ));
    }
    let mut threads: Vec<u32> = drafts
        .iter()
        .map(|draft| {
            let own = draft.cpus.len();
            let threads = quota.map_or(own, |quota| (quota * own as f64 / cpus as f64) as usize);
            u32::try_from(threads.max(1)).unwrap_or(u32::MAX)
        })
        .collect();
    if let Some(quota) = quota {
        // The one that each worker has at least is taken from those that have most
        while f64::from(threads.iter().sum::<u32>()) > quota {
            match threads.iter_mut().max() {
                Some(most) if *most > 1 => *most -= 1,
                _ => break,
            }
        }
    }
    threads
}

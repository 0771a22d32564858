//! Which NUMA nodes each worker has memory from, and how much of it

use super::{Draft, Notes, Options, Policy, cpus};
use crate::model::Machine;

/// Binds each worker to the memory of the NUMA nodes that its CPUs are on
///
/// No policy where it would say nothing: on a machine of one node, or for a worker on all of them.
/// So a container that forbids memory policies is asked for none unless it gains by it.
pub(super) fn bind(machine: &Machine, drafts: &mut [Draft], notes: &mut Notes) {
    let allowed = |id: &u32| machine.allowed_nodes.is_empty() || machine.allowed_nodes.contains(id);
    let with_memory = |id: u32| {
        machine
            .nodes
            .iter()
            .any(|node| node.id == id && node.memory_bytes != Some(0))
    };
    let all = machine.nodes.iter().filter(|node| with_memory(node.id));
    let all = all.count();
    for draft in drafts.iter_mut() {
        let near: Vec<u32> = draft
            .nodes
            .iter()
            .copied()
            .filter(|&id| with_memory(id))
            .collect();
        if all < 2 || near.len() == all {
            continue;
        }
        draft.memory_nodes = near.iter().copied().filter(allowed).collect();
        if draft.memory_nodes.len() < near.len() {
            let forbidden: Vec<u32> = near.into_iter().filter(|id| !allowed(id)).collect();
            notes.warnings.push(format!(
                "worker {} may have no memory of NUMA node {}, which its CPUs are on (cgroup): it is bound to {}",
                draft.name,
                list(&forbidden),
                if draft.memory_nodes.is_empty() {
                    "none".to_owned()
                } else {
                    list(&draft.memory_nodes)
                },
            ));
        }
    }
    if drafts.iter().any(|draft| draft.memory_nodes.is_empty()) {
        return;
    }
    let unused: Vec<u32> = machine
        .nodes
        .iter()
        .map(|node| node.id)
        .filter(|&id| with_memory(id) && allowed(&id))
        .filter(|id| drafts.iter().all(|draft| !draft.memory_nodes.contains(id)))
        .collect();
    if !unused.is_empty() {
        notes.explanation.push(format!(
            "Memory of NUMA {} {} is for no worker.",
            if unused.len() == 1 { "node" } else { "nodes" },
            list(&unused)
        ));
    }
}

/// Memory of each worker, in bytes; 0 if it is unknown, or when no limit is wanted
///
/// Workers without GPUs share the machine's memory by the CPUs they have of those allowed, as Dask
/// does; workers with GPUs share it evenly. A worker that is bound to NUMA nodes has no more than
/// its share of their memory. The sum is at most the machine's memory, or the cgroup's limit.
pub(super) fn share(
    machine: &Machine,
    options: &Options,
    drafts: &[Draft],
    notes: &mut Notes,
) -> Vec<u64> {
    let budget = budget(machine);
    if let Some(bytes) = options.memory_limit_bytes {
        let sum = u128::from(bytes) * drafts.len() as u128;
        if let Some(budget) = budget.filter(|&budget| sum > u128::from(budget)) {
            notes.warnings.push(format!(
                "{} workers of {} each want {}, and there are {}: lower the memory limit",
                drafts.len(),
                memory_text(bytes),
                memory_text(u64::try_from(sum).unwrap_or(u64::MAX)),
                memory_text(budget),
            ));
        }
        return vec![bytes; drafts.len()];
    }
    let Some(budget) = budget else {
        notes
            .explanation
            .push("The machine's memory is not known: no worker has a limit.".to_owned());
        return vec![0; drafts.len()];
    };
    let part = |bytes: u64| match options.memory_fraction {
        Some(fraction) => (bytes as f64 * fraction) as u64,
        None => bytes,
    };
    let weight = |draft: &Draft| match options.policy {
        Policy::PerGpu => 1,
        _ => draft.cpus.len() as u64,
    };
    let total = match options.policy {
        Policy::PerGpu => drafts.len() as u64,
        _ => cpus::allowed(machine).len() as u64,
    };
    let of_nodes = |draft: &Draft| -> Option<u64> {
        let mut sum = 0;
        for &id in &draft.memory_nodes {
            let node = machine.nodes.iter().find(|node| node.id == id)?;
            let sharing = drafts
                .iter()
                .filter(|other| other.memory_nodes.contains(&id))
                .map(weight)
                .sum();
            sum += proportion(part(node.memory_bytes?), weight(draft), sharing);
        }
        (sum > 0).then_some(sum)
    };
    drafts
        .iter()
        .map(|draft| {
            let fair = proportion(part(budget), weight(draft), total);
            of_nodes(draft).map_or(fair, |bytes| bytes.min(fair))
        })
        .collect()
}

/// Memory that there is to share out: of the machine, of the nodes that are allowed, of the cgroup
fn budget(machine: &Machine) -> Option<u64> {
    let allowed = |id: u32| machine.allowed_nodes.is_empty() || machine.allowed_nodes.contains(&id);
    let nodes = machine.nodes.iter().filter(|node| allowed(node.id));
    let of_nodes: Option<u64> = nodes.map(|node| node.memory_bytes).sum();
    let bounds = [
        machine.memory_bytes,
        of_nodes.filter(|&bytes| bytes > 0),
        machine.memory_limit_bytes,
    ];
    bounds.into_iter().flatten().min()
}

/// `bytes * part / whole`, rounded down
fn proportion(bytes: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(part) / u128::from(whole.max(part).max(1));
    u64::try_from(share).unwrap_or(bytes)
}

/// Numbers as people list them
pub(super) fn list(numbers: &[u32]) -> String {
    let texts: Vec<String> = numbers.iter().map(u32::to_string).collect();
    texts.join(", ")
}

/// Bytes with a binary unit, for people
pub(crate) fn memory_text(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if value >= 100.0 || value.fract() < 0.05 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

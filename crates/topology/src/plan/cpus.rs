//! Which CPUs each worker has

use super::{Draft, Notes, Options, PlanError};
use crate::cpuset::CpuSet;
use crate::locality::localities;
use crate::model::Machine;

/// CPUs that are online, as the machine tells them or as its parts imply
pub(super) fn online(machine: &Machine) -> CpuSet {
    if !machine.online_cpus.is_empty() {
        return machine.online_cpus.clone();
    }
    let nodes = machine.nodes.iter().map(|node| &node.cpus);
    let gpus = machine.gpus.iter().map(|gpu| &gpu.place.cpus);
    nodes
        .chain(gpus)
        .fold(CpuSet::default(), |all, cpus| all.union(cpus))
}

/// CPUs that the process may use
pub(super) fn allowed(machine: &Machine) -> CpuSet {
    let online = online(machine);
    if machine.allowed_cpus.is_empty() {
        online
    } else {
        machine.allowed_cpus.intersection(&online)
    }
}

/// CPUs that the plan may use: what was asked for, if it is allowed
pub(super) fn usable(machine: &Machine, options: &Options) -> Result<CpuSet, PlanError> {
    let (online, allowed) = (online(machine), allowed(machine));
    if allowed.is_empty() {
        return Err(PlanError::NoCpus {
            machine: machine.name.clone(),
        });
    }
    let Some(asked) = &options.cpus else {
        return Ok(allowed);
    };
    if asked.is_empty() {
        return Err(PlanError::NoCpusAsked { allowed });
    }
    let offline = asked.difference(&online);
    if !offline.is_empty() {
        return Err(PlanError::CpusOffline {
            cpus: offline,
            online: allowed,
        });
    }
    let forbidden = asked.difference(&allowed);
    if !forbidden.is_empty() {
        return Err(PlanError::CpusNotAllowed {
            cpus: forbidden,
            allowed,
        });
    }
    Ok(asked.clone())
}

/// One worker for each NUMA node that has usable CPUs
pub(super) fn per_numa(machine: &Machine, usable: &CpuSet, notes: &mut Notes) -> Vec<Draft> {
    let mut left = usable.clone();
    let mut drafts = Vec::new();
    let localities = localities(machine);
    if machine.nodes.is_empty() {
        notes.warnings.push(if localities.is_empty() {
            "NUMA nodes are not known: one worker has all CPUs".to_owned()
        } else {
            "NUMA nodes are not known: groups of CPUs near the same GPUs stand for them".to_owned()
        });
    }
    for (number, locality) in localities.into_iter().enumerate() {
        let cpus = locality.cpus.intersection(&left);
        left = left.difference(&cpus);
        if !cpus.is_empty() {
            drafts.push(Draft {
                name: match locality.node {
                    Some(id) => format!("numa{id}"),
                    None => format!("numa{number}"),
                },
                nodes: locality.node.into_iter().collect(),
                cpus,
                ..Draft::default()
            });
        }
    }
    if drafts.is_empty() {
        drafts.push(Draft {
            name: "numa0".to_owned(),
            cpus: left,
            ..Draft::default()
        });
    } else if !left.is_empty() {
        notes.warnings.push(format!(
            "CPUs {left} are on no NUMA node that is known: no worker has them"
        ));
    }
    drafts
}

/// One worker for each last-level cache with usable CPUs
pub(super) fn per_l3(
    machine: &Machine,
    usable: &CpuSet,
    notes: &mut Notes,
) -> Result<Vec<Draft>, PlanError> {
    let mut left = usable.clone();
    let mut drafts = Vec::new();
    for (number, l3) in machine.l3_domains.iter().enumerate() {
        let cpus = l3.cpus.intersection(&left);
        left = left.difference(&cpus);
        if !cpus.is_empty() {
            drafts.push(Draft {
                name: format!("l3-{number}"),
                nodes: nodes_of(machine, &cpus),
                cpus,
                ..Draft::default()
            });
        }
    }
    if drafts.is_empty() {
        return Err(PlanError::NoL3 {
            machine: machine.name.clone(),
        });
    }
    if !left.is_empty() {
        notes.warnings.push(format!(
            "CPUs {left} share no last-level cache that is known: no worker has them"
        ));
    }
    Ok(drafts)
}

/// As many workers as asked for, none across more NUMA nodes than it must be
///
/// With at least as many workers as nodes, each node has workers in proportion to its CPUs (by
/// Jefferson's method, at least one each), and these divide it. With fewer, each worker has whole
/// nodes that follow each other, as numbers of nodes of one package do.
pub(super) fn per_count(
    machine: &Machine,
    usable: &CpuSet,
    workers: usize,
) -> Result<Vec<Draft>, PlanError> {
    if workers > usable.len() {
        return Err(PlanError::TooManyWorkers {
            workers,
            cpus: usable.clone(),
        });
    }
    let nodes = nodes_with_cpus(machine, usable);
    let groups = if workers < nodes.len() {
        (0..workers)
            .map(|worker| {
                let of = |worker: usize| worker * nodes.len() / workers;
                nodes[of(worker)..of(worker + 1)]
                    .iter()
                    .fold(CpuSet::default(), |all, cpus| all.union(cpus))
            })
            .collect()
    } else {
        let mut counts = vec![1; nodes.len()];
        for _ in nodes.len()..workers {
            // CPUs of the node for each worker, if it had one more; the first of equals
            let best = (0..nodes.len())
                .filter(|&node| counts[node] < nodes[node].len())
                .max_by(|&one, &other| {
                    let for_each = |node: usize| (nodes[node].len(), counts[node] + 1);
                    let ((a, of_a), (b, of_b)) = (for_each(one), for_each(other));
                    (a * of_b).cmp(&(b * of_a)).then(other.cmp(&one))
                })
                .expect("there are no more workers than CPUs");
            counts[best] += 1;
        }
        nodes
            .iter()
            .zip(counts)
            .flat_map(|(cpus, workers)| split(machine, cpus, workers))
            .collect::<Vec<_>>()
    };
    Ok(groups
        .into_iter()
        .enumerate()
        .map(|(number, cpus)| Draft {
            name: number.to_string(),
            nodes: nodes_of(machine, &cpus),
            cpus,
            ..Draft::default()
        })
        .collect())
}

/// Divides CPUs among workers: whole cores while there are enough, cores of one cache together
///
/// `workers` is at most the number of CPUs.
pub(super) fn split(machine: &Machine, cpus: &CpuSet, workers: usize) -> Vec<CpuSet> {
    let cores = cores_by_cache(machine, cpus);
    if workers <= cores.len() {
        chunks(&cores, workers)
            .map(|cores| cores.iter().flat_map(CpuSet::iter).collect())
            .collect()
    } else {
        let threads: Vec<u32> = cores.iter().flat_map(CpuSet::iter).collect();
        chunks(&threads, workers)
            .map(|threads| threads.iter().copied().collect())
            .collect()
    }
}

/// NUMA nodes that CPUs are on
pub(super) fn nodes_of(machine: &Machine, cpus: &CpuSet) -> Vec<u32> {
    machine
        .nodes
        .iter()
        .filter(|node| !node.cpus.intersection(cpus).is_empty())
        .map(|node| node.id)
        .collect()
}

/// Consecutive parts whose sizes differ by one at most
fn chunks<T>(all: &[T], parts: usize) -> impl Iterator<Item = &[T]> {
    (0..parts).map(move |part| &all[part * all.len() / parts..(part + 1) * all.len() / parts])
}

/// Usable CPUs of each NUMA node that has any, and those on no node as one more
fn nodes_with_cpus(machine: &Machine, usable: &CpuSet) -> Vec<CpuSet> {
    let mut left = usable.clone();
    let mut nodes = Vec::new();
    for locality in localities(machine) {
        let cpus = locality.cpus.intersection(&left);
        left = left.difference(&cpus);
        nodes.push(cpus);
    }
    nodes.push(left);
    nodes.retain(|cpus| !cpus.is_empty());
    nodes
}

/// The cores that CPUs are on, those of one last-level cache next to each other; a CPU on no known
/// core is one by itself
fn cores_by_cache(machine: &Machine, cpus: &CpuSet) -> Vec<CpuSet> {
    let mut left = cpus.clone();
    let mut cores = Vec::new();
    for core in &machine.cores {
        let threads = core.cpus.intersection(&left);
        left = left.difference(&threads);
        if !threads.is_empty() {
            cores.push(threads);
        }
    }
    cores.extend(left.iter().map(|cpu| CpuSet::from_iter([cpu])));
    cores.sort_by_cached_key(|core| {
        let first = core.iter().next();
        let cache = machine
            .l3_domains
            .iter()
            .position(|l3| first.is_some_and(|cpu| l3.cpus.contains(cpu)));
        (cache, first)
    });
    cores
}

//! Which GPU each worker has, in which order it sees the others, and which CPUs are near it

use std::collections::BTreeSet;

use super::{Draft, Notes, Options, PlanError, PlannedGpu, cpus};
use crate::cpuset::CpuSet;
use crate::distance::{Device, class_between, node_of_place};
use crate::model::{Gpu, GpuInstance, Machine};

/// A GPU, or an instance of one, that has a worker
#[derive(Clone, Copy, Debug)]
struct Chosen<'m> {
    gpu: &'m Gpu,
    instance: Option<(usize, &'m GpuInstance)>,
}

impl Chosen<'_> {
    fn name(&self) -> String {
        match self.instance {
            Some((number, _)) => format!("gpu{}-{number}", self.gpu.index),
            None => format!("gpu{}", self.gpu.index),
        }
    }

    fn planned(&self) -> PlannedGpu {
        PlannedGpu {
            index: self.gpu.index,
            uuid: match self.instance {
                Some((_, instance)) => Some(instance.uuid.clone()),
                None => self.gpu.uuid.clone(),
            },
        }
    }
}

/// One worker for each GPU
pub(super) fn drafts(
    machine: &Machine,
    options: &Options,
    usable: &CpuSet,
    notes: &mut Notes,
) -> Result<Vec<Draft>, PlanError> {
    check_names(machine)?;
    let chosen = match &options.gpus {
        Some(asked) => find_all(machine, asked)?,
        None => machine.gpus.iter().flat_map(parts).collect(),
    };
    if chosen.is_empty() {
        return Err(PlanError::NoGpus {
            machine: machine.name.clone(),
        });
    }
    let mut drafts: Vec<Draft> = chosen
        .iter()
        .enumerate()
        .map(|(position, one)| {
            let cpus = cpus_near(machine, one.gpu, usable, notes);
            Draft {
                name: one.name(),
                nodes: cpus::nodes_of(machine, &cpus),
                cpus,
                gpus: order(machine, &chosen, position),
                ..Draft::default()
            }
        })
        .collect();
    if options.exclusive_cpus {
        divide(machine, &mut drafts)?;
    }
    Ok(drafts)
}

/// The instances of a GPU that is cut into some, else the GPU itself
fn parts(gpu: &Gpu) -> Vec<Chosen<'_>> {
    if gpu.instances.is_empty() {
        return vec![Chosen {
            gpu,
            instance: None,
        }];
    }
    gpu.instances
        .iter()
        .enumerate()
        .map(|instance| Chosen {
            gpu,
            instance: Some(instance),
        })
        .collect()
}

/// The GPUs that were asked for, in that order
fn find_all<'m>(machine: &'m Machine, asked: &[String]) -> Result<Vec<Chosen<'m>>, PlanError> {
    if machine.gpus.is_empty() {
        return Err(PlanError::NoGpus {
            machine: machine.name.clone(),
        });
    }
    if asked.is_empty() {
        return Err(PlanError::NoGpusAsked {
            known: known(machine),
        });
    }
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for text in asked {
        for one in find(machine, text.trim())? {
            if !seen.insert(one.name()) {
                return Err(PlanError::GpuTwice { gpu: text.clone() });
            }
            found.push(one);
        }
    }
    Ok(found)
}

/// The GPU of an index or a UUID, or the instance of a UUID; UUIDs may be cut short
fn find<'m>(machine: &'m Machine, text: &str) -> Result<Vec<Chosen<'m>>, PlanError> {
    let unknown = || PlanError::UnknownGpu {
        gpu: text.to_owned(),
        known: known(machine),
    };
    if let Ok(index) = text.parse::<u32>() {
        let gpu = machine.gpus.iter().find(|gpu| gpu.index == index);
        return gpu.map(parts).ok_or_else(unknown);
    }
    let begins = |uuid: &str| {
        uuid.get(..text.len())
            .is_some_and(|begin| begin.eq_ignore_ascii_case(text))
    };
    let mut matches: Vec<(&str, Vec<Chosen<'m>>)> = Vec::new();
    if text.len() > PREFIX_BYTES {
        for gpu in &machine.gpus {
            if let Some(uuid) = gpu.uuid.as_deref().filter(|uuid| begins(uuid)) {
                matches.push((uuid, parts(gpu)));
            }
            for one in parts(gpu) {
                if let Some((_, instance)) = one.instance
                    && begins(&instance.uuid)
                {
                    matches.push((&instance.uuid, vec![one]));
                }
            }
        }
    }
    if matches.len() > 1 {
        let whole = |(uuid, _): &(&str, _)| uuid.eq_ignore_ascii_case(text);
        match matches.iter().position(whole) {
            Some(exact) => matches.swap(0, exact),
            None => {
                return Err(PlanError::AmbiguousGpu {
                    gpu: text.to_owned(),
                    matches: matches.iter().map(|(uuid, _)| (*uuid).to_owned()).collect(),
                });
            }
        }
    }
    matches
        .into_iter()
        .next()
        .map(|(_, chosen)| chosen)
        .ok_or_else(unknown)
}

/// How the GPUs of a machine may be called
fn known(machine: &Machine) -> Vec<String> {
    let mut known = Vec::new();
    for gpu in &machine.gpus {
        known.push(match &gpu.uuid {
            Some(uuid) => format!("{} ({uuid})", gpu.index),
            None => gpu.index.to_string(),
        });
        known.extend(gpu.instances.iter().map(|instance| instance.uuid.clone()));
    }
    known
}

/// Refuses a machine on which names of workers, or of GPUs, could not be unique
fn check_names(machine: &Machine) -> Result<(), PlanError> {
    let mut seen = BTreeSet::new();
    for gpu in &machine.gpus {
        let instances = gpu.instances.iter().map(|instance| instance.uuid.clone());
        let names = [Some(gpu.index.to_string()), gpu.uuid.clone()];
        for name in names.into_iter().flatten().chain(instances) {
            if !seen.insert(name.clone()) {
                return Err(PlanError::GpusAlike {
                    machine: machine.name.clone(),
                    gpu: name,
                });
            }
        }
    }
    Ok(())
}

/// A worker's own GPU, then the others by nearness; of equals the next by number, round
///
/// CUDA shows a process one instance (MIG) and nothing beside it, and no GPU that is cut into
/// instances as a whole. (CUDA C Programming Guide, `CUDA_VISIBLE_DEVICES`.)
fn order(machine: &Machine, chosen: &[Chosen<'_>], own: usize) -> Vec<PlannedGpu> {
    let mine = chosen[own];
    let mut others: Vec<usize> = (0..chosen.len())
        .filter(|&other| other != own)
        .filter(|&other| mine.instance.is_none() && chosen[other].instance.is_none())
        .collect();
    others.sort_by_key(|&other| {
        let device = |chosen: Chosen<'_>| Device::Gpu(chosen.gpu.index);
        let class = class_between(machine, &device(mine), &device(chosen[other]));
        (class.rank(), (other + chosen.len() - own) % chosen.len())
    });
    std::iter::once(own)
        .chain(others)
        .map(|position| chosen[position].planned())
        .collect()
}

/// CPUs near a GPU that may be used; all, with a warning, where there are none or they are unknown
fn cpus_near(machine: &Machine, gpu: &Gpu, usable: &CpuSet, notes: &mut Notes) -> CpuSet {
    let node = node_of_place(machine, &gpu.place)
        .and_then(|id| machine.nodes.iter().find(|node| node.id == id));
    let near = match node {
        _ if !gpu.place.cpus.is_empty() => gpu.place.cpus.clone(),
        Some(node) => node.cpus.clone(),
        None => CpuSet::default(),
    };
    let both = near.intersection(usable);
    if !both.is_empty() {
        return both;
    }
    if machine.nodes.len() > 1 || !near.is_empty() {
        let index = gpu.index;
        let warning = if near.is_empty() {
            format!("which CPUs are near GPU {index} is not known: its worker has all usable ones")
        } else {
            format!(
                "CPUs {near} are near GPU {index} and may not be used: its worker has all usable ones ({}); ask the batch system for CPUs of that NUMA node",
                usable
            )
        };
        if !notes.warnings.contains(&warning) {
            notes.warnings.push(warning);
        }
    }
    usable.clone()
}

/// Divides CPUs among workers that would share them
fn divide(machine: &Machine, drafts: &mut [Draft]) -> Result<(), PlanError> {
    let mut undivided: Vec<usize> = (0..drafts.len()).collect();
    while let Some(&first) = undivided.first() {
        // All that overlap with the first, directly or through others
        let mut together = vec![first];
        let mut cpus = drafts[first].cpus.clone();
        undivided.remove(0);
        while let Some(at) = undivided
            .iter()
            .position(|&other| !drafts[other].cpus.intersection(&cpus).is_empty())
        {
            let other = undivided.remove(at);
            cpus = cpus.union(&drafts[other].cpus);
            together.push(other);
        }
        if together.len() > cpus.len() {
            return Err(PlanError::TooManyWorkers {
                workers: together.len(),
                cpus,
            });
        }
        together.sort_unstable();
        let parts = cpus::split(machine, &cpus, together.len());
        for (draft, part) in together.into_iter().zip(parts) {
            drafts[draft].nodes = cpus::nodes_of(machine, &part);
            drafts[draft].cpus = part;
        }
    }
    Ok(())
}

/// `GPU-` and `MIG-`, which alone name nothing
const PREFIX_BYTES: usize = 4;

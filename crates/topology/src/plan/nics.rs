//! Which network interface and which RDMA device each worker has
//!
//! An interface is chosen only if one is asked for: an address on a network that the scheduler
//! cannot reach would break what Dask's own choice, by the routing table, gets right.

use super::{Draft, Notes, Options, PlanError};
use crate::distance::{self, Class, Device, Distance};
use crate::model::{Machine, Nic};

/// Network interfaces and cards of a worker
#[derive(Clone, Debug, Default)]
pub(super) struct Network {
    pub(super) nic: Option<String>,
    pub(super) rdma: Option<String>,
    /// The path to it, if one was chosen
    pub(super) class: Option<Class>,
}

/// An interface or RDMA device that workers may be given
#[derive(Clone, Debug)]
struct Candidate {
    nic: Option<String>,
    rdma: Option<String>,
    device: Device,
}

/// The network of each worker
///
/// The fastest path first, then the nearest, then the one that the fewest workers have.
pub(super) fn choose(
    machine: &Machine,
    options: &Options,
    drafts: &[Draft],
    notes: &mut Notes,
) -> Result<Vec<Network>, PlanError> {
    let candidates = match (&options.nics, &options.interface) {
        (Some(names), _) => named(machine, names, notes)?,
        (None, Some(prefix)) => with_prefix(machine, prefix, notes)?,
        (None, None) => rdma(machine),
    };
    if options.nics.is_none() && options.interface.is_none() {
        notes.explanation.push(
            "No interface was asked for: Dask chooses the address of each worker by its routes."
                .to_owned(),
        );
    }
    let mut workers = vec![0_usize; candidates.len()];
    Ok(drafts
        .iter()
        .map(|draft| {
            let best = (0..candidates.len()).min_by(|&one, &other| {
                let (a, b) = (
                    path(machine, draft, &candidates[one].device),
                    path(machine, draft, &candidates[other].device),
                );
                b.bandwidth_bytes_per_s
                    .total_cmp(&a.bandwidth_bytes_per_s)
                    .then(a.class.rank().cmp(&b.class.rank()))
                    .then(workers[one].cmp(&workers[other]))
            });
            best.map_or_else(Network::default, |best| {
                workers[best] += 1;
                let chosen = candidates[best].clone();
                Network {
                    nic: chosen.nic,
                    rdma: chosen.rdma,
                    class: Some(path(machine, draft, &chosen.device).class),
                }
            })
        })
        .collect())
}

/// The interfaces of these names, of which each must be there
fn named(
    machine: &Machine,
    names: &[String],
    notes: &mut Notes,
) -> Result<Vec<Candidate>, PlanError> {
    let known = || machine.nics.iter().map(|nic| nic.name.clone()).collect();
    if names.is_empty() {
        return Err(PlanError::NoNicsAsked { known: known() });
    }
    let nics = names
        .iter()
        .map(|name| {
            let nic = machine.nics.iter().find(|nic| nic.name == *name);
            nic.ok_or_else(|| PlanError::UnknownNic {
                nic: name.clone(),
                known: known(),
            })
        })
        .collect::<Result<Vec<&Nic>, PlanError>>()?;
    Ok(usable(machine, nics, notes))
}

/// The interfaces whose names begin so, in the order of their numbers
///
/// Where the machine tells no interfaces at all, as `nvidia-smi topo -m` does, but RDMA devices, these
/// stand for them: the first of them, by number, for `ib0`, and so on.
fn with_prefix(
    machine: &Machine,
    prefix: &str,
    notes: &mut Notes,
) -> Result<Vec<Candidate>, PlanError> {
    if machine.nics.is_empty() && !machine.rdma.is_empty() {
        let candidates: Vec<Candidate> = rdma(machine)
            .into_iter()
            .enumerate()
            .map(|(number, candidate)| Candidate {
                nic: Some(format!("{prefix}{number}")),
                ..candidate
            })
            .collect();
        let pairs: Vec<String> = candidates
            .iter()
            .filter_map(|both| Some(format!("{} is {}", both.nic.as_ref()?, both.rdma.as_ref()?)))
            .collect();
        notes.warnings.push(format!(
            "the machine tells no interfaces; by the order of its RDMA devices, {}",
            pairs.join(", ")
        ));
        return Ok(candidates);
    }
    let exact = machine.nics.iter().find(|nic| nic.name == prefix);
    let mut nics: Vec<&Nic> = match exact {
        Some(nic) => vec![nic],
        None => machine
            .nics
            .iter()
            .filter(|nic| nic.name.starts_with(prefix))
            .collect(),
    };
    if nics.is_empty() {
        return Err(PlanError::NoNicWithPrefix {
            prefix: prefix.to_owned(),
            known: machine.nics.iter().map(|nic| nic.name.clone()).collect(),
        });
    }
    nics.sort_by_key(|nic| by_number(&nic.name));
    Ok(usable(machine, nics, notes))
}

/// Interfaces that workers can have an address on; all of them, with a warning, where that is none
fn usable(machine: &Machine, nics: Vec<&Nic>, notes: &mut Notes) -> Vec<Candidate> {
    // Of a recorded machine no addresses are known.
    let addresses_told = machine.nics.iter().any(|nic| !nic.addresses.is_empty());
    type IsFine = fn(&Nic) -> bool;
    let faults: [(&str, IsFine); 2] = [
        ("down or without a carrier", |nic| nic.up),
        ("without an IP address", |nic| !nic.addresses.is_empty()),
    ];
    let mut left = nics;
    for (fault, is_fine) in &faults[..1 + usize::from(addresses_told)] {
        let (fine, faulty): (Vec<&Nic>, Vec<&Nic>) = left.iter().partition(|nic| is_fine(nic));
        if faulty.is_empty() {
            continue;
        }
        let names: Vec<&str> = faulty.iter().map(|nic| nic.name.as_str()).collect();
        let consequence = if fine.is_empty() {
            "workers that are to listen on them will not start"
        } else {
            "no worker has them"
        };
        notes.warnings.push(format!(
            "interfaces {fault}: {}; {consequence}",
            names.join(", ")
        ));
        if fine.is_empty() {
            break;
        }
        left = fine;
    }
    left.into_iter().map(candidate).collect()
}

/// The RDMA devices that are not known to be inactive, in the order of their numbers
fn rdma(machine: &Machine) -> Vec<Candidate> {
    let mut names: Vec<&String> = machine
        .rdma
        .iter()
        .filter(|rdma| rdma.active != Some(false))
        .map(|rdma| &rdma.name)
        .collect();
    names.sort_by_key(|name| by_number(name));
    names
        .into_iter()
        .map(|name| Candidate {
            nic: None,
            rdma: Some(name.clone()),
            device: Device::Rdma(name.clone()),
        })
        .collect()
}

fn candidate(nic: &Nic) -> Candidate {
    Candidate {
        nic: Some(nic.name.clone()),
        rdma: nic.rdma.clone(),
        device: Device::Nic(nic.name.clone()),
    }
}

/// The path from a worker to a device: from its GPU, else from the nearest NUMA node it is on
fn path(machine: &Machine, draft: &Draft, device: &Device) -> Distance {
    let places: Vec<Device> = if let Some(gpu) = draft.gpus.first() {
        vec![Device::Gpu(gpu.index)]
    } else if draft.nodes.is_empty() {
        draft
            .cpus
            .iter()
            .next()
            .map(Device::Cpu)
            .into_iter()
            .collect()
    } else {
        draft.nodes.iter().copied().map(Device::Node).collect()
    };
    places
        .iter()
        .map(|place| distance::between(machine, place, device))
        .min_by_key(|path| path.class.rank())
        .expect("a worker has CPUs")
}

/// Orders `ib10` after `ib2`
fn by_number(name: &str) -> (String, Option<u64>, String) {
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (stem, number) = name.split_at(name.len() - digits);
    (stem.to_owned(), number.parse().ok(), name.to_owned())
}

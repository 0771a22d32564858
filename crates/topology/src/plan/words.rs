//! A plan in words

use super::memory::{list, memory_text};
use super::nics::Network;
use super::{Draft, Notes, Options, Policy, cpus};
use crate::distance::Class;
use crate::model::Machine;

/// Says what workers there are and why
pub(super) fn explain_workers(
    machine: &Machine,
    options: &Options,
    drafts: &[Draft],
    notes: &mut Notes,
) {
    let workers = count(drafts.len(), "worker");
    let first = match options.policy {
        Policy::PerGpu => format!(
            "{workers}, one for each GPU{}, on the CPUs near it.",
            if drafts.iter().any(|draft| draft.name.contains('-')) {
                " and each instance of one"
            } else {
                ""
            }
        ),
        Policy::PerNuma if drafts.len() == 1 => {
            "1 worker: no more than one NUMA node has CPUs that may be used.".to_owned()
        }
        Policy::PerNuma => format!(
            "{workers}, one for each NUMA node with CPUs: each has the CPUs and the memory of its node."
        ),
        Policy::PerL3 => format!(
            "{workers}, one for each last-level cache: the threads of each share one cache."
        ),
        Policy::N => format!(
            "{workers} as asked for, on {}; whole cores while there are enough.",
            match machine.nodes.len() {
                0 => "CPUs of unknown NUMA nodes".to_owned(),
                nodes => count(nodes, "NUMA node"),
            }
        ),
    };
    notes.explanation.push(first);
    explain_shared(drafts, notes);
    let (online, allowed) = (cpus::online(machine), cpus::allowed(machine));
    if allowed != online {
        notes.explanation.push(format!(
            "This process may use {} of {} CPUs: {allowed}.",
            allowed.len(),
            online.len()
        ));
    }
    if let Some(asked) = &options.cpus {
        notes
            .explanation
            .push(format!("CPUs were asked for: {asked}."));
    }
    let usable = options.cpus.as_ref().unwrap_or(&allowed);
    let idle = drafts
        .iter()
        .fold(usable.clone(), |left, draft| left.difference(&draft.cpus));
    if options.policy == Policy::PerGpu && !idle.is_empty() {
        notes.explanation.push(format!(
            "CPUs {idle} are not the nearest of any GPU that is used: no worker has them."
        ));
    }
    if let Some(limit) = machine.memory_limit_bytes {
        notes.explanation.push(format!(
            "The cgroup allows {} of memory.",
            memory_text(limit)
        ));
    }
}

/// Why a worker is where it is, in one sentence
pub(super) fn why(machine: &Machine, draft: &Draft, network: &Network) -> String {
    let mut why = match draft.gpus.first() {
        Some(gpu) => {
            let what = if draft.name.contains('-') {
                format!("an instance of GPU {}", gpu.index)
            } else {
                format!("GPU {}", gpu.index)
            };
            format!("{what} with the CPUs near it{}", on_nodes(&draft.nodes))
        }
        None => format!(
            "{}{}{}",
            count(draft.cpus.len(), "CPU"),
            on_cache(machine, draft),
            on_nodes(&draft.nodes)
        ),
    };
    let device = match (&network.nic, &network.rdma) {
        (Some(nic), Some(rdma)) => Some(format!("{nic} ({rdma})")),
        (nic, rdma) => nic.clone().or_else(|| rdma.clone()),
    };
    if let (Some(device), Some(class)) = (device, network.class) {
        why += &format!("; {device} is {}", far(class));
    }
    why + "."
}

/// Says which GPUs share CPUs
fn explain_shared(drafts: &[Draft], notes: &mut Notes) {
    let mut told: Vec<&crate::cpuset::CpuSet> = Vec::new();
    for draft in drafts {
        if told.contains(&&draft.cpus) {
            continue;
        }
        told.push(&draft.cpus);
        let sharing: Vec<&str> = drafts
            .iter()
            .filter(|other| other.cpus == draft.cpus)
            .map(|other| other.name.as_str())
            .collect();
        if sharing.len() < 2 {
            continue;
        }
        let names = sharing.join(", ");
        notes
            .explanation
            .push(format!("{names} share CPUs {}.", draft.cpus));
        if sharing.len() > draft.cpus.len() {
            notes.warnings.push(format!(
                "{names} share {}: they will wait for each other",
                count(draft.cpus.len(), "CPU")
            ));
        }
    }
}

fn on_nodes(nodes: &[u32]) -> String {
    match nodes {
        [] => String::new(),
        [node] => format!(" on NUMA node {node}"),
        nodes => format!(" on NUMA nodes {}", list(nodes)),
    }
}

fn on_cache(machine: &Machine, draft: &Draft) -> &'static str {
    let shared = machine
        .l3_domains
        .iter()
        .any(|l3| draft.cpus.is_subset(&l3.cpus));
    if shared {
        " of one last-level cache"
    } else {
        ""
    }
}

fn far(class: Class) -> &'static str {
    match class {
        Class::NumaNode => "on the same NUMA node",
        Class::Pix => "one PCI switch away",
        Class::Pxb => "several PCI switches away",
        Class::Phb => "behind the same host bridge",
        Class::Node => "behind another host bridge of the same NUMA node",
        Class::Sys => "on another NUMA node, or on an unknown one",
        other => other.words(),
    }
}

fn count(number: usize, what: &str) -> String {
    if number == 1 {
        format!("{number} {what}")
    } else {
        format!("{number} {what}s")
    }
}

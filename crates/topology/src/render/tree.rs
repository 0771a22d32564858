//! A machine as a tree of text

use std::fmt::Write as _;

use super::view::{BridgeView, CacheView, NodeView, View};
use crate::model::Machine;
use crate::plan::memory_text;

/// The machine as a tree: packages, NUMA nodes, caches, cores, and the devices where they hang
///
/// Lines end in a line feed; branches are drawn with characters of Unicode.
#[must_use]
pub fn tree(machine: &Machine) -> String {
    let view = View::new(machine);
    let mut root = Branch::new(title(machine));
    for package in &view.packages {
        let nodes = package.nodes.iter().map(node_branch);
        match package.id {
            Some(id) => {
                let mut branch = Branch::new(format!("Package {id}"));
                branch.children.extend(nodes);
                root.children.push(branch);
            }
            None => root.children.extend(nodes),
        }
    }
    if !view.elsewhere.is_empty() {
        let mut branch = Branch::new("Devices whose NUMA node is not known".to_owned());
        branch.children = view.elsewhere.iter().flat_map(bridge_branches).collect();
        root.children.push(branch);
    }
    let mut text = String::new();
    root.write(&mut text, "", "");
    for line in remarks(machine, &view) {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// One line, and what hangs below it
struct Branch {
    text: String,
    children: Vec<Self>,
}

impl Branch {
    fn new(text: String) -> Self {
        Self {
            text,
            children: Vec::new(),
        }
    }

    fn write(&self, text: &mut String, first: &str, rest: &str) {
        let _ = writeln!(text, "{first}{}", self.text);
        for (number, child) in self.children.iter().enumerate() {
            let (corner, line) = if number + 1 < self.children.len() {
                ("├─ ", "│  ")
            } else {
                ("└─ ", "   ")
            };
            child.write(text, &format!("{rest}{corner}"), &format!("{rest}{line}"));
        }
    }
}

/// Name and sums
pub(super) fn title(machine: &Machine) -> String {
    let name = if machine.name.is_empty() {
        "machine"
    } else {
        &machine.name
    };
    let mut parts = vec![name.to_owned()];
    if !machine.cpu_model.is_empty() {
        parts.push(machine.cpu_model.clone());
    }
    parts.push(sums(machine));
    parts.join(" · ")
}

/// `16 cores, 32 CPUs, 64 GiB, 8 GPUs`
pub(super) fn sums(machine: &Machine) -> String {
    let mut parts = Vec::new();
    if !machine.cores.is_empty() {
        parts.push(count(machine.cores.len(), "core"));
    }
    parts.push(count(machine.online_cpus.len(), "CPU"));
    parts.extend(machine.memory_bytes.map(memory_text));
    if !machine.gpus.is_empty() {
        parts.push(count(machine.gpus.len(), "GPU"));
    }
    parts.join(", ")
}

fn node_branch(node: &NodeView) -> Branch {
    let mut parts = vec![node.name.clone()];
    parts.extend(node.memory_bytes.map(memory_text));
    if node.cpus.is_empty() {
        parts.push("no CPUs".to_owned());
    } else {
        parts.push(format!("CPUs {}", node.cpus));
    }
    let mut branch = Branch::new(parts.join(" · "));
    branch.children.extend(cache_branches(&node.caches));
    branch
        .children
        .extend(node.bridges.iter().flat_map(bridge_branches));
    branch
}

fn cache_branches(caches: &[CacheView]) -> Vec<Branch> {
    caches
        .iter()
        .map(|cache| {
            let mut parts = Vec::new();
            if cache.known {
                parts.push(match cache.bytes {
                    Some(bytes) => format!("L3 {}", memory_text(bytes)),
                    None => "L3".to_owned(),
                });
            }
            parts.push(cores_text(cache));
            if caches.len() > 1 {
                parts.push(format!("CPUs {}", cache.cpus));
            }
            Branch::new(parts.join(" · "))
        })
        .collect()
}

/// `8 cores of 2 threads`
pub(super) fn cores_text(cache: &CacheView) -> String {
    let threads = cache.cores.iter().map(crate::CpuSet::len);
    let (least, most) = (threads.clone().min(), threads.max());
    let cores = count(cache.cores.len(), "core");
    match (least, most) {
        (Some(1), Some(1)) => count(cache.cores.len(), "CPU"),
        (Some(least), Some(most)) if least == most => format!("{cores} of {most} threads"),
        (Some(least), Some(most)) => format!("{cores} of {least} to {most} threads"),
        _ => cores,
    }
}

fn bridge_branches(bridge: &BridgeView) -> Vec<Branch> {
    let mut inside: Vec<Branch> = bridge
        .switches
        .iter()
        .map(|switch| {
            let mut branch = Branch::new(switch.name.to_owned());
            branch.children = switch
                .devices
                .iter()
                .map(|device| Branch::new(device.line()))
                .collect();
            branch
        })
        .collect();
    inside.extend(bridge.alone.iter().map(|device| Branch::new(device.line())));
    match &bridge.name {
        Some(name) => {
            let mut branch = Branch::new(format!("Host bridge {name}"));
            branch.children = inside;
            vec![branch]
        }
        None => inside,
    }
}

/// Facts that are not in the tree
fn remarks(machine: &Machine, view: &View) -> Vec<String> {
    let mut lines = Vec::new();
    for gpu in &machine.gpus {
        let mut links: Vec<(u32, u32)> = machine
            .gpus
            .iter()
            .filter_map(|other| {
                let links = crate::distance::nvlink_between(machine, gpu.index, other.index)?;
                Some((links, other.index))
            })
            .collect();
        links.sort_by_key(|&(links, other)| (u32::MAX - links, other));
        if !links.is_empty() {
            let texts: Vec<String> = links
                .chunk_by(|one, other| one.0 == other.0)
                .map(|same| {
                    let others: Vec<String> =
                        same.iter().map(|(_, other)| other.to_string()).collect();
                    format!("×{} to {}", same[0].0, others.join(", "))
                })
                .collect();
            lines.push(format!("NVLink of GPU {}: {}", gpu.index, texts.join("; ")));
        }
    }
    if !view.virtual_nics.is_empty() {
        lines.push(format!(
            "Interfaces without hardware: {}",
            view.virtual_nics.join(", ")
        ));
    }
    lines.extend(limits(machine));
    lines.extend(machine.notes.iter().map(|note| format!("Note: {note}")));
    lines
}

/// Limits of this process, where it may not use all
pub(super) fn limits(machine: &Machine) -> Vec<String> {
    let mut lines = Vec::new();
    let allowed = &machine.allowed_cpus;
    if !allowed.is_empty() && *allowed != machine.online_cpus {
        lines.push(format!(
            "This process may use {} of {}: {allowed}",
            allowed.len(),
            count(machine.online_cpus.len(), "CPU")
        ));
    }
    if let Some(quota) = machine.cpu_quota {
        lines.push(format!(
            "Its cgroup allows the time of {quota} CPU{}",
            if quota == 1.0 { "" } else { "s" }
        ));
    }
    if let Some(bytes) = machine.memory_limit_bytes {
        lines.push(format!(
            "Its cgroup allows {} of memory",
            memory_text(bytes)
        ));
    }
    let forbidden: Vec<String> = machine
        .nodes
        .iter()
        .filter(|node| {
            !machine.allowed_nodes.is_empty() && !machine.allowed_nodes.contains(&node.id)
        })
        .map(|node| node.id.to_string())
        .collect();
    if !forbidden.is_empty() {
        lines.push(format!(
            "It may have no memory of NUMA node {}",
            forbidden.join(", ")
        ));
    }
    lines
}

pub(super) fn count(number: usize, what: &str) -> String {
    if number == 1 {
        format!("{number} {what}")
    } else {
        format!("{number} {what}s")
    }
}

//! The paths between all devices as a matrix, in the style of `nvidia-smi topo -m`

use std::fmt::Write as _;

use crate::distance::{Class, Device, Distance, between, node_of_place, path_between, place};
use crate::model::Machine;

/// The matrix of GPUs, network cards and disks with its legend, and that of NUMA nodes
///
/// The legend has what occurs, with the bandwidth and latency to expect.
#[must_use]
pub fn matrix(machine: &Machine) -> String {
    let devices: Vec<Device> = Device::all(machine)
        .into_iter()
        .filter(|device| match device {
            Device::Disk(_) => {
                place(machine, device).is_some_and(|place| !place.pci_path.is_empty())
            }
            _ => true,
        })
        .collect();
    let mut text = String::new();
    if devices.is_empty() {
        text += "No GPUs, network cards or disks are known.\n";
    } else {
        text += &table(&device_rows(machine, &devices));
        text += &legend(machine, &devices);
    }
    if machine.nodes.len() > 1 && machine.nodes.iter().all(|node| !node.distances.is_empty()) {
        text += "\nDistances between NUMA nodes, as firmware tells them (10 is local)\n\n";
        text += &table(&node_rows(machine));
    }
    text
}

fn device_rows(machine: &Machine, devices: &[Device]) -> Vec<Vec<String>> {
    let mut header = vec![String::new()];
    header.extend(devices.iter().map(label));
    header.extend(["CPU Affinity".to_owned(), "NUMA Affinity".to_owned()]);
    let mut rows = vec![header];
    for one in devices {
        let mut row = vec![label(one)];
        row.extend(
            devices
                .iter()
                .map(|other| between(machine, one, other).class.short()),
        );
        let place = place(machine, one);
        let node = place.and_then(|place| node_of_place(machine, place));
        let cpus = place
            .map(|place| place.cpus.to_string())
            .unwrap_or_default();
        row.push(if cpus.is_empty() {
            let node = machine.nodes.iter().find(|other| Some(other.id) == node);
            node.map(|node| node.cpus.to_string()).unwrap_or_default()
        } else {
            cpus
        });
        row.push(node.map(|id| id.to_string()).unwrap_or_default());
        rows.push(row);
    }
    // A column that says nothing is left out
    for column in (0..2).rev() {
        let at = devices.len() + 1 + column;
        if rows[1..].iter().all(|row| row[at].is_empty()) {
            for row in &mut rows {
                row.remove(at);
            }
        }
    }
    rows
}

fn node_rows(machine: &Machine) -> Vec<Vec<String>> {
    let name = |id: u32| format!("node{id}");
    let mut header = vec![String::new()];
    header.extend(machine.nodes.iter().map(|node| name(node.id)));
    let mut rows = vec![header];
    for node in &machine.nodes {
        let mut row = vec![name(node.id)];
        row.extend(node.distances.iter().map(u32::to_string));
        row.resize(machine.nodes.len() + 1, String::new());
        rows.push(row);
    }
    rows
}

/// `GPU0` as `nvidia-smi` writes it, the others by name
fn label(device: &Device) -> String {
    match device {
        Device::Gpu(index) => format!("GPU{index}"),
        other => other.to_string(),
    }
}

fn legend(machine: &Machine, devices: &[Device]) -> String {
    let mut seen: Vec<Distance> = Vec::new();
    for (number, one) in devices.iter().enumerate() {
        for other in &devices[..number] {
            let path = path_between(machine, one, other);
            if !seen.iter().any(|known| known.class == path.class) {
                seen.push(path);
            }
        }
    }
    seen.sort_by_key(|path| path.class.rank());
    let mut rows = vec![vec!["X".to_owned(), Class::Same.words().to_owned()]];
    rows.extend(
        seen.iter()
            .filter(|path| path.class != Class::Same)
            .map(|path| {
                let words = match path.class {
                    Class::NvLink { links } => {
                        format!("{links} NVLink{}", if links == 1 { "" } else { "s" })
                    }
                    class => class.words().to_owned(),
                };
                vec![
                    path.class.short(),
                    words,
                    format!("{:.0} GB/s", path.bandwidth_bytes_per_s / 1e9),
                    format!("{:.1} µs", path.latency_s * 1e6),
                ]
            }),
    );
    let mut text = "\nLegend, with what to expect of each path in one direction\n\n".to_owned();
    for line in table(&rows).lines() {
        let _ = writeln!(text, "  {line}");
    }
    text
}

/// Columns apart by two blanks
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

//! The text of `nvidia-smi topo -m`, with or without that of `nvidia-smi -L`
//!
//! The table of a driver of any age: columns apart by tabs or by blanks, a header underlined by
//! escape sequences, NICs by name or by legend (`NIC0: mlx5_0`), columns of NUMA nodes or none.
//! `nvidia-smi -L` before or after it adds names, UUIDs and MIG instances. Facts that such a text
//! cannot tell (memory, interfaces, CPUs far from every GPU) stay empty, and a note says so.

mod error;
mod lines;

use std::collections::{BTreeMap, BTreeSet};

pub use error::{CellPosition, TableError};

use crate::cpuset::CpuSet;
use crate::model::{
    FORMAT, Gpu, GpuInstance, Machine, NumaNode, NvLink, PciPath, Place, RdmaDevice, ToldPath,
};
use lines::{Header, Listed, Trailing, gpu_index};

/// Reads the table in `text`
///
/// # Errors
///
/// [`TableError`] if there is no table, or a part of it is none: it names line, column and cell.
pub fn parse(text: &str) -> Result<Machine, TableError> {
    let text = lines::plain_text(text);
    let table = Table::parse(&text)?;
    let mut machine = Machine {
        format: FORMAT,
        sources: vec!["nvidia-smi topo -m".to_owned()],
        notes: table.notes.clone(),
        ..Machine::default()
    };
    let names = table.device_names(&text, &mut machine.notes)?;
    table.fill_devices(&names, &mut machine);
    table.fill_nodes(&mut machine);
    table.fill_pairs(&names, &mut machine);
    fill_listed_gpus(&text, &mut machine);
    machine.notes.push(
        "nvidia-smi tells no memory, interfaces, storage, or CPUs that are far from every GPU"
            .to_owned(),
    );
    Ok(machine)
}

/// Returns whether `text` has a line that the table begins with
#[must_use]
pub fn is_table(text: &str) -> bool {
    lines::plain_text(text).lines().any(begins_table)
}

fn begins_table(line: &str) -> bool {
    line.split_whitespace()
        .next()
        .is_some_and(|word| gpu_index(word).is_some())
}

/// The table as it is written
#[derive(Debug, Default)]
struct Table {
    /// Devices, in the order of their columns
    columns: Vec<String>,
    /// Link between two devices, by their columns, the lower first
    pairs: BTreeMap<(usize, usize), (Link, CellPosition)>,
    /// Rows, by the column of their device
    rows: BTreeMap<usize, Affinity>,
    notes: Vec<String>,
}

/// Content of a row right of its cells
#[derive(Debug, Default)]
struct Affinity {
    cpus: CpuSet,
    /// NUMA nodes
    nodes: CpuSet,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Link {
    NvLink(u32),
    Pci(PciPath),
}

impl Table {
    fn parse(text: &str) -> Result<Self, TableError> {
        let mut numbered = text.lines().enumerate().map(|(n, line)| (n + 1, line));
        let (header_line, header) = numbered
            .find(|(_, line)| begins_table(line))
            .ok_or(TableError::NoTable)?;
        if header.split_whitespace().any(|word| word == "X") {
            return Err(TableError::NoHeader { line: header_line });
        }
        let header = Header::of(header);
        let mut table = Self::of_header(header_line, &header)?;
        for (number, line) in numbered {
            match line.split_whitespace().next() {
                // Text that was copied from a page may have a blank line below the header
                None if table.rows.is_empty() => {}
                // or the end of a block of code
                None | Some("Legend:" | "```") => break,
                Some("MIG") => table.notes.push(format!(
                    "line {number}: the row of a MIG device is not read"
                )),
                Some(name) => table.read_row(number, name, line, &header)?,
            }
        }
        match (0..table.columns.len()).find(|&device| table.gpu(device) && !table.has_row(device)) {
            Some(missing) => Err(TableError::MissingRow {
                line: header_line,
                name: table.columns[missing].clone(),
            }),
            None => Ok(table),
        }
    }

    fn of_header(line: usize, header: &Header<'_>) -> Result<Self, TableError> {
        let mut table = Self::default();
        let mut known = BTreeSet::new();
        for (at, name) in header.devices.iter().enumerate() {
            // GPU0 and GPU00 are one
            if !known.insert(gpu_index(name).ok_or(name)) {
                return Err(TableError::DuplicateColumn {
                    line,
                    column: at + 2,
                    name: (*name).to_owned(),
                });
            }
            table.columns.push((*name).to_owned());
        }
        if !header.unknown.is_empty() {
            table.notes.push(format!(
                "line {line}: columns that are not known are not read: {}",
                header.unknown.join(" ")
            ));
        }
        Ok(table)
    }

    fn read_row(
        &mut self,
        line: usize,
        name: &str,
        text: &str,
        header: &Header<'_>,
    ) -> Result<(), TableError> {
        let name = name.to_owned();
        let Some(row) = self.columns.iter().position(|known| *known == name) else {
            return Err(TableError::UnknownRow { line, name });
        };
        if self.has_row(row) {
            return Err(TableError::DuplicateRow { line, name });
        }
        let (cells, rest) = lines::cells(text, self.columns.len(), header.trailing.len());
        if cells.len() < self.columns.len() {
            return Err(TableError::MissingCells {
                line,
                row: name,
                cells: cells.len(),
                columns: self.columns.len(),
                last: (*cells.last().unwrap_or(&"")).to_owned(),
            });
        }
        for (column, cell) in cells.into_iter().enumerate() {
            self.read_cell(line, row, column, cell)?;
        }
        if let Some(cell) = rest.get(header.trailing.len())
            && header.unknown.is_empty()
            && !cell.is_empty()
        {
            return Err(TableError::ExtraCell {
                line,
                row: name,
                cell: (*cell).to_owned(),
            });
        }
        let affinity = self.affinity(line, row, &rest, &header.trailing)?;
        self.rows.insert(row, affinity);
        Ok(())
    }

    fn read_cell(
        &mut self,
        line: usize,
        row: usize,
        column: usize,
        cell: &str,
    ) -> Result<(), TableError> {
        let position = CellPosition {
            line,
            column: column + 2,
            row: self.columns[row].clone(),
            header: self.columns[column].clone(),
            cell: cell.to_owned(),
        };
        let bad = |position, expected| Err(TableError::BadCell { position, expected });
        if row == column {
            return match cell {
                "X" => Ok(()),
                _ => bad(position, "X, where a device meets itself"),
            };
        }
        let Some(link) = Link::of(cell) else {
            return bad(position, "NV#, PIX, PXB, PHB, NODE or SYS");
        };
        if matches!(link, Link::NvLink(_)) && !(self.gpu(row) && self.gpu(column)) {
            return bad(position, "NV# between two GPUs only");
        }
        let pair = (row.min(column), row.max(column));
        match self.pairs.get(&pair) {
            Some((known, _)) if *known == link => {}
            Some((_, other)) => {
                return Err(TableError::Asymmetric {
                    position,
                    other_line: other.line,
                    other_cell: other.cell.clone(),
                });
            }
            None => {
                self.pairs.insert(pair, (link, position));
            }
        }
        Ok(())
    }

    fn affinity(
        &self,
        line: usize,
        row: usize,
        cells: &[&str],
        columns: &[Trailing],
    ) -> Result<Affinity, TableError> {
        let mut affinity = Affinity::default();
        for (at, (column, cell)) in columns.iter().zip(cells).enumerate() {
            if matches!(*cell, "" | "N/A") {
                continue;
            }
            let Ok(list) = cell.parse::<CpuSet>() else {
                return Err(TableError::BadCell {
                    position: CellPosition {
                        line,
                        column: self.columns.len() + at + 2,
                        row: self.columns[row].clone(),
                        header: column.name().to_owned(),
                        cell: (*cell).to_owned(),
                    },
                    expected: "a list such as 0-19,40-59, or N/A",
                });
            };
            match column {
                Trailing::CpuAffinity => affinity.cpus = list,
                Trailing::NumaAffinity => affinity.nodes = list,
                // Memory of a GPU that is a NUMA node: the model has memory of the host only
                Trailing::GpuNumaId => {}
            }
        }
        Ok(affinity)
    }

    fn has_row(&self, device: usize) -> bool {
        self.rows.contains_key(&device)
    }

    fn gpu(&self, device: usize) -> bool {
        gpu_index(&self.columns[device]).is_some()
    }

    /// Names of the devices as the model has them, in the order of the columns
    fn device_names(&self, text: &str, notes: &mut Vec<String>) -> Result<Vec<String>, TableError> {
        let mut names: Vec<String> = self
            .columns
            .iter()
            .map(|name| match gpu_index(name) {
                Some(index) => format!("gpu{index}"),
                None => name.clone(),
            })
            .collect();
        for (line, name, device) in lines::nic_legend(text) {
            let Some(at) = self.columns.iter().position(|known| known == name) else {
                continue;
            };
            if names.iter().any(|known| known == device) {
                return Err(TableError::BadLegend {
                    line,
                    name: device.to_owned(),
                });
            }
            names[at] = device.to_owned();
        }
        let unnamed: Vec<&str> = names
            .iter()
            .filter(|name| name.starts_with("NIC"))
            .map(String::as_str)
            .collect();
        if !unnamed.is_empty() {
            notes.push(format!("no legend names {}", unnamed.join(", ")));
        }
        Ok(names)
    }

    fn fill_devices(&self, names: &[String], machine: &mut Machine) {
        for (device, name) in names.iter().enumerate() {
            let place = match self.rows.get(&device) {
                Some(row) => Place {
                    node: row.only_node(),
                    cpus: row.cpus.clone(),
                    ..Place::default()
                },
                None => Place::default(),
            };
            match gpu_index(&self.columns[device]) {
                Some(index) => machine.gpus.push(Gpu {
                    index,
                    place,
                    ..Gpu::default()
                }),
                None => machine.rdma.push(RdmaDevice {
                    name: name.clone(),
                    place,
                    ..RdmaDevice::default()
                }),
            }
        }
        machine.gpus.sort_by_key(|gpu| gpu.index);
        for gpu in &machine.gpus {
            machine.online_cpus = machine.online_cpus.union(&gpu.place.cpus);
        }
        machine.allowed_cpus = machine.online_cpus.clone();
    }

    /// NUMA nodes that some GPU is in
    fn fill_nodes(&self, machine: &mut Machine) {
        let mut nodes = BTreeMap::<u32, CpuSet>::new();
        for row in self.rows.values() {
            if let Some(node) = row.only_node() {
                let cpus = nodes.entry(node).or_default();
                *cpus = cpus.union(&row.cpus);
            }
        }
        if nodes.is_empty() {
            machine
                .notes
                .push("this table tells of no GPU which NUMA node it is in".to_owned());
        }
        machine.nodes = nodes
            .into_iter()
            .map(|(id, cpus)| NumaNode {
                id,
                cpus,
                ..NumaNode::default()
            })
            .collect();
    }

    fn fill_pairs(&self, names: &[String], machine: &mut Machine) {
        for (&(a, b), (link, _)) in &self.pairs {
            match (
                link,
                gpu_index(&self.columns[a]),
                gpu_index(&self.columns[b]),
            ) {
                (Link::NvLink(links), Some(a), Some(b)) => machine.nvlinks.push(NvLink {
                    gpus: (a.min(b), a.max(b)),
                    links: *links,
                    version: None,
                }),
                (Link::Pci(path), ..) => machine.told_paths.push(ToldPath {
                    devices: (names[a].clone(), names[b].clone()),
                    path: *path,
                }),
                (Link::NvLink(_), ..) => unreachable!("refused when its cell was read"),
            }
        }
        machine.nvlinks.sort_by_key(|link| link.gpus);
    }
}

impl Affinity {
    /// The NUMA node, if it is one
    fn only_node(&self) -> Option<u32> {
        let mut nodes = self.nodes.iter();
        nodes.next().filter(|_| nodes.next().is_none())
    }
}

impl Link {
    /// Reads a cell; `SOC` and `PSB` are words of drivers before 2018
    fn of(cell: &str) -> Option<Self> {
        let path = match cell {
            "PIX" | "PSB" => PciPath::Pix,
            "PXB" => PciPath::Pxb,
            "PHB" => PciPath::Phb,
            "NODE" => PciPath::Node,
            "SYS" | "SOC" => PciPath::Sys,
            _ => {
                let links = cell.strip_prefix("NV")?;
                links.bytes().all(|b| b.is_ascii_digit()).then_some(())?;
                return links
                    .parse()
                    .ok()
                    .filter(|&links| links > 0)
                    .map(Self::NvLink);
            }
        };
        Some(Self::Pci(path))
    }
}

/// Adds what `nvidia-smi -L` tells, where the text has it
fn fill_listed_gpus(text: &str, machine: &mut Machine) {
    let mut current = None;
    for line in text.lines() {
        match Listed::of(line) {
            Some(Listed::Gpu { index, name, uuid }) => {
                current = machine.gpus.iter_mut().find(|gpu| gpu.index == index);
                if let Some(gpu) = &mut current {
                    gpu.name = name.to_owned();
                    gpu.uuid = Some(uuid.to_owned());
                }
            }
            Some(Listed::Instance { profile, uuid }) => {
                if let Some(gpu) = &mut current {
                    gpu.instances.push(GpuInstance {
                        uuid: uuid.to_owned(),
                        profile: profile.to_owned(),
                        memory_bytes: None,
                    });
                }
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;

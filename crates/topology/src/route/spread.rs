//! Many transfers between GPUs at once, spread over what joins them
//!
//! Transfers are cut into parts, and each part goes by the way that is free first. That is no optimum,
//! but one look at each way. Relays copy for free here: what their own memory does meanwhile is not
//! counted. The scheme is that of list scheduling (R. L. Graham, Bell System Technical Journal 45
//! (1966) 1563-1581).

use std::collections::HashMap;

use thiserror::Error;

use crate::distance::{Class, Device, class_between, node_of_place, path_between, usual};
use crate::model::Machine;

/// Bytes that are to go from one GPU to another
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Transfer {
    /// [`crate::model::Gpu::index`] of who has them
    pub from: u32,
    /// Of who gets them
    pub to: u32,
    /// How many
    pub bytes: u64,
}

/// A part of a transfer, and its way
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Share {
    /// Which transfer, by its place among them
    pub transfer: usize,
    /// The GPUs on its way, both ends included
    pub gpus: Vec<u32>,
    /// How many bytes go there
    pub bytes: u64,
}

/// Transfers, spread over ways
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// The parts
    pub shares: Vec<Share>,
    /// Seconds until all are there, if each link goes on at its bandwidth
    pub seconds: f64,
}

/// A machine lacks a GPU
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("transfer {transfer} is from or to GPU {gpu}, which the machine does not have")]
pub struct SpreadError {
    /// Which transfer
    pub transfer: usize,
    /// The GPU
    pub gpu: u32,
}

/// Sends each transfer by the direct way alone
///
/// # Errors
///
/// [`SpreadError`] for a GPU that the machine lacks.
pub fn direct(machine: &Machine, transfers: &[Transfer]) -> Result<Spread, SpreadError> {
    send(machine, transfers, |transfer, _| {
        vec![vec![transfer.from, transfer.to]]
    })
}

/// Sends each transfer by the direct way, by relays, or by several of them
///
/// # Errors
///
/// [`SpreadError`] for a GPU that the machine lacks.
pub fn spread(machine: &Machine, transfers: &[Transfer]) -> Result<Spread, SpreadError> {
    send(machine, transfers, |transfer, links| {
        let (from, to) = (Device::Gpu(transfer.from), Device::Gpu(transfer.to));
        let relays = super::relays(links.machine, &from, &to);
        let by_relay = relays.into_iter().filter_map(|relay| match relay {
            Device::Gpu(relay) => Some(vec![transfer.from, relay, transfer.to]),
            _ => None,
        });
        let mut ways = vec![vec![transfer.from, transfer.to]];
        ways.extend(by_relay);
        ways
    })
}

fn send(
    machine: &Machine,
    transfers: &[Transfer],
    ways_of: impl Fn(&Transfer, &Links<'_>) -> Vec<Vec<u32>>,
) -> Result<Spread, SpreadError> {
    for (number, transfer) in transfers.iter().enumerate() {
        let is_missing = |gpu: &u32| machine.gpus.iter().all(|other| other.index != *gpu);
        if let Some(gpu) = [transfer.from, transfer.to].into_iter().find(is_missing) {
            return Err(SpreadError {
                transfer: number,
                gpu,
            });
        }
    }
    let mut links = Links {
        machine,
        busy_s: HashMap::new(),
    };
    let ways: Vec<_> = transfers
        .iter()
        .map(|transfer| ways_of(transfer, &links))
        .collect();
    let mut shares: Vec<Share> = Vec::new();
    // By turns: otherwise the first transfer would take the best ways for all its parts.
    for part in 0..PARTS {
        for (number, transfer) in transfers.iter().enumerate() {
            let bytes = part_of(transfer.bytes, part);
            let free_first = ways[number].iter().min_by(|one, other| {
                let (one, other) = (links.free_after(one, bytes), links.free_after(other, bytes));
                one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
            });
            let Some(way) = free_first else { continue };
            links.take(way, bytes);
            let is_known = |share: &&mut Share| share.transfer == number && share.gpus == *way;
            match shares.iter_mut().find(is_known) {
                Some(share) => share.bytes += bytes,
                None => shares.push(Share {
                    transfer: number,
                    gpus: way.clone(),
                    bytes,
                }),
            }
        }
    }
    let seconds = links.busy_s.values().copied().fold(0.0, f64::max);
    Ok(Spread { shares, seconds })
}

/// The bytes of one of [`PARTS`] parts; all of them add up
fn part_of(bytes: u64, part: u64) -> u64 {
    bytes / PARTS + u64::from(part < bytes % PARTS)
}

/// State that all transfers share
struct Links<'m> {
    machine: &'m Machine,
    /// How long each is busy with what it was given
    busy_s: HashMap<Wire, f64>,
}

/// Something that bytes go through, in one direction
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Wire {
    /// NVLinks from one GPU to another
    NvLink(u32, u32),
    /// From a GPU to its switch
    Up(u32),
    /// From its switch to a GPU
    Down(u32),
    /// From one socket to another
    Sockets(Option<u32>, Option<u32>),
}

impl Links<'_> {
    /// When a way is free after so many bytes, and how much work that is for all links
    fn free_after(&self, way: &[u32], bytes: u64) -> (f64, f64) {
        let (mut latest_s, mut work_s) = (0.0_f64, 0.0);
        for (wire, bytes_per_s) in self.wires(way) {
            let takes_s = bytes as f64 / bytes_per_s;
            latest_s = latest_s.max(self.busy_s.get(&wire).copied().unwrap_or(0.0) + takes_s);
            work_s += takes_s;
        }
        (latest_s, work_s)
    }

    fn take(&mut self, way: &[u32], bytes: u64) {
        for (wire, bytes_per_s) in self.wires(way) {
            *self.busy_s.entry(wire).or_default() += bytes as f64 / bytes_per_s;
        }
    }

    /// Wires of a way, and the speed of each of them
    fn wires(&self, way: &[u32]) -> Vec<(Wire, f64)> {
        let mut wires = Vec::new();
        for hop in way.windows(2) {
            let (from, to) = (hop[0], hop[1]);
            let ends = (Device::Gpu(from), Device::Gpu(to));
            let path = path_between(self.machine, &ends.0, &ends.1);
            match class_between(self.machine, &ends.0, &ends.1) {
                Class::Same => {}
                Class::NvLink { .. } => {
                    wires.push((Wire::NvLink(from, to), path.bandwidth_bytes_per_s));
                }
                class => {
                    let slot = usual(Class::Pix, false, None).bandwidth_bytes_per_s;
                    wires.push((Wire::Up(from), slot));
                    wires.push((Wire::Down(to), slot));
                    if class == Class::Sys {
                        let between = Wire::Sockets(self.socket(from), self.socket(to));
                        wires.push((between, path.bandwidth_bytes_per_s));
                    }
                }
            }
        }
        wires
    }

    /// Node that represents the socket of a GPU: its NUMA node, else the first CPU near it
    fn socket(&self, index: u32) -> Option<u32> {
        let gpu = self.machine.gpus.iter().find(|gpu| gpu.index == index)?;
        node_of_place(self.machine, &gpu.place).or_else(|| gpu.place.cpus.iter().next())
    }
}

/// Into how many parts a transfer is cut
const PARTS: u64 = 32;

//! Consistency check: the parts of a machine have to fit together
//!
//! Readers build machines that do; JSON may come from anywhere, and what is planned for a machine
//! relies on it.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::cpuset::CpuSet;
use crate::model::{FORMAT, Machine};

impl Machine {
    /// Checks that the parts of the machine fit together
    ///
    /// # Errors
    ///
    /// [`Misfit`]: the first part that does not fit.
    pub fn check(&self) -> Result<(), Misfit> {
        if self.format != FORMAT {
            return Err(Misfit::Version {
                format: self.format,
            });
        }
        self.check_cpus()?;
        self.check_nodes()?;
        self.check_gpus()?;
        self.check_names()?;
        match self.cpu_quota {
            Some(quota) if !(quota > 0.0 && quota.is_finite()) => Err(Misfit::Quota { quota }),
            _ => Ok(()),
        }
    }

    fn check_cpus(&self) -> Result<(), Misfit> {
        let online = |what: &'static str, cpus: &CpuSet| {
            if cpus.is_subset(&self.online_cpus) {
                return Ok(());
            }
            Err(Misfit::Offline {
                what,
                cpus: cpus.difference(&self.online_cpus),
            })
        };
        online("allowed_cpus", &self.allowed_cpus)?;
        let groups = [
            ("nodes", self.nodes.iter().map(|n| &n.cpus).collect()),
            (
                "l3_domains",
                self.l3_domains.iter().map(|d| &d.cpus).collect(),
            ),
            (
                "cores",
                self.cores.iter().map(|c| &c.cpus).collect::<Vec<_>>(),
            ),
        ];
        for (what, groups) in groups {
            let mut seen = BTreeSet::new();
            for cpus in groups {
                online(what, cpus)?;
                if let Some(cpu) = cpus.iter().find(|&cpu| !seen.insert(cpu)) {
                    return Err(Misfit::Twice {
                        what,
                        name: cpu.to_string(),
                    });
                }
            }
        }
        Ok(())
    }

    fn check_nodes(&self) -> Result<(), Misfit> {
        let ids: Vec<u32> = self.nodes.iter().map(|node| node.id).collect();
        unique("nodes", ids.iter())?;
        unique("allowed_nodes", self.allowed_nodes.iter())?;
        if let Some(id) = self.allowed_nodes.iter().find(|id| !ids.contains(id)) {
            return Err(Misfit::Unknown {
                what: "allowed_nodes",
                name: id.to_string(),
            });
        }
        for node in &self.nodes {
            let distances = node.distances.len();
            if distances != 0 && distances != ids.len() {
                return Err(Misfit::Distances {
                    node: node.id,
                    distances,
                    nodes: ids.len(),
                });
            }
        }
        Ok(())
    }

    fn check_gpus(&self) -> Result<(), Misfit> {
        for (what, number, most) in [
            ("gpus", self.gpus.len(), GPUS_MAX),
            ("told_paths", self.told_paths.len(), TOLD_PATHS_MAX),
        ] {
            if number > most {
                return Err(Misfit::TooMany { what, number, most });
            }
        }
        unique("gpus", self.gpus.iter().map(|gpu| gpu.index))?;
        unique("gpus", self.gpus.iter().filter_map(|gpu| gpu.uuid.as_ref()))?;
        unique(
            "nvlinks",
            self.nvlinks.iter().map(|link| PairName(link.gpus)),
        )?;
        for link in &self.nvlinks {
            let (a, b) = link.gpus;
            let known = |index: u32| self.gpus.iter().any(|gpu| gpu.index == index);
            if a >= b || link.links == 0 || !known(a) || !known(b) {
                return Err(Misfit::Unknown {
                    what: "nvlinks",
                    name: PairName(link.gpus).to_string(),
                });
            }
        }
        Ok(())
    }

    fn check_names(&self) -> Result<(), Misfit> {
        unique("nics", self.nics.iter().map(|nic| &nic.name))?;
        unique("rdma", self.rdma.iter().map(|device| &device.name))?;
        let gpus: Vec<String> = self
            .gpus
            .iter()
            .map(|g| format!("gpu{}", g.index))
            .collect();
        let names: BTreeSet<&str> = gpus
            .iter()
            .chain(self.nics.iter().map(|nic| &nic.name))
            .chain(self.rdma.iter().map(|device| &device.name))
            .map(String::as_str)
            .collect();
        for told in &self.told_paths {
            for name in [&told.devices.0, &told.devices.1] {
                if !names.contains(name.as_str()) {
                    return Err(Misfit::Unknown {
                        what: "told_paths",
                        name: name.clone(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// Far above what one host has (16 in a DGX-2), so that a text cannot ask for time without end: to
/// draw a machine looks for the path between each two devices
const GPUS_MAX: usize = 256;
/// One between each two of so many devices
const TOLD_PATHS_MAX: usize = GPUS_MAX * (GPUS_MAX - 1) / 2;

fn unique<T: Ord + ToString>(
    what: &'static str,
    names: impl Iterator<Item = T>,
) -> Result<(), Misfit> {
    let mut seen = BTreeSet::new();
    for name in names {
        let text = name.to_string();
        if !seen.insert(name) {
            return Err(Misfit::Twice { what, name: text });
        }
    }
    Ok(())
}

/// Two GPUs, for people
#[derive(Debug, Eq, Ord, PartialEq, PartialOrd)]
struct PairName((u32, u32));

impl std::fmt::Display for PairName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} and {}", self.0.0, self.0.1)
    }
}

/// A part of a machine that does not fit the others
///
/// The fault is that of who wrote the machine: trying again does not help.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum Misfit {
    /// A machine of another version of the model
    #[error("a machine in format {format}, and this version reads format {FORMAT}; record it anew")]
    Version {
        /// Version that the machine says it has
        format: u32,
    },
    /// CPUs that are not online
    #[error("{what}: CPUs {cpus} are not in online_cpus")]
    Offline {
        /// Field of the machine
        what: &'static str,
        /// The CPUs
        cpus: CpuSet,
    },
    /// Something is there twice that may be there once
    #[error("{what}: {name} is there twice")]
    Twice {
        /// Field of the machine
        what: &'static str,
        /// Its number or name
        name: String,
    },
    /// More of something than one host has
    #[error("{what}: {number} of them, and at most {most} are read: this is not one host")]
    TooMany {
        /// Field of the machine
        what: &'static str,
        /// How many there are
        number: usize,
        /// How many may be there
        most: usize,
    },
    /// Something names what is not there, or not in order
    #[error("{what}: {name}: not of this machine, not in order, or without links")]
    Unknown {
        /// Field of the machine
        what: &'static str,
        /// Its number or name
        name: String,
    },
    /// Not a distance for each node
    #[error("node {node} has {distances} distances for {nodes} nodes")]
    Distances {
        /// Number of the node
        node: u32,
        /// Distances it has
        distances: usize,
        /// Nodes there are
        nodes: usize,
    },
    /// A quota that is no amount of CPU time
    #[error("cpu_quota is {quota}, expected a positive number of CPUs")]
    Quota {
        /// The quota
        quota: f64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Core, Gpu, NumaNode, NvLink, PciPath, ToldPath};

    fn machine() -> Machine {
        let cpus = |list: &str| list.parse::<CpuSet>().expect("a list");
        Machine {
            format: FORMAT,
            online_cpus: cpus("0-3"),
            allowed_cpus: cpus("0-1"),
            allowed_nodes: vec![0],
            nodes: vec![NumaNode {
                cpus: cpus("0-3"),
                distances: vec![10],
                ..NumaNode::default()
            }],
            cores: vec![Core {
                package: 0,
                cpus: cpus("0-1"),
            }],
            gpus: (0..2)
                .map(|index| Gpu {
                    index,
                    ..Gpu::default()
                })
                .collect(),
            nvlinks: vec![NvLink {
                gpus: (0, 1),
                links: 2,
                version: None,
            }],
            ..Machine::default()
        }
    }

    #[test]
    fn a_machine_that_fits_passes() {
        assert_eq!(machine().check(), Ok(()));
    }

    #[test]
    fn each_misfit_names_its_field() {
        type Spoil = fn(&mut Machine);
        let misfits: [(&str, Spoil); 11] = [
            ("format 7", |m| m.format = 7),
            ("allowed_cpus", |m| m.allowed_cpus = CpuSet::from_iter([9])),
            ("cores", |m| m.cores.push(m.cores[0].clone())),
            ("nodes: 0 is there twice", |m| {
                let id = m.nodes[0].id;
                m.nodes.push(NumaNode {
                    id,
                    ..NumaNode::default()
                });
            }),
            ("allowed_nodes", |m| m.allowed_nodes.push(5)),
            ("2 distances", |m| m.nodes[0].distances.push(20)),
            ("gpus", |m| m.gpus[1].index = 0),
            ("gpus: 302 of them, and at most 256", |m| {
                m.gpus.extend((2..302).map(|index| Gpu {
                    index,
                    ..Gpu::default()
                }));
            }),
            ("told_paths: 40000 of them", |m| {
                m.told_paths = vec![
                    ToldPath {
                        devices: ("gpu0".to_owned(), "gpu1".to_owned()),
                        path: PciPath::Pix,
                    };
                    40_000
                ];
            }),
            ("0 and 4", |m| m.nvlinks[0].gpus = (0, 4)),
            ("cpu_quota", |m| m.cpu_quota = Some(-1.0)),
        ];
        for (text, spoil) in misfits {
            let mut machine = machine();
            spoil(&mut machine);
            let error = machine.check().expect_err(text).to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}

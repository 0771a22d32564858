//! Limits by the control groups of this process: CPUs, memory nodes, CPU time, memory
//!
//! Version 1, version 2 and both at once; in a container with a namespace of groups or without.
//! CPU time and memory are bounded by every group up to the root, so the least counts.

use super::tree::Tree;
use crate::cpuset::CpuSet;

/// Groups of this process that can be seen
#[derive(Debug)]
pub(super) struct Limits<'a> {
    tree: &'a Tree,
    mounts: Vec<Mount>,
    /// Lines of `/proc/self/cgroup`: controllers (none for version 2) and path
    groups: Vec<(Vec<String>, String)>,
}

/// Where a hierarchy of groups is mounted
#[derive(Debug)]
struct Mount {
    /// Group that the mount point shows
    root: String,
    /// Mount point, without a slash in front
    point: String,
    /// Controllers of version 1; `None` for version 2
    controllers: Option<Vec<String>>,
}

/// Version of a hierarchy, which names its files
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Version {
    One,
    Two,
}

impl<'a> Limits<'a> {
    pub(super) fn new(tree: &'a Tree) -> Self {
        let mounts = tree.text("proc/self/mountinfo").unwrap_or_default();
        let groups = tree.text("proc/self/cgroup").unwrap_or_default();
        let group = |line: &str| {
            let mut parts = line.splitn(3, ':');
            let controllers = parts.nth(1)?.split(',').map(str::to_owned).collect();
            Some((controllers, parts.next()?.to_owned()))
        };
        let limits = Self {
            tree,
            mounts: mounts.lines().filter_map(Mount::of).collect(),
            groups: groups.lines().filter_map(group).collect(),
        };
        if limits.mounts.is_empty() && !limits.groups.is_empty() {
            tree.note("control groups are hidden: quotas and limits are not known".to_owned());
        }
        limits
    }

    /// CPUs of the cpuset, if there is one
    pub(super) fn cpus(&self) -> Option<CpuSet> {
        self.nearest_list("cpus")
    }

    /// Memory nodes of the cpuset, if there is one
    pub(super) fn memory_nodes(&self) -> Option<CpuSet> {
        self.nearest_list("mems")
    }

    /// CPU time, in CPUs
    pub(super) fn cpu_quota(&self) -> Option<f64> {
        let (version, folders) = self.folders("cpu")?;
        let quotas = folders.iter().filter_map(|folder| match version {
            Version::Two => {
                let max = self.tree.text(&format!("{folder}/cpu.max"))?;
                let (quota, period) = max.split_once(' ')?;
                quota_of(quota, period)
            }
            Version::One => quota_of(
                &self.tree.text(&format!("{folder}/cpu.cfs_quota_us"))?,
                &self.tree.text(&format!("{folder}/cpu.cfs_period_us"))?,
            ),
        });
        quotas.min_by(f64::total_cmp)
    }

    /// Memory, in bytes, if it is bounded below `host_bytes`
    pub(super) fn memory_bytes(&self, host_bytes: Option<u64>) -> Option<u64> {
        let (version, folders) = self.folders("memory")?;
        let file = match version {
            Version::Two => "memory.max",
            Version::One => "memory.limit_in_bytes",
        };
        let host_bytes = host_bytes.unwrap_or(UNBOUNDED_BYTES);
        folders
            .iter()
            .filter_map(|folder| self.tree.text(&format!("{folder}/{file}"))?.parse().ok())
            .filter(|&bytes| bytes < host_bytes)
            .min()
    }

    /// The list that holds for this process: of its group, or of the nearest one above that has it
    fn nearest_list(&self, what: &str) -> Option<CpuSet> {
        let (version, folders) = self.folders("cpuset")?;
        let files = match version {
            Version::Two => vec![format!("cpuset.{what}.effective")],
            Version::One => vec![format!("cpuset.effective_{what}"), format!("cpuset.{what}")],
        };
        folders
            .iter()
            .flat_map(|folder| files.iter().map(move |file| format!("{folder}/{file}")))
            .filter_map(|path| self.tree.cpus(&path))
            .find(|list| !list.is_empty())
    }

    /// Folders of the groups for `controller`, from that of this process up
    fn folders(&self, controller: &str) -> Option<(Version, Vec<String>)> {
        let has = |controllers: &[String]| controllers.iter().any(|known| known == controller);
        let one = self.groups.iter().find(|(controllers, _)| has(controllers));
        let (version, path) = match one {
            Some((_, path)) => (Version::One, path),
            None => {
                let two = |(controllers, _): &&(Vec<String>, String)| {
                    controllers.iter().all(String::is_empty)
                };
                (Version::Two, &self.groups.iter().find(two)?.1)
            }
        };
        let mount = self.mounts.iter().find(|mount| match version {
            Version::One => mount.controllers.as_deref().is_some_and(has),
            Version::Two => mount.controllers.is_none(),
        });
        Some((version, mount?.folders(self.tree, path)))
    }
}

impl Mount {
    /// Reads a line of `/proc/self/mountinfo`: proc(5)
    fn of(line: &str) -> Option<Self> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let mut kind = kind.split(' ');
        let controllers = match kind.next()? {
            "cgroup2" => None,
            "cgroup" => Some(kind.nth(1)?.split(',').map(str::to_owned).collect()),
            _ => return None,
        };
        Some(Self {
            root: root.to_owned(),
            point: point.trim_start_matches('/').to_owned(),
            controllers,
        })
    }

    /// Folders of the group at `path` and of those above it that this mount shows
    fn folders(&self, tree: &Tree, path: &str) -> Vec<String> {
        // Outside the mount or outside the namespace (`/../..`): the mount point is all there is
        let below = path
            .strip_prefix(self.root.trim_end_matches('/'))
            .filter(|below| below.is_empty() || below.starts_with('/'))
            .filter(|below| !below.split('/').any(|part| part == ".."))
            .unwrap_or("");
        let mut folder = format!("{}{below}", self.point);
        if !tree.exists(&folder) {
            folder.clone_from(&self.point);
        }
        let mut folders = Vec::new();
        let mut rest = folder.trim_end_matches('/');
        while rest.len() > self.point.len() {
            folders.push(rest.to_owned());
            rest = rest.rsplit_once('/').map_or("", |(above, _)| above);
        }
        folders.push(self.point.clone());
        folders
    }
}

/// CPUs of a quota and a period in microseconds; none if the quota is `max` or -1
fn quota_of(quota: &str, period: &str) -> Option<f64> {
    let quota: u32 = quota.trim().parse().ok()?;
    let period: u32 = period.trim().parse().ok()?;
    (quota > 0 && period > 0).then(|| f64::from(quota) / f64::from(period))
}

/// Version 1 writes a number near 2**63 where there is no bound
const UNBOUNDED_BYTES: u64 = 1 << 60;

//! Shortage of memory on the host: pressure stalls, available memory, control groups
//!
//! Reads the kernel's files about the host and about the control groups of this process, versions 1
//! and 2, where they are mounted at the usual place. A missing file counts as no shortage.

use std::fs;
use std::path::{Path, PathBuf};

/// Share of time in which some task waited for memory, over ten seconds, from which memory is
/// short; in per cent
const STALLED_PERCENT_MIN: f64 = 10.0;
/// Memory is short where less than this part is left: one in so many bytes
const LEFT_PARTS: u64 = 20;
/// Above this a limit of a control group, version 1, is none
const UNLIMITED_BYTES: u64 = 1 << 60;

/// Files that tell how much memory is left
#[derive(Debug)]
pub(crate) struct HostMemory {
    /// `/proc`, but for tests
    proc: PathBuf,
    /// Folders of the control groups of this process, from the innermost to the root
    groups: Vec<Group>,
}

/// One control group that may have a limit
#[derive(Debug)]
struct Group {
    folder: PathBuf,
    is_version_2: bool,
}

impl HostMemory {
    /// Finds the control groups of this process
    pub(crate) fn new() -> Self {
        Self::at(Path::new("/"))
    }

    /// As [`new`](Self::new), below another root
    fn at(root: &Path) -> Self {
        let proc = root.join("proc");
        let groups = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        Self {
            groups: groups_of(&groups, &root.join("sys/fs/cgroup")),
            proc,
        }
    }

    /// Returns whether the host, or a control group of this process, has hardly any memory left
    pub(crate) fn is_short(&self) -> bool {
        let text = |name: &str| fs::read_to_string(self.proc.join(name)).unwrap_or_default();
        is_stalled(&text("pressure/memory"))
            || is_used_up(&text("meminfo"))
            || self.groups.iter().any(Group::is_full)
    }
}

impl Group {
    fn is_full(&self) -> bool {
        let names = if self.is_version_2 {
            ["memory.max", "memory.current", "inactive_file "]
        } else {
            [
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file ",
            ]
        };
        let text = |name: &str| fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        // "max" is no number.
        let Ok(limit_bytes) = text(names[0]).trim().parse::<u64>() else {
            return false;
        };
        if limit_bytes >= UNLIMITED_BYTES {
            return false;
        }
        let used_bytes = text(names[1]).trim().parse::<u64>().unwrap_or(0);
        if used_bytes < limit_bytes - limit_bytes / LEFT_PARTS {
            return false;
        }
        // The kernel drops cached pages of files before it runs out.
        let cached_bytes = number_after(&text("memory.stat"), names[2]).unwrap_or(0);
        used_bytes.saturating_sub(cached_bytes) >= limit_bytes - limit_bytes / LEFT_PARTS
    }
}

/// Lists the folders of the groups that `/proc/self/cgroup` names, and of those above them
fn groups_of(lines: &str, mounted: &Path) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in lines.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let is_version_2 = controllers.is_empty();
        let root = match is_version_2 {
            true => mounted.to_owned(),
            false if controllers.split(',').any(|name| name == "memory") => mounted.join("memory"),
            false => continue,
        };
        // In a container the path may be that of the host, which does not exist here.
        let mut folder = root.join(path.trim_start_matches('/'));
        while folder.starts_with(&root) {
            if folder.is_dir() {
                groups.push(Group {
                    folder: folder.clone(),
                    is_version_2,
                });
            }
            folder.pop();
        }
    }
    groups
}

/// Returns whether tasks wait for memory: `/proc/pressure/memory`, from Linux 4.20
fn is_stalled(pressure: &str) -> bool {
    let average = pressure
        .lines()
        .find_map(|line| line.strip_prefix("some avg10="))
        .and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    average.is_some_and(|percent| percent >= STALLED_PERCENT_MIN)
}

/// Returns whether the host has hardly any memory left: `/proc/meminfo`
fn is_used_up(meminfo: &str) -> bool {
    let number = |name| number_after(meminfo, name);
    match (number("MemTotal:"), number("MemAvailable:")) {
        (Some(total), Some(available)) => available < total / LEFT_PARTS,
        _ => false,
    }
}

/// Number in the line that begins with `name`
fn number_after(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

    use super::*;

    #[test]
    fn waiting_tasks_tell_of_a_shortage() {
        let pressure = |share: &str| {
            format!("some avg10={share} avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 total=1\n")
        };
        assert!(!is_stalled(&pressure("0.00")));
        assert!(!is_stalled(&pressure("9.99")));
        assert!(is_stalled(&pressure("10.50")));
        assert!(!is_stalled(""));
    }

    #[test]
    fn a_twentieth_of_the_host_is_left() {
        let meminfo = |kib| format!("MemTotal:   1000 kB\nMemFree: 1 kB\nMemAvailable: {kib} kB\n");
        assert!(!is_used_up(&meminfo(50)));
        assert!(is_used_up(&meminfo(49)));
        assert!(!is_used_up(""));
    }

    #[test]
    fn control_groups_of_both_versions_are_read_up_to_the_root() {
        let root = std::env::temp_dir().join(format!("backhaul-groups-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "proc/self/cgroup",
            "9:cpu:/a\n4:memory:/one/job\n0::/two/job\n",
        );
        let one = "sys/fs/cgroup/memory/one/memory";
        let two = "sys/fs/cgroup/two/job/memory";
        write(&format!("{two}.max"), "max\n");
        write(&format!("{one}.limit_in_bytes"), "9223372036854771712\n");
        let is_short = || HostMemory::at(&root).is_short();
        assert!(!is_short());
        write(&format!("{two}.max"), "1000\n");
        write(&format!("{two}.current"), "949\n");
        assert!(!is_short());
        write(&format!("{two}.current"), "990\n");
        assert!(is_short());
        write(&format!("{two}.stat"), "anon 1\ninactive_file 100\n");
        assert!(!is_short());
        write(&format!("{one}.limit_in_bytes"), "1000\n");
        write(&format!("{one}.usage_in_bytes"), "960\n");
        assert!(is_short());
        fs::remove_dir_all(&root).unwrap();
    }
}

//! Small files below a root folder: `/`, or where a machine was recorded

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::cpuset::CpuSet;
use crate::read::mask;

/// A folder with `sys` and `proc` in it
///
/// Paths are given from there, without a slash in front. A missing file is `None`; a file that is
/// there and makes no sense is `None` and a note.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    notes: RefCell<Vec<String>>,
}

impl Tree {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            notes: RefCell::default(),
        }
    }

    /// Adds a note, once
    pub(super) fn note(&self, note: String) {
        let mut notes = self.notes.borrow_mut();
        if !notes.contains(&note) {
            notes.push(note);
        }
    }

    pub(super) fn into_notes(self) -> Vec<String> {
        self.notes.into_inner()
    }

    /// Content of a file, without blanks around it, and without the zero that some releases of
    /// Linux end lists with
    pub(super) fn text(&self, path: &str) -> Option<String> {
        self.start(path, FILE_BYTES_MAX)
    }

    /// The first bytes of a file, likewise
    pub(super) fn start(&self, path: &str, bytes: u64) -> Option<String> {
        let mut content = Vec::new();
        File::open(self.root.join(path))
            .and_then(|file| file.take(bytes).read_to_end(&mut content))
            .ok()?;
        let text = String::from_utf8_lossy(&content);
        Some(
            text.trim_matches(|c: char| c.is_whitespace() || c == '\0')
                .to_owned(),
        )
    }

    /// A number in a file
    pub(super) fn number<N: FromStr>(&self, path: &str) -> Option<N> {
        let text = self.text(path)?;
        let number = text.parse().ok();
        if number.is_none() {
            self.note(format!("/{path}: not a number in range: {text:?}"));
        }
        number
    }

    /// A list of CPUs, or of NUMA nodes, in a file
    pub(super) fn cpus(&self, path: &str) -> Option<CpuSet> {
        let cpus = self.text(path)?.parse();
        match cpus {
            Ok(cpus) => Some(cpus),
            Err(error) => {
                self.note(format!("/{path}: {error}"));
                None
            }
        }
    }

    /// A list of CPUs in a file, or a mask in another: Linux had masks first, and
    /// `hwloc-gather-topology` records them alone
    pub(super) fn cpus_or_mask(&self, list: &str, mask: &str) -> Option<CpuSet> {
        self.cpus(list).or_else(|| mask::parse(&self.text(mask)?))
    }

    /// Names of the entries of a folder, in order; none if there is no folder
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.root.join(path)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Where a symbolic link leads, as it is written
    pub(super) fn link(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.root.join(path)).ok()?;
        target.into_os_string().into_string().ok()
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }
}

/// The largest file of interest, `/proc/cpuinfo` of a host with 1,000 CPUs, has about 1.5 MB
const FILE_BYTES_MAX: u64 = 8 << 20;

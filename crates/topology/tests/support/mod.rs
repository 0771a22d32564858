//! Recorded trees, unpacked

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A tree of files, gone when it is dropped
pub(crate) struct Unpacked {
    root: PathBuf,
}

impl Unpacked {
    /// Unpacks a text whose lines are `path: a line of that file`, `path -> target` of a link, or
    /// `# a comment`
    ///
    /// `name` is that of the folder, and must be of this test alone.
    pub(crate) fn new(name: &str, text: &str) -> Self {
        let tests = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let root = tests.join(format!("{name}-{}", std::process::id()));
        let unpacked = Self { root };
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some((path, target)) = line.split_once(" -> ") {
                let link = unpacked.path(path);
                symlink(target, link).expect("no file is there");
            } else {
                let (path, content) = line.split_once(": ").expect(line);
                let path = unpacked.path(path);
                let before = fs::read_to_string(&path).unwrap_or_default();
                fs::write(path, format!("{before}{content}\n")).expect("a path of a file");
            }
        }
        unpacked
    }

    /// The folder with `sys` and `proc`
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Where `path` is, with the folders above it made
    fn path(&self, path: &str) -> PathBuf {
        let path = self.root.join(path);
        let folder = path.parent().expect("below the root");
        fs::create_dir_all(folder).expect("folders can be made");
        path
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        // Nothing is lost where it fails: the folder is below that of the build
        let _ = fs::remove_dir_all(&self.root);
    }
}

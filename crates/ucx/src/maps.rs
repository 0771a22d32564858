//! Which libraries of UCX are in this process, as the kernel tells.

use std::path::{Path, PathBuf};

/// The files of UCX's main libraries that are mapped, each once
pub(crate) fn mapped() -> Vec<PathBuf> {
    // Without /proc nothing is known to be loaded, and the loader itself is asked.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    libraries_in(&maps)
}

/// Libraries that a text in the form of `/proc/self/maps` names
fn libraries_in(maps: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for line in maps.lines() {
        // The path is the rest of the line behind five fields, from its first slash on.
        let Some(path) = line.find('/').map(|at| Path::new(&line[at..])) else {
            continue;
        };
        if main_library(path).is_some() && !found.iter().any(|other| other == path) {
            found.push(path.to_owned());
        }
    }
    found
}

/// Which of UCX's main libraries a file is: the letter that tells them apart
///
/// Not its modules, which live in a folder beside them and are called `libuct_cma.so` and the like.
pub(crate) fn main_library(path: &Path) -> Option<char> {
    let name = path.file_name()?.to_str()?;
    let mut rest = name.strip_prefix("libuc")?.chars();
    let letter = rest.next().filter(|letter| "pstm".contains(*letter))?;
    // Some wheels put a digest of their own between the name and the ending.
    let rest = rest.as_str();
    (rest.starts_with(".so") || (rest.starts_with('-') && rest.contains(".so"))).then_some(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_libraries_are_found_once_and_modules_are_not() {
        let maps = "\
7f00-7f01 r-xp 00000000 08:01 17 /a folder/lib/libucp.so.0.0.0
7f01-7f02 rw-p 00001000 08:01 17 /a folder/lib/libucp.so.0.0.0
7f02-7f03 r-xp 00000000 08:01 18 /a folder/lib/libucs.so
7f03-7f04 r-xp 00000000 08:01 19 /a folder/lib/ucx/libuct_cma.so.0
7f04-7f05 r-xp 00000000 08:01 20 /a folder/lib/libucs_signal.so.0
7f05-7f06 r-xp 00000000 08:01 21 /other/libucm-1a2b3c4d.so.0.0.0
7f06-7f07 rw-p 00000000 00:00 0
7f07-7f08 rw-p 00000000 00:00 0 [heap]
";
        let found = libraries_in(maps);
        let found: Vec<_> = found.iter().filter_map(|path| path.to_str()).collect();
        assert_eq!(
            found,
            [
                "/a folder/lib/libucp.so.0.0.0",
                "/a folder/lib/libucs.so",
                "/other/libucm-1a2b3c4d.so.0.0.0",
            ]
        );
    }
}

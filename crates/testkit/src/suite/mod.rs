//! The cases, in two parts: what holds for any lane, and what concerns our frames.

pub mod any_lane;
pub mod our_frames;

/// Makes a test of each case of both parts for a lane of this crate and a way to wait
#[macro_export]
macro_rules! conformance {
    ($lane:ident, $spin:ident) => {
        mod any_lane {
            $crate::conformance_of_any_lane!($crate::harness_of_lane!($lane, $spin));
        }
        mod our_frames {
            $crate::conformance_of_our_frames!($crate::harness_of_lane!($lane, $spin));
        }
    };
}

/// The harness of a lane of this crate, in a test of this package
#[macro_export]
macro_rules! harness_of_lane {
    ($lane:ident, $spin:ident) => {
        $crate::Harness::of_lane($crate::LaneKind::$lane, $crate::Spin::$spin)
            .with_peer_program(env!("CARGO_BIN_EXE_backhaul-testkit-peer"))
    };
}

/// Makes tests of cases that are listed by subject
#[doc(hidden)]
#[macro_export]
macro_rules! tests_of_cases {
    ($part:ident, $harness:expr; $($subject:ident { $($(#[$attribute:meta])* $case:ident)* })*) => {
        $(mod $subject {
            $(
                #[test]
                $(#[$attribute])*
                fn $case() {
                    $crate::run(
                        concat!(stringify!($subject), "::", stringify!($case)),
                        &$harness,
                        $crate::suite::$part::$subject::$case,
                    );
                }
            )*
        })*
    };
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    const PARTS: [&str; 2] = ["any_lane", "our_frames"];

    /// The text of each file of a part, by its subject
    fn subjects(part: &str) -> Vec<(String, String)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("src/suite")
            .join(part);
        let files = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        files
            .map(|path| {
                let subject = path.file_stem().unwrap().to_str().unwrap().to_owned();
                (subject, fs::read_to_string(path).unwrap())
            })
            .collect()
    }

    #[test]
    fn what_holds_for_any_lane_names_no_lane_and_knows_no_frames() {
        for (subject, text) in subjects("any_lane") {
            for word in [
                "LaneKind",
                "backhaul_proto",
                "backhaul_shm",
                "raw::",
                "manual_peer::",
            ] {
                assert!(!text.contains(word), "{subject} knows {word}");
            }
        }
    }

    #[test]
    fn every_case_is_listed_under_its_subject() {
        for part in PARTS {
            let (lists, subjects): (Vec<_>, Vec<_>) = subjects(part)
                .into_iter()
                .partition(|(subject, _)| subject == "mod");
            for (subject, text) in subjects {
                // To the brace that ends it, which is the first at the start of its line.
                let list = lists[0]
                    .1
                    .split_once(&format!("            {subject} {{\n"));
                let (list, _) = list.unwrap().1.split_once("            }").unwrap();
                for line in text.lines() {
                    let Some((case, _)) = line
                        .strip_prefix("pub fn ")
                        .and_then(|rest| rest.split_once('('))
                    else {
                        continue;
                    };
                    let is_listed = list.lines().any(|listed| listed.trim() == case);
                    assert!(is_listed, "{part}::{subject}::{case} is in no list");
                }
            }
        }
    }
}

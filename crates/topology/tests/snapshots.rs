//! The tree, the distances and the plans of every recorded machine, as they are written down
//!
//! `BACKHAUL_RENEW_FIXTURES=1 cargo test -p backhaul-topology --test snapshots` writes them anew; read
//! the difference before it is committed.

use std::path::{Path, PathBuf};

use backhaul_topology::plan::{Policy, plan};
use backhaul_topology::{Machine, Options, read, render};

#[test]
fn machines_have_the_trees_distances_and_plans_that_are_written_down() {
    let machines = recorded("fixtures");
    assert!(machines.len() >= 8, "{machines:?}");
    for path in machines {
        let machine = load(&path);
        let mut text = String::new();
        text += &heading("tree");
        text += &render::tree(&machine);
        text += &heading("distances");
        text += &render::matrix(&machine);
        for policy in Policy::ALL {
            let options = Options {
                policy,
                n: (policy == Policy::N).then_some(3),
                ..Options::default()
            };
            text += &heading(&format!("plan {policy}"));
            match plan(&machine, &options) {
                Ok(plan) => {
                    text += &render::workers(&plan);
                    for worker in &plan.workers {
                        text += &format!("{}: {}\n", worker.name, worker.why);
                    }
                }
                Err(error) => text += &format!("refused: {error}\n"),
            }
        }
        let name = path.file_name().expect("a file").to_string_lossy();
        let name = name.replace(".json", ".txt");
        check(&text, &folder("snapshots").join(name));
    }
}

/// The picture in the documents is the one that is drawn today
#[test]
fn the_picture_of_a_dgx1_is_that_of_the_documents() {
    let machine = load(&folder("fixtures").join("dgx-1.hwloc.json"));
    let options = Options {
        policy: Policy::PerGpu,
        interface: Some("ib".to_owned()),
        ..Options::default()
    };
    let plan = plan(&machine, &options).expect("there are GPUs");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images/dgx-1.svg");
    check(&render::svg(&machine, Some(&plan)), &path);
}

fn check(text: &str, path: &Path) {
    if std::env::var_os("BACKHAUL_RENEW_FIXTURES").is_some() {
        std::fs::write(path, text).expect("snapshots can be written");
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    let difference = text
        .lines()
        .zip(expected.lines().chain(std::iter::repeat("")))
        .position(|(line, expected)| line != expected);
    assert!(
        text == expected,
        "{} differs from line {:?} on; it is now:\n{text}",
        path.display(),
        difference.map(|line| line + 1),
    );
}

fn heading(title: &str) -> String {
    format!("\n=== {title} ===\n\n")
}

fn load(path: &Path) -> Machine {
    let text = std::fs::read_to_string(path).expect("fixtures can be read");
    read::parse(&text, None).expect("fixtures are machines")
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name)
}

fn recorded(name: &str) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder(name))
        .expect("there are fixtures")
        .map(|entry| entry.expect("fixtures can be listed").path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "json"))
        .collect();
    paths.sort();
    paths
}

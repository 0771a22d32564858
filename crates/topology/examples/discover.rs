//! Prints as JSON this machine, or those of the files or root folders that are given; how long it
//! took goes to standard error

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use backhaul_topology::Machine;
use backhaul_topology::read::{DiscoverOptions, discover, parse};

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths: Vec<Option<PathBuf>> =
        std::env::args().skip(1).map(|p| Some(p.into())).collect();
    if paths.is_empty() {
        paths.push(None);
    }
    for path in paths {
        let begin = Instant::now();
        let machine = machine_of(path.clone());
        let elapsed = begin.elapsed();
        let name = path.unwrap_or_default();
        match machine {
            Ok(machine) => {
                eprintln!("{}: {elapsed:?}", name.display());
                println!("{}", serde_json::to_string_pretty(&machine)?);
            }
            Err(error) => eprintln!("{}: {error}", name.display()),
        }
    }
    Ok(())
}

fn machine_of(path: Option<PathBuf>) -> Result<Machine, Box<dyn Error>> {
    match path {
        Some(file) if file.is_file() => Ok(parse(&std::fs::read_to_string(file)?, None)?),
        root => Ok(discover(&DiscoverOptions {
            root,
            ..DiscoverOptions::default()
        })?),
    }
}

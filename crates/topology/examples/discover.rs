//! Prints as JSON this machine, or those of the files that are given; how long it took goes to
//! standard error

use std::error::Error;
use std::time::Instant;

use backhaul_topology::Machine;
use backhaul_topology::read::{DiscoverOptions, discover, parse};

fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        let begin = Instant::now();
        let machine = discover(&DiscoverOptions::default())?;
        eprintln!("{:?}", begin.elapsed());
        print(&machine)?;
    }
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        let begin = Instant::now();
        match parse(&text, None) {
            Ok(machine) => {
                eprintln!("{file}: {:?}", begin.elapsed());
                print(&machine)?;
            }
            Err(error) => eprintln!("{file}: {error}"),
        }
    }
    Ok(())
}

fn print(machine: &Machine) -> Result<(), serde_json::Error> {
    println!("{}", serde_json::to_string_pretty(machine)?);
    Ok(())
}

//! Prints this machine as JSON, and on standard error how long it took to find out

use std::time::Instant;

use backhaul_topology::read::{DiscoverOptions, discover};

fn main() {
    let begin = Instant::now();
    let machine = discover(&DiscoverOptions::default()).expect("this is Linux");
    eprintln!("{:?}", begin.elapsed());
    let json = serde_json::to_string_pretty(&machine).expect("a machine is plain data");
    println!("{json}");
}

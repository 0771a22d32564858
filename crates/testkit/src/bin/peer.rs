//! The second process of the conformance suite; see `backhaul_testkit::peer`.

fn main() {
    backhaul_testkit::peer::main();
}

//! Has the docstrings of the stubs at hand, as the macro `stub_doc!`.

use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    backhaul_stub_docs::write(&here.join("../../python/backhaul/_stubs"))
}

//! Has the docstrings of the stubs at hand, as the macro `stub_doc!`, and says whether Python has a GIL.

use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    // `Py_GIL_DISABLED`, among others
    pyo3_build_config::use_pyo3_cfgs();
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    backhaul_stub_docs::write(&here.join("../../python/backhaul/_stubs"))
}

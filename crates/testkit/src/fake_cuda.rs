//! Where the fake CUDA driver is, for the processes that are to have it.

use std::path::PathBuf;

/// A folder in which the fake driver has the names of the real one, for `LD_LIBRARY_PATH`
///
/// # Panics
///
/// If the driver is not built: `cargo test` does that unless its arguments name the tests to build.
pub fn library_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let examples = program.parent().unwrap().with_file_name("examples");
    let library = examples.join("libfake_cuda.so");
    assert!(
        library.exists(),
        "{library:?} is not there: cargo build -p backhaul-testkit --example fake_cuda"
    );
    let folder = examples.join("fake_cuda_as_libcuda");
    std::fs::create_dir_all(&folder).unwrap();
    // The second is what programs are linked to, and what ours looks for first. The last is what UCX's
    // module for CUDA is linked with beside it.
    for name in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"] {
        // Another test may have linked it.
        let _ = std::os::unix::fs::symlink("../libfake_cuda.so", folder.join(name));
    }
    folder
}

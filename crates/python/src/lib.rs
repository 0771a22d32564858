//! The Python module `backhaul._native`: convert, detach, call; no logic.
//!
//! What Dask needs is of a crate of its own, which adds it to this module. `numpy_memory` and
//! `memory_policy` call nothing below: they are the interfaces of NumPy's allocator and of Linux's
//! NUMA policy for Python.
//!
//! The engine's threads never run Python. What Python must do for them (complete futures, release
//! buffers, write logs) waits until a thread of Python comes by, called by its event loop's descriptor if need be.

// Before the modules that use it
include!(concat!(env!("OUT_DIR"), "/stub_docs.rs"));

mod arena;
mod arguments;
mod awaiter;
mod buffer;
mod context;
mod deferred;
mod device;
mod dlpack;
mod endpoint;
mod errors;
mod exchange;
mod interrupts;
mod listener;
mod logs;
mod lookout;
mod loops;
mod memory_policy;
mod memory_watch;
mod numpy_memory;
mod operation;
mod owned;
mod request;
mod scheduler_streams;
mod tls;
mod topology;

use pyo3::prelude::*;

/// The Rust fabric as Python sees it
#[pymodule(gil_used = false)]
mod _native {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    #[pymodule_export]
    use crate::arena::{Arena, borrowed_bytes};
    #[pymodule_export]
    use crate::context::{Context, process_token};
    #[pymodule_export]
    use crate::device::{DeviceBuffer, copy_memory, cuda_devices};
    #[pymodule_export]
    use crate::endpoint::Endpoint;
    #[pymodule_export]
    use crate::exchange::{Join, Partitioning, assemble_pieces, piece_sizes, read_piece};
    #[pymodule_export]
    use crate::interrupts::{call_interruptibly, interrupt_call, running_calls};
    #[pymodule_export]
    use crate::listener::Listener;
    #[pymodule_export]
    use crate::lookout::Lookout;
    #[pymodule_export]
    use crate::loops::LoopBridge;
    #[pymodule_export]
    use crate::loops::LoopReader;
    #[pymodule_export]
    use crate::memory_policy::{memory_policy, set_memory_policy};
    #[pymodule_export]
    use crate::memory_watch::MemoryWatch;
    #[pymodule_export]
    use crate::numpy_memory::{
        arena_of_numpy_handler, current_numpy_handler, numpy_handler, set_default_numpy_handler,
        set_numpy_handler,
    };
    #[pymodule_export]
    use crate::request::Request;
    #[pymodule_export]
    use crate::scheduler_streams::{EngineNotes, SchedulerStreams, StoppedStreams, SubmittedTask};
    #[pymodule_export]
    use crate::tls::Tls;
    #[pymodule_export]
    use crate::topology::{Machine, Plan};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("DEBUG_BUILD", cfg!(debug_assertions))?;
        module.add(
            "LEND_BYTES_MIN",
            backhaul::Config::default().lease_bytes_min,
        )?;
        let sizes: Vec<_> = backhaul::SizeClass::all()
            .map(|class| class.bytes_min())
            .collect();
        module.add("SIZE_CLASSES_BYTES_MIN", PyTuple::new(module.py(), sizes)?)?;
        backhaul_dask_python::add_to(module)?;
        crate::logs::install();
        crate::owned::watch_forks(module.py())
    }
}

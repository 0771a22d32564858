//! `Arena`: recycled memory that peers on this host can map.

use backhaul::ArenaConfig;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMemoryView};

use crate::buffer::{self, ReceivedBuffer};
use crate::errors;

/// Recycled memory that peers on this host can map
#[pyclass(frozen, weakref, module = "backhaul._native")]
pub(crate) struct Arena {
    pub(crate) arena: backhaul::Arena,
}

#[pymethods]
impl Arena {
    #[new]
    #[pyo3(signature = (*, bytes_max = None, cached_bytes_max = None, block_bytes_min = None))]
    fn new(
        bytes_max: Option<Bound<'_, PyAny>>,
        cached_bytes_max: Option<Bound<'_, PyAny>>,
        block_bytes_min: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut config = ArenaConfig::default();
        errors::set(&mut config.bytes_max, "bytes_max", bytes_max)?;
        errors::set(
            &mut config.cached_bytes_max,
            "cached_bytes_max",
            cached_bytes_max,
        )?;
        errors::set(
            &mut config.block_bytes_min,
            "block_bytes_min",
            block_bytes_min,
        )?;
        let arena = backhaul::Arena::new(config);
        arena.watch_forks();
        Ok(Self { arena })
    }

    /// A writable buffer of so many bytes, of unspecified content
    fn take<'py>(&self, py: Python<'py>, nbytes: usize) -> PyResult<Bound<'py, PyMemoryView>> {
        match self.arena.take(nbytes) {
            Some(memory) => ReceivedBuffer::view(py, memory.into()),
            None => Err(PyMemoryError::new_err(format!(
                "the arena has no block of {nbytes} bytes: {:?}",
                self.arena.statistics(),
            ))),
        }
    }

    /// A copy of a buffer, to be lent; None if it can be lent itself, or there is no room
    #[pyo3(signature = (buffer, /))]
    fn copy_to_lend<'py>(
        &self,
        py: Python<'py>,
        buffer: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyMemoryView>>> {
        let source = buffer::source(buffer)?;
        let copy = py.detach(|| {
            let host = source.host()?;
            if self.arena.holds(host) || backhaul::is_borrowed(host) {
                return None;
            }
            self.arena.copy_to_lend(host)
        });
        copy.map(|copy| ReceivedBuffer::view(py, copy.into()))
            .transpose()
    }

    /// Gives back pages of free blocks until at most so many bytes of them keep theirs
    #[pyo3(signature = (cached_bytes = 0, /))]
    fn trim(&self, py: Python<'_>, cached_bytes: usize) {
        py.detach(|| self.arena.trim(cached_bytes));
    }

    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (found, resident_bytes) =
            py.detach(|| (self.arena.statistics(), self.arena.resident_bytes()));
        let dict = PyDict::new(py);
        dict.set_item("live_bytes", found.live_bytes)?;
        dict.set_item("leased_bytes", found.leased_bytes)?;
        dict.set_item("orphaned_bytes", found.orphaned_bytes)?;
        dict.set_item("abandoned_bytes", found.abandoned_bytes)?;
        dict.set_item("cached_bytes", found.cached_bytes)?;
        dict.set_item("resident_bytes", resident_bytes)?;
        dict.set_item("mapped_bytes", found.mapped_bytes)?;
        dict.set_item("peak_bytes", found.peak_bytes)?;
        dict.set_item("hits", found.hits)?;
        dict.set_item("misses", found.misses)?;
        dict.set_item("refused", found.refused)?;
        Ok(dict)
    }

    /// Why the system gives no such memory, if it refused the last time it was asked
    fn unavailable(&self) -> Option<String> {
        self.arena.unavailable().map(|error| error.to_string())
    }

    fn __repr__(&self) -> String {
        let found = self.arena.statistics();
        format!(
            "<backhaul.Arena {} bytes live, {} leased, {} cached>",
            found.live_bytes, found.leased_bytes, found.cached_bytes
        )
    }
}

/// Bytes of peers that this process has mapped now
#[pyfunction]
pub(crate) fn borrowed_bytes() -> usize {
    backhaul::borrowed_bytes()
}

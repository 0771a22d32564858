//! `Arena`: recycled memory that peers on this host can map.

use backhaul::ArenaConfig;
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMemoryView};

use crate::arguments;
use crate::buffer::{self, ReceivedBuffer};

#[doc = stub_doc!("Arena")]
#[pyclass(frozen, weakref, module = "backhaul._native")]
pub(crate) struct Arena {
    pub(crate) arena: backhaul::Arena,
    /// As it was asked for, for errors
    block_bytes_min: usize,
}

impl Arena {
    /// Why there is no block of so many bytes
    fn refusal(&self, nbytes: usize) -> String {
        let found = self.arena.statistics();
        if nbytes < self.block_bytes_min {
            return format!(
                "the arena gives no block of {nbytes} bytes, the smallest has {}: take ordinary \
                 memory for it, or make the arena with a smaller block_bytes_min",
                self.block_bytes_min
            );
        }
        if let Some(error) = self.arena.unavailable() {
            return format!("the arena has no block of {nbytes} bytes: {error}");
        }
        let bound = match self.arena.bytes_max() {
            usize::MAX => "it has no bound, so the system gave none".to_owned(),
            bytes_max => format!("its bound, bytes_max, is {bytes_max}"),
        };
        format!(
            "the arena has no block of {nbytes} bytes: {} are in use here and {} by peers; {bound}",
            found.live_bytes,
            found.leased_bytes + found.orphaned_bytes + found.abandoned_bytes,
        )
    }
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
        arguments::set(&mut config.bytes_max, "bytes_max", bytes_max)?;
        arguments::set(
            &mut config.cached_bytes_max,
            "cached_bytes_max",
            cached_bytes_max,
        )?;
        arguments::set(
            &mut config.block_bytes_min,
            "block_bytes_min",
            block_bytes_min,
        )?;
        // As the arena itself has it.
        let block_bytes_min = config.block_bytes_min.max(4 * rustix::param::page_size());
        let arena = backhaul::Arena::new(config);
        arena.watch_forks();
        Ok(Self {
            arena,
            block_bytes_min,
        })
    }

    #[doc = stub_doc!("Arena.take")]
    fn take<'py>(&self, nbytes: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyMemoryView>> {
        let py = nbytes.py();
        let nbytes = arguments::count("nbytes", nbytes)?;
        match self.arena.take(nbytes) {
            Some(memory) => ReceivedBuffer::view(py, memory.into()),
            None => Err(PyMemoryError::new_err(self.refusal(nbytes))),
        }
    }

    #[doc = stub_doc!("Arena.copy_to_lend")]
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

    #[doc = stub_doc!("Arena.trim")]
    #[pyo3(signature = (cached_bytes = None, /), text_signature = "($self, cached_bytes=0, /)")]
    fn trim(&self, py: Python<'_>, cached_bytes: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let mut kept_bytes = 0;
        arguments::set(&mut kept_bytes, "cached_bytes", cached_bytes)?;
        py.detach(|| self.arena.trim(kept_bytes));
        Ok(())
    }

    #[doc = stub_doc!("Arena.statistics")]
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (found, resident_bytes) =
            py.detach(|| (self.arena.statistics(), self.arena.resident_bytes()));
        let dict = PyDict::new(py);
        dict.set_item("live_bytes", found.live_bytes)?;
        dict.set_item("leased_bytes", found.leased_bytes)?;
        dict.set_item("orphaned_bytes", found.orphaned_bytes)?;
        dict.set_item("abandoned_bytes", found.abandoned_bytes)?;
        dict.set_item("cached_bytes", found.cached_bytes)?;
        dict.set_item("copy_on_write_bytes", found.copy_on_write_bytes)?;
        dict.set_item("resident_bytes", resident_bytes)?;
        dict.set_item("mapped_bytes", found.mapped_bytes)?;
        dict.set_item("peak_bytes", found.peak_bytes)?;
        dict.set_item("hits", found.hits)?;
        dict.set_item("misses", found.misses)?;
        dict.set_item("refused", found.refused)?;
        Ok(dict)
    }

    #[doc = stub_doc!("Arena.unavailable")]
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

#[doc = stub_doc!("borrowed_bytes")]
#[pyfunction]
pub(crate) fn borrowed_bytes() -> usize {
    backhaul::borrowed_bytes()
}

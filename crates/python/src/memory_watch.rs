//! `MemoryWatch`: watches the memory of this process and shrinks its arena.

use std::time::Duration;

use backhaul::MemoryWatchConfig;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arena::Arena;
use crate::arguments;

#[doc = stub_doc!("MemoryWatch")]
#[pyclass(frozen, weakref, module = "backhaul._native")]
pub(crate) struct MemoryWatch {
    watch: backhaul::MemoryWatch,
}

#[pymethods]
impl MemoryWatch {
    #[new]
    #[pyo3(signature = (
        arena, *, kept_bytes, window_s, idle_s, interval_s, limit_bytes = None
    ))]
    fn new(
        arena: &Arena,
        kept_bytes: &Bound<'_, PyAny>,
        window_s: f64,
        idle_s: f64,
        interval_s: f64,
        limit_bytes: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut config = MemoryWatchConfig {
            limit_bytes: usize::MAX,
            kept_bytes: arguments::count("kept_bytes", kept_bytes)?,
            window: seconds(window_s),
            idle: seconds(idle_s),
            interval: seconds(interval_s),
        };
        arguments::set(&mut config.limit_bytes, "limit_bytes", limit_bytes)?;
        let watch = backhaul::MemoryWatch::start(&arena.arena, config)?;
        Ok(Self { watch })
    }

    #[doc = stub_doc!("MemoryWatch.look")]
    fn look(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        let look = py.detach(|| self.watch.look())?;
        Ok((look.counted_bytes, look.resident_bytes))
    }

    #[doc = stub_doc!("MemoryWatch.wait_above")]
    fn wait_above(
        &self,
        py: Python<'_>,
        counted_bytes: &Bound<'_, PyAny>,
        timeout_s: f64,
    ) -> PyResult<Option<usize>> {
        let counted_bytes = arguments::count("counted_bytes", counted_bytes)?;
        Ok(py.detach(|| self.watch.wait_above(counted_bytes, seconds(timeout_s))))
    }

    #[doc = stub_doc!("MemoryWatch.set_stage")]
    fn set_stage(&self, stage: u64) {
        self.watch.set_stage(stage);
    }

    #[doc = stub_doc!("MemoryWatch.account")]
    fn account<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let look = py.detach(|| self.watch.look())?;
        let dict = PyDict::new(py);
        for (name, bytes) in [
            ("resident_bytes", look.resident_bytes),
            ("counted_bytes", look.counted_bytes),
            ("private_bytes", look.private_bytes),
            ("file_bytes", look.file_bytes),
            ("arena_used_bytes", look.arena_used_bytes),
            ("arena_orphaned_bytes", look.arena_orphaned_bytes),
            ("arena_free_bytes", look.arena_free_bytes),
            ("lent_bytes", look.lent_bytes),
            ("borrowed_bytes", look.borrowed_bytes),
            ("borrowed_orphaned_bytes", look.borrowed_orphaned_bytes),
            ("other_shared_bytes", look.other_shared_bytes),
        ] {
            dict.set_item(name, bytes)?;
        }
        Ok(dict)
    }
}

/// Time in seconds, without end where it is too long
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

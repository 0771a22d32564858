//! Tasks that are placed by what links cost, as Python asks for it.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Core, text_of};
use crate::placement::Placement;

#[pymethods]
impl Core {
    #[doc = stub_doc!("SchedulerCore.place_by_links")]
    #[pyo3(signature = (placement, result_bytes, memory_target, /))]
    fn place_by_links(
        &self,
        placement: &Placement,
        result_bytes: Vec<(String, f64)>,
        memory_target: f64,
    ) -> PyResult<()> {
        if !(memory_target > 0.0 && memory_target.is_finite()) {
            return Err(PyValueError::new_err(format!(
                "memory_target must be a number above 0, got {memory_target}"
            )));
        }
        let result_bytes = result_bytes.into_iter();
        let result_bytes = result_bytes.map(|(name, bytes)| (Arc::from(name), bytes));
        let costs = placement.shared();
        self.core()
            .place_by_links(costs, result_bytes.collect(), memory_target);
        Ok(())
    }

    #[doc = stub_doc!("SchedulerCore.placing")]
    fn placing<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(view) = self.core().placing_view() else {
            return Ok(None);
        };
        let said = PyDict::new(py);
        let result_bytes = PyDict::new(py);
        for (name, bytes) in &view.result_bytes {
            result_bytes.set_item(&**name, bytes)?;
        }
        said.set_item("result_bytes", result_bytes)?;
        let hints = PyDict::new(py);
        for (key, address) in &view.hints {
            hints.set_item(text_of(key), &**address)?;
        }
        said.set_item("hints", hints)?;
        let own = PyDict::new(py);
        for (address, roots) in &view.own {
            let roots = roots.iter();
            let roots: Vec<(String, bool)> = roots
                .map(|(key, is_there)| (text_of(key), *is_there))
                .collect();
            own.set_item(&**address, roots)?;
        }
        said.set_item("own", own)?;
        let promised = view.promised.iter();
        let promised: Vec<(u64, String, &str)> = promised
            .map(|(number, key, address)| (*number, text_of(key), &**address))
            .collect();
        said.set_item("promised", promised)?;
        Ok(Some(said))
    }
}

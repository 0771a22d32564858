//! Tasks that ask for resources, and who has room for them.

use std::sync::Arc;

use backhaul_dask::scheduler::RoomView;
use pyo3::exceptions::PyLookupError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::{Core, inherit, text_of, texts_of};
use crate::placement::declared;

/// Key, amounts by name, threads, and what is lacking
type Unmet = (String, Vec<(String, f64)>, f64, String);

#[pymethods]
impl Core {
    #[doc = stub_doc!("SchedulerCore.declare_worker")]
    fn declare_worker(&self, address: &str, declared: &Bound<'_, PyDict>) -> PyResult<()> {
        let declared = declared::read(declared, None)?;
        self.core().declare(&Arc::from(address), declared);
        Ok(())
    }

    #[doc = stub_doc!("SchedulerCore.take_unmet")]
    fn take_unmet(&self) -> Vec<Unmet> {
        let taken = self.core().take_unmet().into_iter();
        taken
            .map(|one| {
                let amounts = owned(&one.amounts);
                (text_of(&one.key), amounts, one.threads, one.reason)
            })
            .collect()
    }

    #[doc = stub_doc!("SchedulerCore.room")]
    fn room<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let view = self.core().room_view();
        view.map(|view| said(py, &view)).transpose()
    }

    #[doc = stub_doc!("SchedulerCore.inherit_room")]
    fn inherit_room(&self, said: &Bound<'_, PyDict>) -> PyResult<()> {
        let inherited = self.core().inherit_room(&inherit::room(said)?);
        inherited.map_err(|error| PyLookupError::new_err(error.to_string()))
    }
}

fn said<'py>(py: Python<'py>, view: &RoomView) -> PyResult<Bound<'py, PyDict>> {
    let passed = PyList::empty(py);
    for one in &view.passed {
        let amounts = owned(&one.amounts);
        passed.append((amounts, one.threads, one.stands.0.to_vec(), one.passes))?;
    }
    let dict = PyDict::new(py);
    dict.set_item("booked", texts_of(&view.booked))?;
    dict.set_item("waiting", texts_of(&view.waiting))?;
    dict.set_item("passed", passed)?;
    dict.set_item("kept", view.kept)?;
    dict.set_item("kept_worker", view.kept_worker.as_deref())?;
    dict.set_item("drains", view.drains)?;
    dict.set_item(
        "served",
        view.served.iter().map(|one| &**one).collect::<Vec<_>>(),
    )?;
    Ok(dict)
}

fn owned(amounts: &[(Arc<str>, f64)]) -> Vec<(String, f64)> {
    let amounts = amounts.iter();
    amounts
        .map(|(name, units)| (name.to_string(), *units))
        .collect()
}

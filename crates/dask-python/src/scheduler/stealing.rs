//! Tasks that workers take from each other, as Python asks for it.

use std::sync::Arc;

use backhaul_dask::scheduler::StealAnswered;
use pyo3::exceptions::PyLookupError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Core, attributes, refusal, text_of};

#[doc = stub_doc!("StealRequest")]
#[pyclass(frozen, get_all, module = "backhaul._native")]
pub(crate) struct StealRequest {
    #[doc = stub_doc!("StealRequest.level")]
    level: usize,
    #[doc = stub_doc!("StealRequest.key")]
    key: String,
    #[doc = stub_doc!("StealRequest.cost_s")]
    cost_s: f64,
    #[doc = stub_doc!("StealRequest.victim")]
    victim: String,
    #[doc = stub_doc!("StealRequest.victim_s")]
    victim_s: f64,
    #[doc = stub_doc!("StealRequest.thief")]
    thief: String,
    #[doc = stub_doc!("StealRequest.thief_s")]
    thief_s: f64,
}

#[doc = stub_doc!("StealOutcome")]
#[pyclass(frozen, get_all, module = "backhaul._native")]
#[derive(Default)]
pub(crate) struct StealOutcome {
    #[doc = stub_doc!("StealOutcome.outcome")]
    outcome: &'static str,
    #[doc = stub_doc!("StealOutcome.is_thief_gone")]
    is_thief_gone: bool,
    #[doc = stub_doc!("StealOutcome.victim")]
    victim: String,
    #[doc = stub_doc!("StealOutcome.thief")]
    thief: String,
}

#[pymethods]
impl Core {
    #[doc = stub_doc!("SchedulerCore.begin_stealing")]
    fn begin_stealing(&self, fast: Vec<String>, requests: u64) {
        let fast: Vec<Arc<str>> = fast.into_iter().map(Arc::from).collect();
        self.core().begin_stealing(&fast, requests);
    }

    #[doc = stub_doc!("SchedulerCore.inherit_stealing")]
    fn inherit_stealing(&self, said: &Bound<'_, PyDict>) -> PyResult<()> {
        let view = attributes::stealing::read(said)?;
        let inherited = self.core().inherit_stealing(&view);
        inherited.map_err(|error| PyLookupError::new_err(error.to_string()))
    }

    #[doc = stub_doc!("SchedulerCore.balance")]
    fn balance(&self, now_s: f64) -> Vec<StealRequest> {
        let requested = self.core().balance(now_s).into_iter();
        requested
            .map(|one| StealRequest {
                level: one.level,
                key: text_of(&one.key),
                cost_s: one.cost_s,
                victim: one.victim.to_string(),
                victim_s: one.victim_s,
                thief: one.thief.to_string(),
                thief_s: one.thief_s,
            })
            .collect()
    }

    #[doc = stub_doc!("SchedulerCore.confirm_steal")]
    fn confirm_steal(
        &self,
        stimulus: &str,
        now_s: f64,
        key: &str,
        state: Option<&str>,
    ) -> PyResult<StealOutcome> {
        let stimulus = Arc::from(stimulus);
        let answered = self
            .core()
            .confirm_steal(key.as_bytes(), state, &stimulus, now_s)
            .map_err(refusal)?;
        let nothing = |outcome| StealOutcome {
            outcome,
            ..StealOutcome::default()
        };
        Ok(match answered {
            StealAnswered::Unknown => nothing("unknown"),
            StealAnswered::Stale => nothing("stale-response"),
            StealAnswered::Aborted => nothing("already-aborted"),
            StealAnswered::Handled(outcome, is_thief_gone, victim, thief) => StealOutcome {
                outcome,
                is_thief_gone,
                victim: victim.to_string(),
                thief: thief.to_string(),
            },
        })
    }

    #[doc = stub_doc!("SchedulerCore.stealing")]
    fn stealing<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(view) = self.core().stealing_view() else {
            return Ok(None);
        };
        let dict = PyDict::new(py);
        attributes::stealing::said(&view, &dict)?;
        Ok(Some(dict))
    }
}

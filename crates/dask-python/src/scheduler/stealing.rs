//! Tasks that workers take from each other, as Python asks for it.

use std::sync::Arc;

use backhaul_dask::scheduler::StealAnswered;
use pyo3::exceptions::PyLookupError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Core, attributes, refusal, text_of};

/// Level, key, cost in seconds, victim and thief with how long each is busy for, in seconds
type Requested = (usize, String, f64, String, f64, String, f64);

/// Log entry, whether the thief is gone, and addresses of victim and thief
type Answered = (&'static str, bool, String, String);

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
    fn balance(&self, now_s: f64) -> Vec<Requested> {
        let requested = self.core().balance(now_s).into_iter();
        requested
            .map(|one| {
                (
                    one.level,
                    text_of(&one.key),
                    one.cost_s,
                    one.victim.to_string(),
                    one.victim_s,
                    one.thief.to_string(),
                    one.thief_s,
                )
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
    ) -> PyResult<Answered> {
        let stimulus = Arc::from(stimulus);
        let answered = self
            .core()
            .confirm_steal(key.as_bytes(), state, &stimulus, now_s)
            .map_err(refusal)?;
        Ok(match answered {
            StealAnswered::Unknown => ("unknown", false, String::new(), String::new()),
            StealAnswered::Stale => ("stale-response", false, String::new(), String::new()),
            StealAnswered::Aborted => ("already-aborted", false, String::new(), String::new()),
            StealAnswered::Handled(told, is_gone, victim, thief) => {
                (told, is_gone, victim.to_string(), thief.to_string())
            }
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

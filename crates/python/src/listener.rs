//! `Listener`: accepts peers at one address.

use std::sync::{Mutex, PoisonError};

use backhaul::AcceptError;
use pyo3::exceptions::PyStopAsyncIteration;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::deferred;
use crate::endpoint::Endpoint;
use crate::errors::IntoException;
use crate::operation::Operation;
use crate::owned::Owned;
use crate::request::Request;

#[doc = stub_doc!("Listener")]
#[pyclass(frozen, weakref, module = "backhaul._native")]
pub(crate) struct Listener {
    listener: Owned<backhaul::Listener>,
    closed: Mutex<bool>,
}

impl Listener {
    pub(crate) fn new(listener: backhaul::Listener) -> Self {
        Self {
            listener: Owned::new(listener),
            closed: Mutex::new(false),
        }
    }
}

#[pymethods]
impl Listener {
    #[doc = stub_doc!("Listener.address")]
    #[getter]
    fn address(&self) -> String {
        self.listener.local_address().to_string()
    }

    #[doc = stub_doc!("Listener.accept")]
    fn accept(&self, py: Python<'_>) -> PyResult<Request> {
        let listener = self.listener.check(py)?;
        let request = deferred::call(py, || listener.accept());
        Ok(Request::new(Operation::Accept, request, Endpoint::object))
    }

    #[doc = stub_doc!("Listener.info")]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("address", self.address())?;
        dict.set_item("trust", self.listener.trust().name())?;
        dict.set_item("warning", self.listener.warning())?;
        Ok(dict)
    }

    #[doc = stub_doc!("Listener.statistics")]
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        deferred::run(py);
        let statistics = self.listener.statistics();
        let dict = PyDict::new(py);
        dict.set_item("accepted", statistics.accepted)?;
        dict.set_item("rejected", statistics.rejected)?;
        dict.set_item("handshakes", statistics.handshakes)?;
        dict.set_item("waiting", statistics.waiting)?;
        dict.set_item("last_rejection", statistics.last_rejection)?;
        Ok(dict)
    }

    #[doc = stub_doc!("Listener.close")]
    fn close(&self, py: Python<'_>) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        if !self.listener.is_foreign() {
            deferred::call(py, || self.listener.close());
        }
    }

    #[doc = stub_doc!("Listener.closed")]
    fn closed(&self) -> bool {
        self.listener.is_foreign() || *self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }

    fn __aenter__(slf: Py<Self>) -> Request {
        Request::ready(slf.into_any())
    }

    fn __aexit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> Request {
        self.close(py);
        Request::ready(py.None())
    }

    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__(&self, py: Python<'_>) -> PyResult<Request> {
        let listener = self.listener.check(py)?;
        let request = deferred::call(py, || listener.accept());
        Ok(Request::raising(
            Operation::Accept,
            request,
            Endpoint::object,
            |py, error| match error {
                AcceptError::Closed => PyStopAsyncIteration::new_err(()),
                error => error.into_exception(py),
            },
        ))
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!(
            "<backhaul.Listener {}{closed}>",
            self.listener.local_address()
        )
    }
}

/// The object for a new listener, or the exception
pub(crate) fn listen(
    py: Python<'_>,
    context: &backhaul::Context,
    address: &str,
    tls: Option<&backhaul::Tls>,
) -> PyResult<Listener> {
    let listen = || match tls {
        Some(tls) => context.listen_tls(address, tls),
        None => context.listen(address),
    };
    deferred::call(py, || py.detach(listen))
        .map(Listener::new)
        .map_err(|error| error.into_exception(py))
}

//! `Context`: configuration, buffers and the engine.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use backhaul::{Config, FlowStatistics, KeepAlive, Secret, SizeClass};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict};

use crate::arena::Arena;
use crate::arguments::{self, duration, names, set};
use crate::deferred;
use crate::endpoint::Endpoint;
use crate::errors::{self, IntoException};
use crate::listener::{self, Listener};
use crate::operation::Operation;
use crate::owned::Owned;
use crate::request::Request;
use crate::tls::Tls;

#[doc = stub_doc!("Context")]
#[pyclass(frozen, weakref, module = "backhaul._native")]
pub(crate) struct Context {
    context: Owned<backhaul::Context>,
    closed: AtomicBool,
}

#[pymethods]
impl Context {
    #[new]
    #[pyo3(signature = (
        *,
        lanes = None,
        carriers = None,
        eager_bytes_max = None,
        credit_bytes = None,
        credit_messages = None,
        message_bytes_max = None,
        segments_max = None,
        sends_max = None,
        ring_bytes = None,
        pool_cached_bytes_max = None,
        spin_us = None,
        handshake_timeout_s = None,
        keep_alive_interval_s = None,
        keep_alive_timeout_s = None,
        linger_s = None,
        backlog = None,
        arena = None,
        lease_bytes_min = None,
        populate_leases = false,
        tls = None,
        secret = None,
        shared_memory_uids = None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        lanes: Option<Bound<'_, PyAny>>,
        carriers: Option<Bound<'_, PyAny>>,
        eager_bytes_max: Option<Bound<'_, PyAny>>,
        credit_bytes: Option<Bound<'_, PyAny>>,
        credit_messages: Option<Bound<'_, PyAny>>,
        message_bytes_max: Option<Bound<'_, PyAny>>,
        segments_max: Option<Bound<'_, PyAny>>,
        sends_max: Option<Bound<'_, PyAny>>,
        ring_bytes: Option<Bound<'_, PyAny>>,
        pool_cached_bytes_max: Option<Bound<'_, PyAny>>,
        spin_us: Option<Bound<'_, PyAny>>,
        handshake_timeout_s: Option<Bound<'_, PyAny>>,
        keep_alive_interval_s: Option<Bound<'_, PyAny>>,
        keep_alive_timeout_s: Option<Bound<'_, PyAny>>,
        linger_s: Option<Bound<'_, PyAny>>,
        backlog: Option<Bound<'_, PyAny>>,
        arena: Option<Bound<'_, Arena>>,
        lease_bytes_min: Option<Bound<'_, PyAny>>,
        populate_leases: bool,
        tls: Option<Bound<'_, Tls>>,
        secret: Option<Bound<'_, PyAny>>,
        shared_memory_uids: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut config = Config::default();
        if let Some(lanes) = names("lanes", lanes)? {
            config.lanes = lanes;
        }
        if let Some(carriers) = names("carriers", carriers)? {
            config.carriers = carriers;
        }
        let limits = &mut config.limits;
        set(
            &mut limits.eager_bytes_max,
            "eager_bytes_max",
            eager_bytes_max,
        )?;
        set(&mut limits.credit_bytes, "credit_bytes", credit_bytes)?;
        set(
            &mut limits.credit_messages,
            "credit_messages",
            credit_messages,
        )?;
        set(
            &mut limits.message_bytes_max,
            "message_bytes_max",
            message_bytes_max,
        )?;
        set(&mut limits.segments_max, "segments_max", segments_max)?;
        set(&mut limits.sends_max, "sends_max", sends_max)?;
        set(&mut config.ring_bytes, "ring_bytes", ring_bytes)?;
        set(
            &mut config.pool_cached_bytes_max,
            "pool_cached_bytes_max",
            pool_cached_bytes_max,
        )?;
        set(&mut config.backlog, "backlog", backlog)?;
        set(
            &mut config.lease_bytes_min,
            "lease_bytes_min",
            lease_bytes_min,
        )?;
        config.populate_leases = populate_leases;
        config.tls = tls.map(|tls| tls.get().tls.clone());
        config.secret = secret.as_ref().map(to_secret).transpose()?;
        if let Some(uids) = shared_memory_uids {
            for uid in arguments::items("shared_memory_uids", "user ids", &uids)? {
                let uid = arguments::count("shared_memory_uids", &uid)?;
                config.shared_memory_uids.push(uid);
            }
        }
        config.ucx.library.folders = ucx_folders(py)?;
        config.arena = arena.map(|arena| arena.get().arena.clone());
        if let Some(spin) = duration("spin_us", spin_us, MICROSECONDS)? {
            config.spin = spin;
        }
        if let Some(timeout) = duration("handshake_timeout_s", handshake_timeout_s, SECONDS)? {
            config.handshake_timeout = timeout;
        }
        if let Some(linger) = duration("linger_s", linger_s, SECONDS)? {
            config.linger = linger;
        }
        let interval = duration("keep_alive_interval_s", keep_alive_interval_s, SECONDS)?;
        let timeout = duration("keep_alive_timeout_s", keep_alive_timeout_s, SECONDS)?;
        config.keep_alive = config
            .keep_alive
            .map(|default| KeepAlive {
                interval: interval.unwrap_or(default.interval),
                timeout: timeout.unwrap_or(default.timeout),
            })
            .filter(|keep_alive| !keep_alive.interval.is_zero());
        backhaul::Context::new(config)
            .map(|context| Self {
                context: Owned::new(context),
                closed: AtomicBool::new(false),
            })
            .map_err(|error| error.into_exception(py))
    }

    #[doc = stub_doc!("Context.listen")]
    #[pyo3(signature = (address, *, tls = None))]
    fn listen(
        &self,
        py: Python<'_>,
        address: &str,
        tls: Option<Bound<'_, Tls>>,
    ) -> PyResult<Listener> {
        let tls = tls.as_ref().map(|tls| &tls.get().tls);
        listener::listen(py, self.context.check(py)?, address, tls)
    }

    #[doc = stub_doc!("Context.connect")]
    #[pyo3(signature = (address, *, lanes = None, tls = None))]
    fn connect(
        &self,
        py: Python<'_>,
        address: &str,
        lanes: Option<Bound<'_, PyAny>>,
        tls: Option<Bound<'_, Tls>>,
    ) -> PyResult<Request> {
        let context = self.context.check(py)?;
        let lanes = names("lanes", lanes)?;
        let tls = tls.as_ref().map(|tls| &tls.get().tls);
        let request = deferred::call(py, || match (tls, lanes) {
            (Some(tls), lanes) => context.connect_tls(address, lanes.as_deref(), tls),
            (None, Some(lanes)) => context.connect_over(address, &lanes),
            (None, None) => context.connect(address),
        });
        Ok(Request::new(Operation::Connect, request, Endpoint::object))
    }

    #[doc = stub_doc!("Context.statistics")]
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let pool = self.context.pool_statistics();
        let dict = PyDict::new(py);
        dict.set_item("pool_live_bytes", pool.live_bytes)?;
        dict.set_item("pool_cached_bytes", pool.cached_bytes)?;
        dict.set_item("pool_peak_bytes", pool.peak_bytes)?;
        dict.set_item("pool_hits", pool.hits)?;
        dict.set_item("pool_misses", pool.misses)?;
        Ok(dict)
    }

    #[doc = stub_doc!("Context.flows")]
    fn flows<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        // The parent's, in a child: it may hold the lock for ever.
        let flows = if self.context.is_foreign() {
            Vec::new()
        } else {
            self.context.flows()
        };
        flows.iter().map(|flow| flow_dict(py, flow)).collect()
    }

    #[doc = stub_doc!("Context.close")]
    fn close(&self, py: Python<'_>) {
        self.closed.store(true, Ordering::Release);
        if !self.context.is_foreign() {
            deferred::call(py, || self.context.close());
        }
    }

    #[doc = stub_doc!("Context.closed")]
    fn closed(&self) -> bool {
        self.context.is_foreign() || self.closed.load(Ordering::Acquire)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[doc = stub_doc!("Context.__exit__")]
    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let lanes = &self.context.config().lanes;
        let lanes: Vec<_> = lanes.iter().map(|lane| lane.name()).collect();
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<backhaul.Context {}{closed}>", lanes.join(" "))
    }
}

#[doc = stub_doc!("process_token")]
#[pyfunction]
pub(crate) fn process_token() -> PyResult<String> {
    Ok(hexadecimal(&backhaul::process_token()?))
}

fn flow_dict<'py>(py: Python<'py>, flow: &FlowStatistics) -> PyResult<Bound<'py, PyDict>> {
    let sizes: Vec<_> = SizeClass::all()
        .zip(&flow.sizes)
        .filter(|(_, size)| size.messages > 0)
        .map(|(class, size)| {
            let seconds = size.time.as_secs_f64();
            let counts = (size.messages, size.bytes, size.lent_bytes, seconds);
            (class.bytes_min(), counts)
        })
        .collect();
    let dict = PyDict::new(py);
    dict.set_item("process", flow.peer_process.as_ref().map(hexadecimal))?;
    dict.set_item("pid", flow.peer_pid)?;
    dict.set_item("host", flow.peer_host.to_string())?;
    dict.set_item("lane", flow.lane.name())?;
    dict.set_item("connections", flow.connections)?;
    dict.set_item("sizes", sizes.into_py_dict(py)?)?;
    let links: Vec<u8> = flow
        .links
        .iter()
        .flat_map(backhaul::LinkEstimate::to_bytes)
        .collect();
    dict.set_item("links", PyBytes::new(py, &links))?;
    dict.set_item("ignored", flow.ignored)?;
    Ok(dict)
}

fn hexadecimal(token: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*token))
}

/// A secret, of which no error shows anything
fn to_secret(value: &Bound<'_, PyAny>) -> PyResult<Secret> {
    let Ok(bytes) = value.cast::<PyBytes>() else {
        let kind = value.get_type().name()?;
        let text = format!("secret must be bytes, got an object of type {kind}");
        return Err(PyTypeError::new_err(text));
    };
    Secret::new(bytes.as_bytes())
        .map_err(|error| errors::config_error(value.py(), error.to_string()))
}

/// Where the wheel of UCX has its libraries, for when they are wanted
fn ucx_folders(py: Python<'_>) -> PyResult<Vec<PathBuf>> {
    py.import("backhaul._ucx")?
        .call_method0("library_folders")?
        .extract()
}

/// Units of durations, and what they are in seconds
const SECONDS: (&str, f64) = ("seconds", 1.0);
const MICROSECONDS: (&str, f64) = ("microseconds", 1e-6);

//! `Context`: configuration, buffers and the engine.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backhaul::{Config, FlowStatistics, KeepAlive, Secret, SizeClass};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict};

use crate::arena::Arena;
use crate::deferred;
use crate::endpoint::Endpoint;
use crate::errors::{self, IntoException, set};
use crate::listener::{self, Listener};
use crate::owned::Owned;
use crate::request::Request;
use crate::tls::Tls;

/// Owns configuration, buffers and the engine thread of a set of endpoints
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
        lanes: Option<Vec<String>>,
        carriers: Option<Vec<String>>,
        eager_bytes_max: Option<Bound<'_, PyAny>>,
        credit_bytes: Option<Bound<'_, PyAny>>,
        credit_messages: Option<Bound<'_, PyAny>>,
        message_bytes_max: Option<Bound<'_, PyAny>>,
        segments_max: Option<Bound<'_, PyAny>>,
        sends_max: Option<Bound<'_, PyAny>>,
        ring_bytes: Option<Bound<'_, PyAny>>,
        pool_cached_bytes_max: Option<Bound<'_, PyAny>>,
        spin_us: Option<f64>,
        handshake_timeout_s: Option<f64>,
        keep_alive_interval_s: Option<f64>,
        keep_alive_timeout_s: Option<f64>,
        linger_s: Option<f64>,
        backlog: Option<Bound<'_, PyAny>>,
        arena: Option<Bound<'_, Arena>>,
        lease_bytes_min: Option<Bound<'_, PyAny>>,
        populate_leases: bool,
        tls: Option<Bound<'_, Tls>>,
        secret: Option<Bound<'_, PyAny>>,
        shared_memory_uids: Option<Vec<Bound<'_, PyAny>>>,
    ) -> PyResult<Self> {
        let mut config = Config::default();
        if let Some(lanes) = lanes {
            config.lanes = parse_names(py, &lanes)?;
        }
        if let Some(carriers) = carriers {
            config.carriers = parse_names(py, &carriers)?;
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
        for uid in shared_memory_uids.unwrap_or_default() {
            let mut number = 0;
            set(&mut number, "shared_memory_uids", Some(uid))?;
            config.shared_memory_uids.push(number);
        }
        config.ucx.library.folders = ucx_folders(py)?;
        config.arena = arena.map(|arena| arena.get().arena.clone());
        if let Some(spin) = seconds(py, "spin_us", spin_us, 1e-6)? {
            config.spin = spin;
        }
        if let Some(timeout) = seconds(py, "handshake_timeout_s", handshake_timeout_s, 1.0)? {
            config.handshake_timeout = timeout;
        }
        if let Some(linger) = seconds(py, "linger_s", linger_s, 1.0)? {
            config.linger = linger;
        }
        let interval = seconds(py, "keep_alive_interval_s", keep_alive_interval_s, 1.0)?;
        let timeout = seconds(py, "keep_alive_timeout_s", keep_alive_timeout_s, 1.0)?;
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

    #[pyo3(signature = (address, *, lanes = None, tls = None))]
    fn connect(
        &self,
        py: Python<'_>,
        address: &str,
        lanes: Option<Vec<String>>,
        tls: Option<Bound<'_, Tls>>,
    ) -> PyResult<Request> {
        let context = self.context.check(py)?;
        let lanes = lanes.map(|lanes| parse_names(py, &lanes)).transpose()?;
        let tls = tls.as_ref().map(|tls| &tls.get().tls);
        let request = deferred::call(py, || match (tls, lanes) {
            (Some(tls), lanes) => context.connect_tls(address, lanes.as_deref(), tls),
            (None, Some(lanes)) => context.connect_over(address, &lanes),
            (None, None) => context.connect(address),
        });
        Ok(Request::new(request, Endpoint::object))
    }

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

    fn flows<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        // The parent's, in a child: it may hold the lock for ever.
        let flows = if self.context.is_foreign() {
            Vec::new()
        } else {
            self.context.flows()
        };
        flows.iter().map(|flow| flow_dict(py, flow)).collect()
    }

    fn close(&self, py: Python<'_>) {
        self.closed.store(true, Ordering::Release);
        if !self.context.is_foreign() {
            deferred::call(py, || self.context.close());
        }
    }

    fn closed(&self) -> bool {
        self.context.is_foreign() || self.closed.load(Ordering::Acquire)
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

    fn __repr__(&self) -> String {
        let lanes = &self.context.config().lanes;
        let lanes: Vec<_> = lanes.iter().map(|lane| lane.name()).collect();
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<backhaul.Context {}{closed}>", lanes.join(" "))
    }
}

/// What peers know this process by, in hexadecimal digits
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

/// Lanes or carriers by their names
fn parse_names<K: FromStr<Err: Display>>(py: Python<'_>, names: &[String]) -> PyResult<Vec<K>> {
    names
        .iter()
        .map(|name| {
            name.parse::<K>()
                .map_err(|error| errors::config_error(py, error.to_string()))
        })
        .collect()
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

/// A duration given as a number of `unit` seconds
fn seconds(
    py: Python<'_>,
    name: &str,
    value: Option<f64>,
    unit: f64,
) -> PyResult<Option<Duration>> {
    value
        .map(|value| {
            Duration::try_from_secs_f64(value * unit)
                .map_err(|error| errors::config_error(py, format!("{name} is {value}: {error}")))
        })
        .transpose()
}

/// Where the wheel of UCX has its libraries, for when they are wanted
fn ucx_folders(py: Python<'_>) -> PyResult<Vec<PathBuf>> {
    py.import("backhaul._ucx")?
        .call_method0("library_folders")?
        .extract()
}

//! `Endpoint`: one connected peer.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

use backhaul::{CloseReason, Message, Segments, Tag, TagMask};
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString};

use crate::buffer::{self, ReceivedBuffer, Source};
use crate::deferred;
use crate::device::DeviceBuffer;
use crate::loops::LoopBridge;
use crate::operation::Operation;
use crate::owned::Owned;
use crate::request::Request;
use crate::tls;

#[doc = stub_doc!("Endpoint")]
#[pyclass(frozen, weakref, module = "backhaul._native")]
pub(crate) struct Endpoint {
    endpoint: Owned<backhaul::Endpoint>,
    /// Requests behind `on_close`, kept so that their wakers are called
    watches: Mutex<Vec<Owned<backhaul::Request<CloseReason, Infallible>>>>,
}

impl Endpoint {
    pub(crate) fn new(endpoint: backhaul::Endpoint) -> Self {
        Self {
            endpoint: Owned::new(endpoint),
            watches: Mutex::default(),
        }
    }

    /// The Python object for a new endpoint
    pub(crate) fn object(py: Python<'_>, endpoint: backhaul::Endpoint) -> PyResult<Py<PyAny>> {
        Ok(Bound::new(py, Self::new(endpoint))?.into_any().unbind())
    }

    /// Its untagged messages, for another object
    pub(crate) fn frames_of(&self, py: Python<'_>) -> PyResult<backhaul::Frames> {
        Ok(self.endpoint.check(py)?.frames())
    }

    /// Posts a send, without the interpreter if much is to be copied
    fn post<T: Send>(py: Python<'_>, bytes: usize, post: impl FnOnce() -> T + Send) -> T {
        deferred::call(py, || {
            if bytes > DETACH_BYTES {
                py.detach(post)
            } else {
                post()
            }
        })
    }
}

#[pymethods]
impl Endpoint {
    #[doc = stub_doc!("Endpoint.local_address")]
    #[getter]
    fn local_address(&self) -> String {
        self.endpoint.local_address().to_string()
    }

    #[doc = stub_doc!("Endpoint.peer_address")]
    #[getter]
    fn peer_address(&self) -> String {
        self.endpoint.peer_address().to_string()
    }

    #[doc = stub_doc!("Endpoint.lane")]
    #[getter]
    fn lane(&self) -> &'static str {
        self.endpoint.lane().name()
    }

    #[doc = stub_doc!("Endpoint.send")]
    #[pyo3(signature = (buffer, *, tag = 0, shared = false))]
    fn send(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = bits)] tag: u64,
        shared: bool,
    ) -> PyResult<Request> {
        let endpoint = self.endpoint.check(py)?;
        let mut bytes = 0;
        let sent = buffer::source_with(buffer, |memory| {
            bytes = memory.len();
            deferred::call(py, || endpoint.send_copy(Tag(tag), memory))
        })?;
        let request = match sent {
            Source::Short(request) => request,
            Source::Long(segment) => {
                bytes = segment.len();
                Self::post(py, bytes, || {
                    if shared {
                        endpoint.send_segments_shared(Tag(tag), Segments::from_iter([segment]))
                    } else {
                        endpoint.send(Tag(tag), segment)
                    }
                })
            }
        };
        Ok(Request::of_send(py, sending(endpoint, bytes), request))
    }

    #[doc = stub_doc!("Endpoint.recv")]
    #[pyo3(signature = (buffer, *, tag = 0, mask = 0xFFFF_FFFF_FFFF_FFFF))]
    fn recv(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = bits)] tag: u64,
        #[pyo3(from_py_with = bits)] mask: u64,
    ) -> PyResult<Request> {
        let endpoint = self.endpoint.check(py)?;
        let target = buffer::target(buffer)?;
        let request = deferred::call(py, || endpoint.recv_boxed(Tag(tag), TagMask(mask), target));
        let operation = Operation::Recv { tag, mask };
        Ok(Request::new(operation, request, |py, received| {
            let result = make_received(py, received.bytes as u64, received.tag);
            buffer::release_received(py, received);
            result
        }))
    }

    #[doc = stub_doc!("Endpoint.probe")]
    #[pyo3(signature = (*, tag = 0, mask = 0xFFFF_FFFF_FFFF_FFFF))]
    fn probe(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = bits)] tag: u64,
        #[pyo3(from_py_with = bits)] mask: u64,
    ) -> PyResult<Option<Py<PyAny>>> {
        let endpoint = self.endpoint.check(py)?;
        let probe = || endpoint.probe(Tag(tag), TagMask(mask));
        let found = deferred::call(py, || py.detach(probe));
        found
            .map(|(tag, bytes)| make_received(py, bytes, tag))
            .transpose()
    }

    #[doc = stub_doc!("Endpoint.send_obj")]
    #[pyo3(signature = (object, *, tag = 0, shared = false))]
    fn send_obj(
        &self,
        py: Python<'_>,
        object: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = bits)] tag: u64,
        shared: bool,
    ) -> PyResult<Request> {
        static DUMP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let endpoint = self.endpoint.check(py)?;
        let frames = DUMP
            .import(py, "backhaul._objects", "dump")?
            .call1((object,))?;
        let (segments, bytes) = gather(&frames)?;
        let request = Self::post(py, bytes, || {
            if shared {
                endpoint.send_segments_shared(Tag(tag), segments)
            } else {
                endpoint.send_segments(Tag(tag), segments)
            }
        });
        Ok(Request::of_send(py, sending(endpoint, bytes), request))
    }

    #[doc = stub_doc!("Endpoint.recv_obj")]
    #[pyo3(signature = (*, tag = 0, mask = 0xFFFF_FFFF_FFFF_FFFF))]
    fn recv_obj(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = bits)] tag: u64,
        #[pyo3(from_py_with = bits)] mask: u64,
    ) -> PyResult<Request> {
        let endpoint = self.endpoint.check(py)?;
        let request = deferred::call(py, || endpoint.recv_message(Tag(tag), TagMask(mask)));
        let operation = Operation::Recv { tag, mask };
        Ok(Request::new(operation, request, |py, message| {
            static LOAD: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
            let tag = message.tag.unwrap_or_default();
            let frames = frames(py, message)?;
            let load = LOAD.import(py, "backhaul._objects", "load")?;
            Ok(load.call1((frames, tag.0))?.unbind())
        }))
    }

    #[doc = stub_doc!("Endpoint.send_frames")]
    #[pyo3(signature = (frames, *, shared = false))]
    fn send_frames(
        &self,
        py: Python<'_>,
        frames: &Bound<'_, PyAny>,
        shared: bool,
    ) -> PyResult<Request> {
        // Iterating over one would send its items, one by one.
        if buffer::is_buffer(frames) || frames.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err(format!(
                "frames must be a list of buffers, got one {}: put it into a list, or use send",
                frames.get_type().name()?,
            )));
        }
        let endpoint = self.endpoint.check(py)?;
        let (segments, bytes) = gather(frames)?;
        let request = Self::post(py, bytes, || {
            if shared {
                endpoint.send_frames_shared(segments)
            } else {
                endpoint.send_frames(segments)
            }
        });
        Ok(Request::of_send(py, sending(endpoint, bytes), request))
    }

    #[doc = stub_doc!("Endpoint.recv_frames")]
    fn recv_frames(&self, py: Python<'_>) -> PyResult<Request> {
        let endpoint = self.endpoint.check(py)?;
        let request = deferred::call(py, || endpoint.recv_frames());
        Ok(Request::new(
            Operation::RecvFrames,
            request,
            |py, message| Ok(frames(py, message)?.into_any().unbind()),
        ))
    }

    #[doc = stub_doc!("Endpoint.close")]
    fn close(&self, py: Python<'_>) -> PyResult<Request> {
        let endpoint = self.endpoint.check(py)?;
        let request = deferred::call(py, || endpoint.close());
        Ok(Request::new(Operation::Close, request, |py, ()| {
            Ok(py.None())
        }))
    }

    #[doc = stub_doc!("Endpoint.abort")]
    fn abort(&self, py: Python<'_>) {
        if !self.endpoint.is_foreign() {
            deferred::call(py, || self.endpoint.abort());
        }
    }

    #[doc = stub_doc!("Endpoint.closed")]
    fn closed(&self) -> bool {
        self.endpoint.is_foreign() || self.endpoint.is_closed()
    }

    #[doc = stub_doc!("Endpoint.on_close")]
    fn on_close(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        let (_, bridge) = LoopBridge::running(py)?;
        let request = self.endpoint.check(py)?.watch_close();
        let (waker, ticket) = bridge.get().waker(callback);
        if request.set_waker(&waker) {
            self.watches
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(Owned::new(request));
        } else {
            bridge.get().due(ticket);
        }
        Ok(())
    }

    #[doc = stub_doc!("Endpoint.queued_bytes")]
    fn queued_bytes(&self) -> u64 {
        self.endpoint.queued_bytes()
    }

    #[doc = stub_doc!("Endpoint.recent_events")]
    fn recent_events(&self) -> Vec<(f64, &'static str)> {
        let events = self.endpoint.recent_events();
        events
            .iter()
            .map(|event| (event.age.as_secs_f64(), event.kind.in_words()))
            .collect()
    }

    #[doc = stub_doc!("Endpoint.info")]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let info = self.endpoint.info();
        let dict = PyDict::new(py);
        dict.set_item("lane", info.lane.name())?;
        dict.set_item("reason", info.reason)?;
        dict.set_item("local_address", info.local_address.to_string())?;
        dict.set_item("peer_address", info.peer_address.to_string())?;
        dict.set_item("peer_pid", info.peer_pid)?;
        dict.set_item("peer_uid", info.peer_uid)?;
        dict.set_item("trust", info.trust.name())?;
        let tls = info.tls.as_ref();
        let tls = tls.map(|tls| tls::info_dict(py, tls)).transpose()?;
        dict.set_item("tls", tls)?;
        dict.set_item("same_host", info.same_host)?;
        dict.set_item("closed", info.closed)?;
        let carriers: Vec<_> = info.carriers.iter().map(|kind| kind.name()).collect();
        dict.set_item("carriers", carriers)?;
        let ways: Vec<_> = info
            .ways
            .iter()
            .map(|way| {
                (
                    way.bytes_min,
                    way.way.name(),
                    way.bytes_per_second,
                    way.samples,
                    way.is_chosen,
                )
            })
            .collect();
        dict.set_item("ways", ways)?;
        Ok(dict)
    }

    #[doc = stub_doc!("Endpoint.statistics")]
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let statistics = self.endpoint.statistics();
        let dict = PyDict::new(py);
        dict.set_item("lane", statistics.lane.name())?;
        for (name, count) in [
            ("sent_messages", statistics.sent_messages),
            ("sent_bytes", statistics.sent_bytes),
            ("received_messages", statistics.received_messages),
            ("received_bytes", statistics.received_bytes),
            ("sent_device_bytes", statistics.sent_device_bytes),
            ("received_device_bytes", statistics.received_device_bytes),
            ("queued_bytes", statistics.queued_bytes),
            ("wakeups", statistics.wakeups),
            ("spins_hit", statistics.spins_hit),
            ("spins_missed", statistics.spins_missed),
            ("overlooked", statistics.overlooked),
        ] {
            dict.set_item(name, count)?;
        }
        dict.set_item("send_time_s", statistics.send_time.as_secs_f64())?;
        dict.set_item("recv_time_s", statistics.recv_time.as_secs_f64())?;
        dict.set_item("age_s", statistics.age.as_secs_f64())?;
        Ok(dict)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.__aexit__(py, kind, value, traceback)?
            .wait(py, None)
            .map(drop)
    }

    fn __aenter__(slf: Py<Self>) -> Request {
        Request::ready(slf.into_any())
    }

    /// Closes; if the body raised, at once, because what it left half done is of no use
    fn __aexit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<Request> {
        if kind.is_none() && !self.endpoint.is_foreign() {
            return self.close(py);
        }
        self.abort(py);
        Ok(Request::ready(py.None()))
    }

    /// Returns the HTML that notebooks show
    fn _repr_html_<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static ENDPOINT_HTML: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        ENDPOINT_HTML
            .import(py, "backhaul._notebook", "endpoint_html")?
            .call1((self.info(py)?, self.statistics(py)?))
    }

    fn __repr__(&self) -> String {
        format!(
            "<backhaul.Endpoint {} -> {} over {}{}>",
            self.endpoint.local_address(),
            self.endpoint.peer_address(),
            self.endpoint.lane().name(),
            if self.closed() { ", closed" } else { "" },
        )
    }
}

/// Describes a send
fn sending(endpoint: &backhaul::Endpoint, bytes: usize) -> Operation {
    Operation::Send {
        bytes: bytes as u64,
        unasked_bytes_max: endpoint.unasked_bytes_max(),
    }
}

/// The memory of several buffers, and how many bytes they are
fn gather(frames: &Bound<'_, PyAny>) -> PyResult<(Segments, usize)> {
    let mut segments = Segments::new();
    let mut bytes = 0;
    let Ok(frames) = frames.try_iter() else {
        return Err(PyTypeError::new_err(format!(
            "frames must be a list of buffers, got {}",
            frames.repr()?
        )));
    };
    for frame in frames {
        let segment = buffer::source(&frame?)?;
        bytes += segment.len();
        segments.push(segment);
    }
    Ok((segments, bytes))
}

/// The frames of a message as Python has them
fn frames(py: Python<'_>, message: Message) -> PyResult<Bound<'_, PyList>> {
    let views = message
        .segments
        .into_iter()
        .map(|segment| ReceivedBuffer::view(py, segment))
        .collect::<PyResult<Vec<_>>>()?;
    let frames = PyList::new(py, views)?;
    for (place, memory) in message.device_segments {
        frames.set_item(place, DeviceBuffer::object(py, memory)?)?;
    }
    Ok(frames)
}

/// A `backhaul.Received`
fn make_received(py: Python<'_>, bytes: u64, tag: Tag) -> PyResult<Py<PyAny>> {
    static RECEIVED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let make = RECEIVED.import(py, "backhaul._buffers", "make_received")?;
    Ok(make.call1(((bytes, tag.0),))?.unbind())
}

/// A tag or mask
fn bits(number: &Bound<'_, PyAny>) -> PyResult<u64> {
    number.extract().map_err(|error: PyErr| {
        if error.is_instance_of::<PyOverflowError>(number.py()) {
            PyValueError::new_err(format!(
                "tags and masks are from 0 to 2**64 - 1, got {number}"
            ))
        } else if error.is_instance_of::<PyTypeError>(number.py()) {
            PyTypeError::new_err(format!(
                "tags and masks are integers, got an object of type {}",
                number
                    .get_type()
                    .name()
                    .map_or_else(|_| "unknown".to_owned(), |name| name.to_string())
            ))
        } else {
            error
        }
    })
}

/// From here on the interpreter is left while data is copied, in bytes: 10 µs at 6 GB/s, of the
/// order of what it costs to take it back when another thread wants it too
const DETACH_BYTES: usize = 64 << 10;

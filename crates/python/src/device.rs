//! Memory of devices between Python and Rust: descriptions by objects, and memory of this process.
//!
//! Sources: the CUDA Array Interface, version 3, of Numba's documentation; DLPack (`dlpack`).

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use backhaul::{DeviceMemory, RecvMemory, Segment, cuda};
use backhaul_sys::forks::PerProcess;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arguments;
use crate::buffer;
use crate::deferred;
use crate::dlpack;
use crate::errors::{self, IntoException};

/// Objects dropped by threads that must not run Python
static PENDING_RELEASES: PerProcess<Mutex<Vec<Py<PyAny>>>> = PerProcess::new();

/// A Python object whose memory an operation works on
struct Owner(Option<Py<PyAny>>);

impl Drop for Owner {
    fn drop(&mut self) {
        PENDING_RELEASES
            .value()
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(self.0.take());
        deferred::ask();
    }
}

/// Releases the objects that were dropped; the caller is attached to the interpreter
pub(crate) fn release_pending(_py: Python<'_>) {
    let pending = std::mem::take(
        &mut *PENDING_RELEASES
            .value()
            .lock()
            .unwrap_or_else(PoisonError::into_inner),
    );
    drop(pending);
}

/// Memory of a device that an object has; `None` if it says nothing of such memory
///
/// Without any bytes it is memory of the host as well as of any device.
pub(crate) fn memory_of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Option<Memory>> {
    let py = object.py();
    if let Some(own) = own_memory(object) {
        return Ok(Some(own));
    }
    let found = match object.getattr_opt(pyo3::intern!(py, "__cuda_array_interface__")) {
        Ok(Some(interface)) => Interface::of(object, &interface)?.in_order(object),
        Ok(None) => match dlpack::interface(object)? {
            Some(found) => found,
            None => return Ok(None),
        },
        // PyTorch raises for tensors that need a gradient, and says in DLPack what is the matter.
        Err(error) => dlpack::interface(object)?.ok_or(error)?,
    };
    found.memory(object, writable).map(Some)
}

/// As [`memory_of`], of what has no memory of the host and says so without more ado; `None` for others
pub(crate) fn memory_at_once(
    object: &Bound<'_, PyAny>,
    writable: bool,
) -> PyResult<Option<Memory>> {
    let py = object.py();
    if let Some(own) = own_memory(object) {
        return Ok(Some(own));
    }
    // An object with memory of the host offers that, too: NumPy's way to it comes first.
    let Ok(Some(interface)) = object.getattr_opt(pyo3::intern!(py, "__cuda_array_interface__"))
    else {
        return Ok(None);
    };
    if object.hasattr(pyo3::intern!(py, "__array_interface__"))? {
        return Ok(None);
    }
    let found = Interface::of(object, &interface)?.in_order(object);
    found.memory(object, writable).map(Some)
}

fn own_memory(object: &Bound<'_, PyAny>) -> Option<Memory> {
    let own = object.cast_exact::<DeviceBuffer>().ok()?;
    Some(Memory::Device(cuda::as_settled(&own.get().memory)))
}

/// Memory of an object on a device
pub(crate) enum Memory {
    Device(DeviceMemory),
    Empty,
}

/// Description of an object's memory by that object
pub(crate) struct Interface {
    pub(crate) pointer: u64,
    pub(crate) bytes: usize,
    pub(crate) is_readonly: bool,
    pub(crate) stream: u64,
    /// True if it says which stream that is, be it none
    pub(crate) speaks_of_streams: bool,
    /// Object that keeps the memory, if it is not the object itself
    pub(crate) owner: Option<Py<PyAny>>,
}

impl Interface {
    /// The memory that it describes
    fn memory(self, object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Memory> {
        let py = object.py();
        if writable && self.is_readonly {
            let text = format!("cannot receive into {}: it is read-only", describe(object));
            return Err(errors::buffer_error(py, text));
        }
        if self.bytes == 0 {
            return Ok(Memory::Empty);
        }
        let owner = Owner(Some(self.owner.unwrap_or_else(|| object.clone().unbind())));
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(owner);
        let memory =
            py.detach(|| cuda::describe(self.pointer, self.bytes, Some(self.stream), owner));
        let memory = memory.map_err(|error| error.into_exception(py))?;
        Ok(Memory::Device(memory))
    }

    /// Reads the CUDA Array Interface
    fn of(object: &Bound<'_, PyAny>, interface: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let interface: &Bound<'_, PyDict> = interface.cast().map_err(|_| {
            PyTypeError::new_err(format!(
                "__cuda_array_interface__ of {} is no dict",
                describe(object)
            ))
        })?;
        let required = |name: &str| {
            interface.get_item(name)?.ok_or_else(|| {
                PyValueError::new_err(format!(
                    "__cuda_array_interface__ of {} has no {name:?}",
                    describe(object)
                ))
            })
        };
        let (pointer, is_readonly): (u64, bool) = required("data")?.extract()?;
        let shape: Vec<usize> = required("shape")?.extract()?;
        let item_bytes = item_bytes(object, &required("typestr")?)?;
        let given = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
            Ok(interface.get_item(name)?.filter(|value| !value.is_none()))
        };
        if given("mask")?.is_some() {
            let text = format!("{} has a mask: send it apart", describe(object));
            return Err(errors::buffer_error(py, text));
        }
        if let Some(strides) = given("strides")? {
            let strides: Vec<isize> = strides.extract()?;
            check_contiguous(object, &shape, &strides, item_bytes)?;
        }
        // That of version 3 has None where its producer says that there is nothing to wait for.
        // Numba says so of what it has just copied from pageable memory, and what is copied may
        // still be on its way then: the default stream is asked all the same.
        let speaks_of_streams = interface.contains("stream")?;
        let stream = match given("stream")? {
            Some(stream) => stream.extract()?,
            None => STREAM_LEGACY,
        };
        let bytes = shape
            .iter()
            .try_fold(item_bytes, |bytes, length| bytes.checked_mul(*length))
            .ok_or_else(|| PyValueError::new_err(format!("a shape of {shape:?} is no memory")))?;
        Ok(Self {
            pointer,
            bytes,
            is_readonly,
            stream,
            speaks_of_streams,
            owner: None,
        })
    }

    /// Has the producer order its work, where this says nothing of streams
    ///
    /// JAX and PyTorch have streams of their own and interfaces of version 2, and wait in DLPack.
    fn in_order(mut self, object: &Bound<'_, PyAny>) -> Self {
        if !self.speaks_of_streams
            && self.bytes > 0
            && let Ok(Some(found)) = dlpack::interface(object)
        {
            self.stream = found.stream;
            self.owner = found.owner;
        }
        self
    }
}

/// Refuses what is not in one piece, in C's order
pub(crate) fn check_contiguous(
    object: &Bound<'_, PyAny>,
    shape: &[usize],
    strides_bytes: &[isize],
    item_bytes: usize,
) -> PyResult<()> {
    let mut wanted = isize::try_from(item_bytes).unwrap_or(isize::MAX);
    let mut is_contiguous = strides_bytes.len() == shape.len();
    for (length, stride) in shape.iter().zip(strides_bytes).rev() {
        is_contiguous &= *length <= 1 || *stride == wanted;
        wanted = wanted.saturating_mul(isize::try_from(*length).unwrap_or(isize::MAX));
    }
    if is_contiguous || shape.contains(&0) {
        return Ok(());
    }
    Err(errors::buffer_error(
        object.py(),
        format!(
            "{} is not C-contiguous (strides {strides_bytes:?} for shape {shape:?}): copy it first",
            describe(object),
        ),
    ))
}

/// Bytes of one element of a type such as `<f4`
fn item_bytes(object: &Bound<'_, PyAny>, typestr: &Bound<'_, PyAny>) -> PyResult<usize> {
    let text: String = typestr.extract()?;
    let kind = text.trim_start_matches(['<', '>', '|', '=']).chars().next();
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let count: usize = digits.parse().map_err(|_| {
        PyValueError::new_err(format!("{text:?} is no type of the array interface"))
    })?;
    match kind {
        Some('O') => Err(errors::buffer_error(
            object.py(),
            format!("{} holds references to Python objects", describe(object)),
        )),
        // Counted in characters.
        Some('U') => Ok(count.saturating_mul(4)),
        _ => Ok(count),
    }
}

pub(crate) fn describe(object: &Bound<'_, PyAny>) -> String {
    object
        .get_type()
        .name()
        .map_or_else(|_| "an object".to_owned(), |name| format!("a {name}"))
}

#[doc = stub_doc!("DeviceBuffer")]
#[pyclass(frozen, module = "backhaul._native")]
pub(crate) struct DeviceBuffer {
    memory: DeviceMemory,
}

impl DeviceBuffer {
    /// Returns received memory, whose bytes are there, as an object
    pub(crate) fn object(py: Python<'_>, memory: DeviceMemory) -> PyResult<Py<PyAny>> {
        cuda::set_settled(&memory, true);
        Ok(Bound::new(py, Self { memory })?.into_any().unbind())
    }

    /// Its address, for others, who may put work on a stream that touches the memory
    fn show(&self) -> u64 {
        cuda::set_settled(&self.memory, false);
        self.memory.pointer()
    }
}

#[pymethods]
impl DeviceBuffer {
    #[new]
    #[pyo3(signature = (nbytes, *, device = None), text_signature = "(nbytes, *, device=0)")]
    fn new(nbytes: &Bound<'_, PyAny>, device: Option<Bound<'_, PyAny>>) -> PyResult<Self> {
        let py = nbytes.py();
        let nbytes = arguments::count("nbytes", nbytes)?;
        let mut ordinal = 0;
        arguments::set(&mut ordinal, "device", device)?;
        let memory = py.detach(|| cuda::allocate(ordinal, nbytes));
        let memory = memory.map_err(|error| error.into_exception(py))?;
        Ok(Self { memory })
    }

    #[doc = stub_doc!("DeviceBuffer.nbytes")]
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.len()
    }

    #[doc = stub_doc!("DeviceBuffer.device")]
    #[getter]
    fn device(&self) -> u16 {
        self.memory.device().ordinal
    }

    #[doc = stub_doc!("DeviceBuffer.ptr")]
    #[getter]
    fn ptr(&self) -> u64 {
        self.show()
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("shape", PyTuple::new(py, [self.memory.len()])?)?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (self.show(), false))?;
        interface.set_item("strides", py.None())?;
        // The bytes are there: nothing is to be waited for.
        interface.set_item("stream", py.None())?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }

    fn __dlpack_device__(&self) -> (i32, u16) {
        (dlpack::DEVICE_CUDA, self.memory.device().ordinal)
    }

    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<Bound<'py, PyAny>>,
        dl_device: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // The bytes are there, on whichever stream; there is one device, and one version.
        let _ = (stream, max_version);
        let ours = slf.get().__dlpack_device__();
        if let Some(wanted) = dl_device
            && wanted.extract::<(i32, u16)>()? != ours
        {
            return Err(PyValueError::new_err(format!(
                "the memory is on device {ours:?}, not {wanted}"
            )));
        }
        if copy == Some(true) {
            return Err(PyValueError::new_err("copies are for the consumer to make"));
        }
        slf.get().show();
        dlpack::capsule(slf.as_any(), &slf.get().memory)
    }

    #[doc = stub_doc!("DeviceBuffer.copy_to_host")]
    fn copy_to_host(slf: &Bound<'_, Self>, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        copy_memory(slf.py(), slf.as_any(), buffer)
    }

    #[doc = stub_doc!("DeviceBuffer.copy_from_host")]
    fn copy_from_host(slf: &Bound<'_, Self>, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        copy_memory(slf.py(), buffer, slf.as_any())
    }

    fn __len__(&self) -> usize {
        self.memory.len()
    }

    fn __repr__(&self) -> String {
        let (bytes, device) = (self.memory.len(), self.memory.device());
        format!("<backhaul.DeviceBuffer of {bytes} bytes on {device}>")
    }
}

#[doc = stub_doc!("copy_memory")]
#[pyfunction]
pub(crate) fn copy_memory(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    target: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let from = buffer::source(source)?;
    let mut to = buffer::target(target)?;
    let outcome = py.detach(|| copy_between(&from, to.memory()));
    let bytes = (from.len(), to.memory().len());
    drop((from, to));
    deferred::run(py);
    match outcome {
        Some(copied) => copied.map_err(|error| error.into_exception(py)),
        None => Err(PyValueError::new_err(format!(
            "{} bytes do not fit a place of {}",
            bytes.0, bytes.1
        ))),
    }
}

/// Copies; `None` if the sizes differ
fn copy_between(from: &Segment, to: RecvMemory<'_>) -> Option<Result<(), cuda::CudaMemoryError>> {
    if from.len() != to.len() {
        return None;
    }
    Some(match (from, to) {
        (Segment::Device(from), RecvMemory::Host(to)) => cuda::download(from, to),
        (Segment::Device(from), RecvMemory::Device(to)) => cuda::copy(from, to),
        (Segment::Private(from) | Segment::Exported(from), RecvMemory::Device(to)) => {
            cuda::upload(from, to)
        }
        (Segment::Private(from) | Segment::Exported(from), RecvMemory::Host(to)) => {
            to.copy_from_slice(from);
            Ok(())
        }
    })
}

#[doc = stub_doc!("cuda_devices")]
#[pyfunction]
pub(crate) fn cuda_devices(py: Python<'_>) -> PyResult<Vec<(String, String)>> {
    let devices = py.detach(cuda::devices);
    devices.map_err(|error| cuda::CudaMemoryError::from(error).into_exception(py))
}

/// The legacy default stream, in the CUDA Array Interface
const STREAM_LEGACY: u64 = 1;

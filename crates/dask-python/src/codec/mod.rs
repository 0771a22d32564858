//! Messages of Python objects to msgpack and back: `Codec`.
//!
//! The walk over a message is done here, what needs no Python of it in `backhaul_dask`; whatever has a meaning beyond msgpack is asked of the
//! callables and classes given to the constructor, so nothing here knows Dask by name. A message
//! without such objects never calls Python.

mod bytes;
mod calls_write;
mod decode;
mod encode;
mod functions;
mod graph_write;
mod keys;
mod scalars;
mod spec_read;
mod spec_write;
mod still;

use std::sync::{Mutex, PoisonError};

use backhaul_dask::codec::task::pickle_around;
use backhaul_dask::msgpack::Writer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple, PyType};

use decode::Decoder;
use encode::{Encoder, Frames};
use functions::{LoadedFunctions, SentFunctions};
use keys::KeyCache;

#[doc = stub_doc!("Codec")]
#[pyclass(frozen, module = "backhaul._native")]
pub(crate) struct Codec {
    names: Names,
    /// Taken out while a message is read; who finds none makes another
    keys: Mutex<Option<KeyCache>>,
    sent: SentFunctions,
    loaded: LoadedFunctions,
}

/// Python's functions and classes that the codec uses
struct Names {
    /// `default(object, frames, options)`: a packable object for one that is not
    default: Py<PyAny>,
    /// The same for the second attempt, in which what cannot be packed is pickled
    default_or_pickle: Py<PyAny>,
    /// `plain_default(object)`: the same for headers, which have no frames
    plain_default: Py<PyAny>,
    /// `hook(dict, frames, options)`: what a map with a reserved key stands for
    hook: Py<PyAny>,
    /// `plain_hook(dict)`: the same for headers
    plain_hook: Py<PyAny>,
    /// `weigh(object)`: about how many bytes an object has, negative if unknown
    weigh: Py<PyAny>,
    /// Marks an object to be pickled
    to_pickle: Py<PyType>,
    /// Marks an object to be serialized
    serialize: Py<PyType>,
    /// One that is, made of header and frames
    serialized: Py<PyAny>,
    /// Header of any scalar that is serialized
    scalar_header: Py<PyBytes>,
    /// The header as read from it
    scalar_header_read: Py<PyDict>,
    /// `scalar_protocol(options)`: the pickle protocol for scalars; `None`, if they are Dask's
    scalar_protocol: Py<PyAny>,
    /// `scalars_written(seconds)`: told how long the scalars of a message took
    scalars_written: Py<PyAny>,
    /// `scalars_read(seconds)`: the same
    scalars_read: Py<PyAny>,
    /// `dumps(object, protocol)`: pickles
    dumps: Py<PyAny>,
    ext_type: Py<PyType>,
    timestamp: Py<PyType>,
    format_error: Py<PyAny>,
    stack_error: Py<PyAny>,
    extra_data: Py<PyAny>,
    /// `loads(bytes)`: unpickles
    loads: Py<PyAny>,
    /// `describe(function)`: how to send a function, see [`SentFunctions`]
    describe: Py<PyAny>,
    /// Modules whose functions cloudpickle pickles by value
    by_value_modules: Py<PyAny>,
    /// Classes of tasks: instances are nothing but their slots
    tasks: Vec<Py<PyType>>,
    /// Names of these slots
    slots: Vec<Py<PyAny>>,
    /// A reference to a key: made of its key
    task_ref: Py<PyType>,
    /// Made of key and target
    alias: Py<PyType>,
    /// Made of key and value
    data_node: Py<PyType>,
    /// A function with some of its arguments
    partial: Py<PyType>,
    /// Types of objects that [`Names::describe`] is asked about, besides classes
    functions: Vec<Py<PyType>>,
    /// A task that is a pickle still
    kept: Py<PyType>,
    /// `raising(error)`: stands for a function that cannot be loaded, and raises when it is called
    raising: Py<PyAny>,
    /// Opcodes of a pickle, up to the payload of a task
    spec_prefix: Vec<u8>,
}

#[pymethods]
impl Codec {
    #[new]
    #[pyo3(signature = (**names))]
    fn new(names: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let names = names.ok_or_else(|| PyTypeError::new_err("no names given"))?;
        Ok(Self {
            names: Names::new(names)?,
            keys: Mutex::new(None),
            sent: SentFunctions::default(),
            loaded: LoadedFunctions::default(),
        })
    }

    #[doc = stub_doc!("Codec.encode")]
    #[pyo3(signature = (message, frames, options, or_pickle = false, inline_bytes_max = None, /))]
    fn encode(
        &self,
        message: &Bound<'_, PyAny>,
        frames: &Bound<'_, PyList>,
        options: &Bound<'_, PyAny>,
        or_pickle: bool,
        inline_bytes_max: Option<usize>,
    ) -> PyResult<isize> {
        let py = message.py();
        let target = Frames {
            list: frames,
            options,
            or_pickle,
        };
        let encoder = Encoder::new(py, self, Some(target), inline_bytes_max);
        match encoder.encode(message)? {
            Some(header) => {
                frames.set_item(0, PyBytes::new(py, header.as_bytes()))?;
                Ok(isize::try_from(total_bytes(frames)?)?)
            }
            None => Ok(-1),
        }
    }

    #[doc = stub_doc!("Codec.decode")]
    fn decode<'py>(
        &self,
        frames: &Bound<'py, PyAny>,
        options: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = frames.py();
        let first = match frames.cast_exact::<PyList>() {
            Ok(list) => list.get_item(0)?,
            Err(_) => frames.get_item(0)?,
        };
        self.with_keys(|keys| {
            bytes::with_bytes(&first, |data| {
                Decoder::new(py, self, keys, data, Some((frames, options))).message()
            })
        })
    }

    #[doc = stub_doc!("Codec.pack")]
    fn pack<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let py = object.py();
        let header = Encoder::new(py, self, None, None).encode(object)?;
        Ok(PyBytes::new(py, header.unwrap_or_default().as_bytes()))
    }

    #[doc = stub_doc!("Codec.unpack")]
    fn unpack<'py>(&self, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.with_keys(|keys| {
            bytes::with_bytes(data, |bytes| {
                Decoder::new(data.py(), self, keys, bytes, None).message()
            })
        })
    }

    #[doc = stub_doc!("Codec.decode_task")]
    fn decode_task<'py>(&self, payload: &Bound<'py, PyBytes>) -> PyResult<Bound<'py, PyAny>> {
        self.with_keys(|keys| spec_read::task(payload.py(), self, keys, payload.as_bytes()))
    }

    #[doc = stub_doc!("Codec.encode_task")]
    fn encode_task<'py>(&self, task: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let py = task.py();
        let mut payload = Writer::default();
        if !spec_write::task(self, task, &mut payload)? {
            return Ok(None);
        }
        let Some((head, tail)) = pickle_around(payload.len()) else {
            return Ok(None);
        };
        let parts = [&self.names.spec_prefix[..], &head, payload.as_bytes(), tail];
        Ok(Some(PyBytes::new(py, &parts.concat())))
    }

    #[doc = stub_doc!("Codec.encode_calls")]
    fn encode_calls<'py>(
        &self,
        task: &Bound<'py, PyAny>,
        keys: &Bound<'py, PyList>,
        calls: &Bound<'py, PyAny>,
        parse: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let written = calls_write::calls(self, task, keys, calls, parse)?;
        Ok(written.map(|written| PyBytes::new(task.py(), &written)))
    }

    #[doc = stub_doc!("Codec.encode_graph")]
    fn encode_graph<'py>(
        &self,
        graph: &Bound<'py, PyDict>,
        ordered: &Bound<'py, PyDict>,
        wanted: &Bound<'py, PyAny>,
        pickle: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let written = graph_write::graph(self, graph, ordered, wanted, pickle)?;
        Ok(written.map(|written| PyBytes::new(graph.py(), &written)))
    }

    #[doc = stub_doc!("Codec.statistics")]
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let (functions, bytes) = self.sent.usage();
        dict.set_item("sent_functions", functions)?;
        dict.set_item("sent_bytes", bytes)?;
        let (functions, bytes) = self.loaded.usage();
        dict.set_item("loaded_functions", functions)?;
        dict.set_item("loaded_bytes", bytes)?;
        Ok(dict)
    }

    #[doc = stub_doc!("Codec.clear")]
    fn clear(&self) {
        self.sent.clear();
        self.loaded.clear();
    }
}

impl Codec {
    fn with_keys<T>(&self, work: impl FnOnce(&mut KeyCache) -> T) -> T {
        let taken = self.lock_keys().take();
        let mut keys = taken.unwrap_or_default();
        let outcome = work(&mut keys);
        let replaced = self.lock_keys().replace(keys);
        drop(replaced);
        outcome
    }

    fn lock_keys(&self) -> std::sync::MutexGuard<'_, Option<KeyCache>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Names {
    fn new(names: &Bound<'_, PyDict>) -> PyResult<Self> {
        let any = |name: &str| {
            names
                .get_item(name)?
                .ok_or_else(|| PyTypeError::new_err(format!("missing name {name:?}")))
        };
        let class = |name: &str| Ok::<_, PyErr>(any(name)?.cast_into::<PyType>()?.unbind());
        let classes = |name: &str| {
            any(name)?
                .try_iter()?
                .map(|class| Ok(class?.cast_into::<PyType>()?.unbind()))
                .collect::<PyResult<Vec<_>>>()
        };
        Ok(Self {
            default: any("default")?.unbind(),
            default_or_pickle: any("default_or_pickle")?.unbind(),
            plain_default: any("plain_default")?.unbind(),
            hook: any("hook")?.unbind(),
            plain_hook: any("plain_hook")?.unbind(),
            weigh: any("weigh")?.unbind(),
            to_pickle: class("to_pickle")?,
            serialize: class("serialize")?,
            serialized: any("serialized")?.unbind(),
            scalar_header: any("scalar_header")?.cast_into::<PyBytes>()?.unbind(),
            scalar_header_read: any("scalar_header_read")?.cast_into::<PyDict>()?.unbind(),
            scalar_protocol: any("scalar_protocol")?.unbind(),
            scalars_written: any("scalars_written")?.unbind(),
            scalars_read: any("scalars_read")?.unbind(),
            dumps: any("dumps")?.unbind(),
            ext_type: class("ext_type")?,
            timestamp: class("timestamp")?,
            format_error: any("format_error")?.unbind(),
            stack_error: any("stack_error")?.unbind(),
            extra_data: any("extra_data")?.unbind(),
            loads: any("loads")?.unbind(),
            describe: any("describe")?.unbind(),
            by_value_modules: any("by_value_modules")?.unbind(),
            tasks: classes("tasks")?,
            slots: any("slots")?
                .cast_into::<PyTuple>()?
                .iter()
                .map(Bound::unbind)
                .collect(),
            task_ref: class("task_ref")?,
            alias: class("alias")?,
            data_node: class("data_node")?,
            partial: class("partial")?,
            functions: classes("functions")?,
            kept: class("kept")?,
            raising: any("raising")?.unbind(),
            spec_prefix: any("spec_prefix")?.extract()?,
        })
    }
}

/// Returns whether this is the class of an object itself
fn is_class_of(class: &Py<PyType>, object: &Bound<'_, PyAny>) -> bool {
    object.get_type_ptr().cast() == class.as_ptr()
}

fn total_bytes(frames: &Bound<'_, PyList>) -> PyResult<usize> {
    let mut bytes = 0;
    for frame in frames.iter() {
        bytes += match frame.cast_exact::<PyBytes>() {
            Ok(frame) => frame.as_bytes().len(),
            Err(_) => match frame.getattr_opt(pyo3::intern!(frames.py(), "nbytes"))? {
                Some(nbytes) => nbytes.extract()?,
                None => frame.len()?,
            },
        };
    }
    Ok(bytes)
}

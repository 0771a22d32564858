//! From Python objects to msgpack, with what msgpack cannot say put into frames of its own.
//!
//! Types are matched as by the packer of the package msgpack: exact types first, then their
//! sub-classes, which are written as their base type.

use backhaul_dask::codec::header;
use backhaul_dask::codec::scalar::is_sent_as_it_is;
use backhaul_dask::codec::task::pickle_around;
use backhaul_dask::msgpack::{TooLong, Writer};
use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMemoryView, PySet, PyString,
    PyTuple,
};

use super::scalars::{self, Stopwatch};
use super::{Codec, bytes, is_class_of, spec_write, still};

/// One message, or one header, being written
pub(super) struct Encoder<'a, 'py> {
    py: Python<'py>,
    codec: &'a Codec,
    writer: Writer,
    /// Where serialized parts go; a header has none
    frames: Option<Frames<'a, 'py>>,
    /// How much may be written, if the time that it takes matters
    inline_bytes_max: Option<usize>,
    /// Size of what was serialized besides
    weighed_bytes: usize,
    /// How often Python code may have run, which may have changed what is being written
    calls: usize,
    /// How scalars are pickled: unknown until the first comes, nothing if they are Dask's
    scalar_protocol: Option<Option<u8>>,
    /// Time spent on them
    scalars: Stopwatch,
}

/// Where serialized parts of a message go, and how they come to be
#[derive(Clone, Copy)]
pub(super) struct Frames<'a, 'py> {
    pub(super) list: &'a Bound<'py, PyList>,
    /// Passed on to `default`
    pub(super) options: &'a Bound<'py, PyAny>,
    /// True if what cannot be packed is pickled
    pub(super) or_pickle: bool,
}

/// Why there is no message
enum Stop {
    Error(PyErr),
    TooMuch,
}

type Outcome<T = ()> = Result<T, Stop>;

impl<'a, 'py> Encoder<'a, 'py> {
    pub(super) fn new(
        py: Python<'py>,
        codec: &'a Codec,
        frames: Option<Frames<'a, 'py>>,
        inline_bytes_max: Option<usize>,
    ) -> Self {
        Self {
            py,
            codec,
            writer: Writer::with_capacity(HEADER_BYTES_USUAL),
            frames,
            inline_bytes_max,
            weighed_bytes: 0,
            calls: 0,
            scalar_protocol: None,
            scalars: Stopwatch::default(),
        }
    }

    /// The header of a message; `None`, if it is too much to be written inline
    pub(super) fn encode(mut self, message: &Bound<'py, PyAny>) -> PyResult<Option<Writer>> {
        match self.pack(message, NESTING_MAX) {
            Ok(()) => {
                self.scalars
                    .report(&self.codec.names.scalars_written, self.py)?;
                Ok(Some(self.writer))
            }
            Err(Stop::TooMuch) => Ok(None),
            Err(Stop::Error(error)) => Err(error),
        }
    }

    #[inline]
    fn pack(&mut self, object: &Bound<'py, PyAny>, nesting_left: i32) -> Outcome {
        // Most of a message is short text.
        if nesting_left >= 0
            && let Ok(text) = object.cast_exact::<PyString>()
        {
            return self.text(text.to_str()?);
        }
        self.pack_any(object, nesting_left)
    }

    fn pack_any(&mut self, object: &Bound<'py, PyAny>, nesting_left: i32) -> Outcome {
        if nesting_left < 0 {
            return Err(PyValueError::new_err("recursion limit exceeded.").into());
        }
        let inner = nesting_left - 1;
        if self.pack_inner(object, inner)? {
            return Ok(());
        }
        let Some(replacement) = self.default(object, inner)? else {
            return Ok(());
        };
        if self.pack_inner(&replacement, inner)? {
            return Ok(());
        }
        if replacement.is_instance_of::<PyInt>() {
            return Err(PyOverflowError::new_err("Integer value out of range").into());
        }
        let text = format!("can not serialize '{}' object", type_name(&replacement)?);
        Err(PyTypeError::new_err(text).into())
    }

    /// Writes an object unless msgpack has no form for it
    fn pack_inner(&mut self, object: &Bound<'py, PyAny>, inner: i32) -> Outcome<bool> {
        if let Ok(text) = object.cast_exact::<PyString>() {
            self.text(text.to_str()?)?;
        } else if object.is_exact_instance_of::<PyInt>() {
            return self.int(object);
        } else if let Ok(dict) = object.cast_exact::<PyDict>() {
            self.dict(dict, inner)?;
        } else if let Ok(tuple) = object.cast_exact::<PyTuple>() {
            self.writer.array(tuple.len())?;
            for item in tuple.iter_borrowed() {
                self.pack(&item, inner)?;
                self.check_inline(0)?;
            }
        } else if object.is_none() {
            self.writer.nil();
        } else if let Ok(bool) = object.cast_exact::<PyBool>() {
            self.writer.bool(bool.is_true());
        } else if let Ok(float) = object.cast_exact::<PyFloat>() {
            self.writer.float(float.value());
        } else if let Ok(list) = object.cast_exact::<PyList>() {
            self.writer.array(list.len())?;
            self.items(list, inner)?;
        } else if let Ok(data) = object.cast_exact::<PyBytes>() {
            self.bin(data.as_bytes())?;
        } else {
            return self.pack_other(object, inner);
        }
        Ok(true)
    }

    /// Writes what is no built-in object itself, but can be taken for one
    fn pack_other(&mut self, object: &Bound<'py, PyAny>, inner: i32) -> Outcome<bool> {
        let names = &self.codec.names;
        self.calls += 1;
        if object.is_instance_of::<PyInt>() {
            return self.int(object);
        } else if let Ok(float) = object.cast::<PyFloat>() {
            self.writer.float(float.value());
        } else if let Ok(data) = object.cast::<PyBytes>() {
            self.bin(data.as_bytes())?;
        } else if let Ok(data) = object.cast::<PyByteArray>() {
            self.check_inline(data.len())?;
            self.bin(&data.to_vec())?;
        } else if let Ok(text) = object.cast::<PyString>() {
            self.text(text.to_str()?)?;
        } else if object.is_instance_of::<PyDict>() {
            self.writer.map(object.len()?)?;
            for pair in object.call_method0(intern!(self.py, "items"))?.try_iter()? {
                let (key, value) = pair?.extract::<(Bound<'py, PyAny>, Bound<'py, PyAny>)>()?;
                self.pack(&key, inner)?;
                self.pack(&value, inner)?;
                self.check_inline(0)?;
            }
        } else if object.is_instance(names.ext_type.bind(self.py))? {
            let data = object.getattr(intern!(self.py, "data"))?;
            let code = object
                .getattr(intern!(self.py, "code"))?
                .extract::<i64>()?
                .to_le_bytes()[0]
                .cast_signed();
            self.writer.ext(
                code,
                data.cast::<PyBytes>().map_err(PyErr::from)?.as_bytes(),
            )?;
        } else if is_class_of(&names.timestamp, object) {
            let seconds = object.getattr(intern!(self.py, "seconds"))?.extract()?;
            let nanoseconds = object.getattr(intern!(self.py, "nanoseconds"))?.extract()?;
            self.writer.timestamp(seconds, nanoseconds);
        } else if let Ok(tuple) = object.cast::<PyTuple>() {
            self.writer.array(tuple.len())?;
            for item in object.try_iter()? {
                self.pack(&item?, inner)?;
                self.check_inline(0)?;
            }
        } else if let Ok(list) = object.cast::<PyList>() {
            self.writer.array(list.len())?;
            for item in object.try_iter()? {
                self.pack(&item?, inner)?;
                self.check_inline(0)?;
            }
        } else if let Ok(view) = object.cast::<PyMemoryView>() {
            self.bin(bytes::of_memoryview(view)?.as_bytes())?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn int(&mut self, object: &Bound<'py, PyAny>) -> Outcome<bool> {
        match object.extract::<i64>() {
            Ok(value) => self.writer.int(value),
            Err(error) if error.is_instance_of::<PyOverflowError>(self.py) => {
                match object.extract::<u64>() {
                    Ok(value) => self.writer.uint(value),
                    Err(error) if error.is_instance_of::<PyOverflowError>(self.py) => {
                        return Ok(false);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    fn dict(&mut self, dict: &Bound<'py, PyDict>, inner: i32) -> Outcome {
        let still = still::dict(dict)?;
        let pairs = still.len();
        self.writer.map(pairs)?;
        let mut left = still.iter();
        let calls_before = self.calls;
        for _ in 0..pairs {
            // The iterator panics if the size differs.
            if self.calls != calls_before && dict.len() != pairs {
                let text = "dictionary changed size during iteration";
                return Err(PyRuntimeError::new_err(text).into());
            }
            let Some((key, value)) = left.next() else {
                let text = "dictionary keys changed during iteration";
                return Err(PyRuntimeError::new_err(text).into());
            };
            self.pack(&key, inner)?;
            self.pack(&value, inner)?;
            self.check_inline(0)?;
        }
        if self.calls != calls_before && dict.len() != pairs {
            let text = "dictionary changed size during iteration";
            return Err(PyRuntimeError::new_err(text).into());
        }
        Ok(())
    }

    /// Items of a list, which `default` may change meanwhile: the iteration then sees the change
    fn items(&mut self, list: &Bound<'py, PyList>, inner: i32) -> Outcome {
        let mut index = 0;
        while index < list.len() {
            self.pack(&list.get_item(index)?, inner)?;
            self.check_inline(0)?;
            index += 1;
        }
        Ok(())
    }

    /// Returns the object to pack in place of another; `None` if it is written already
    fn default(
        &mut self,
        object: &Bound<'py, PyAny>,
        inner: i32,
    ) -> Outcome<Option<Bound<'py, PyAny>>> {
        if let Ok(set) = object.cast_exact::<PySet>() {
            return self.set(set, inner).map(|()| None);
        }
        let names = &self.codec.names;
        let Some(frames) = self.frames else {
            let replacement = names.plain_default.bind(self.py).call1((object,))?;
            return Ok(Some(replacement));
        };
        if is_class_of(&names.to_pickle, object) && self.task(object, frames.list)? {
            return Ok(None);
        }
        if is_class_of(&names.serialize, object) && self.scalar(object, frames)? {
            return Ok(None);
        }
        if self.inline_bytes_max.is_some() {
            let weight = names
                .weigh
                .bind(self.py)
                .call1((object,))?
                .extract::<i64>()?;
            let Ok(weight) = usize::try_from(weight) else {
                return Err(Stop::TooMuch);
            };
            self.weighed_bytes = self.weighed_bytes.saturating_add(weight);
            self.check_inline(0)?;
        }
        let default = if frames.or_pickle {
            &names.default_or_pickle
        } else {
            &names.default
        };
        let arguments = (object, frames.list, frames.options);
        Ok(Some(default.bind(self.py).call1(arguments)?))
    }

    /// A set, as a map that says so
    fn set(&mut self, set: &Bound<'py, PySet>, inner: i32) -> Outcome {
        // The list is two levels further in: items of the map that stands for the set.
        if inner < 0 {
            return Err(PyValueError::new_err("recursion limit exceeded.").into());
        }
        let items = still::items(set)?;
        self.writer.map(2)?;
        self.writer.str(header::SET)?;
        self.writer.bool(true);
        self.writer.str(header::SET_ITEMS)?;
        self.writer.array(items.len())?;
        for item in items {
            self.pack(&item, inner - 1)?;
            self.check_inline(0)?;
        }
        Ok(())
    }

    /// A task that is to be pickled, if it is simple enough for a pickle made here
    fn task(&mut self, marked: &Bound<'py, PyAny>, frames: &Bound<'py, PyList>) -> Outcome<bool> {
        let task = marked.getattr(intern!(self.py, "data"))?;
        if is_class_of(&self.codec.names.kept, &task) {
            return self.kept(&task, frames);
        }
        let mut payload = Writer::with_capacity(HEADER_BYTES_USUAL);
        if !spec_write::task(self.codec, &task, &mut payload)? {
            return Ok(false);
        }
        let Some((head, tail)) = pickle_around(payload.len()) else {
            return Ok(false);
        };
        let prefix = &self.codec.names.spec_prefix;
        self.pickle_of_task(&[prefix, &head, payload.as_bytes(), tail], frames)
    }

    /// A task that is a pickle still, which goes on as it is
    fn kept(&mut self, task: &Bound<'py, PyAny>, frames: &Bound<'py, PyList>) -> Outcome<bool> {
        let kept = task.getattr(intern!(self.py, KEPT_SLOT))?;
        match kept.cast_exact::<PyBytes>() {
            Ok(pickle) => self.pickle_of_task(&[pickle.as_bytes()], frames),
            Err(_) => Ok(false),
        }
    }

    fn pickle_of_task(&mut self, parts: &[&[u8]], frames: &Bound<'py, PyList>) -> Outcome<bool> {
        let header = header::of_pickle(parts)?;
        header::write_placeholder(&mut self.writer, header::PICKLED, frames.len())?;
        self.weighed_bytes += header.len();
        frames.append(PyBytes::new(self.py, header.as_bytes()))?;
        Ok(true)
    }

    /// An object that is to be serialized, if it is one whose serialized form is known beforehand
    fn scalar(&mut self, marked: &Bound<'py, PyAny>, frames: Frames<'_, 'py>) -> Outcome<bool> {
        let scalar = marked.getattr(intern!(self.py, "data"))?;
        if !scalars::is_scalar(&scalar)? {
            return Ok(false);
        }
        let names = &self.codec.names;
        let protocol = match self.scalar_protocol {
            Some(known) => known,
            None => {
                let protocol = names.scalar_protocol.bind(self.py);
                let protocol = protocol.call1((frames.options,))?.extract::<Option<u8>>()?;
                *self.scalar_protocol.insert(protocol)
            }
        };
        let Some(protocol) = protocol else {
            return Ok(false);
        };
        let pickled = self.scalars.time(|| {
            let pickled = names.dumps.bind(self.py).call1((scalar, protocol))?;
            Ok::<_, PyErr>(pickled.cast_into::<PyBytes>()?)
        })?;
        if !is_sent_as_it_is(pickled.as_bytes()) {
            return Ok(false);
        }
        let frame = frames.list.len();
        header::write_placeholder(&mut self.writer, header::SERIALIZED, frame)?;
        let header = names.scalar_header.bind(self.py);
        self.weighed_bytes += header.as_bytes().len() + pickled.as_bytes().len();
        frames.list.append(header)?;
        frames.list.append(pickled)?;
        Ok(true)
    }

    fn text(&mut self, text: &str) -> Outcome {
        self.check_inline(text.len())?;
        Ok(self.writer.str(text)?)
    }

    fn bin(&mut self, data: &[u8]) -> Outcome {
        self.check_inline(data.len())?;
        Ok(self.writer.bin(data)?)
    }

    /// Gives up if what is written and what comes next take too long: after each item, as one may
    /// be large in many small parts, and before each copy, as that may be all of it
    #[inline]
    fn check_inline(&self, next_bytes: usize) -> Outcome {
        let Some(max) = self.inline_bytes_max else {
            return Ok(());
        };
        let written_bytes = self.writer.len().saturating_add(self.weighed_bytes);
        if written_bytes.saturating_add(next_bytes) > max {
            return Err(Stop::TooMuch);
        }
        Ok(())
    }
}

impl From<PyErr> for Stop {
    fn from(error: PyErr) -> Self {
        Self::Error(error)
    }
}

impl From<TooLong> for Stop {
    fn from(error: TooLong) -> Self {
        Self::Error(PyValueError::new_err(error.to_string()))
    }
}

/// The name of a type as the interpreter has it: with its module for those written in C
fn type_name(object: &Bound<'_, PyAny>) -> PyResult<String> {
    let class = object.get_type();
    let flags: u64 = class
        .getattr(intern!(object.py(), "__flags__"))?
        .extract()?;
    let module = class.module()?;
    let is_python_class = flags & (HEAP_TYPE | IMMUTABLE_TYPE) == HEAP_TYPE;
    if is_python_class || module.to_str()? == "builtins" {
        return Ok(class.name()?.to_string());
    }
    Ok(format!("{module}.{}", class.name()?))
}

/// Where a task that is a pickle still has the pickle
const KEPT_SLOT: &str = "_repr";

/// As deep as the package msgpack nests (1.2.4)
const NESTING_MAX: i32 = 1024;

/// Room for a usual header; a longer one makes the buffer grow
const HEADER_BYTES_USUAL: usize = 512;

/// `Py_TPFLAGS_HEAPTYPE`: the type was made while the program ran
const HEAP_TYPE: u64 = 1 << 9;

/// `Py_TPFLAGS_IMMUTABLETYPE`, which types have that are made on the heap by C
const IMMUTABLE_TYPE: u64 = 1 << 8;

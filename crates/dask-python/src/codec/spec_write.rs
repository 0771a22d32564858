//! Tasks as pickles, without the pickler.
//!
//! A task is a handful of slots, most of them keys, numbers and references. Those are written as
//! msgpack, with types that msgpack does not have in tagged arrays (see [`tag`]); around it is a
//! pickle of four opcodes that calls the loader. A value without a tag is not simple: the whole
//! task then goes to the pickler, as it alone keeps the identity of objects that are referenced
//! twice.

use std::collections::HashSet;

use backhaul_dask::codec::task::tag;
use backhaul_dask::msgpack::{TooLong, Writer};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySlice, PyString, PyTuple,
    PyType,
};

use super::{Codec, is_class_of, still};

/// Writes a task; `false`, if it is not simple, in which case `payload` is of no use
pub(super) fn task(codec: &Codec, task: &Bound<'_, PyAny>, payload: &mut Writer) -> PyResult<bool> {
    let names = &codec.names;
    if !(names.tasks.iter().any(|class| is_class_of(class, task))
        || is_class_of(&names.alias, task)
        || is_class_of(&names.data_node, task))
    {
        return Ok(false);
    }
    let mut writing = SpecWriter::new(codec, payload, HashSet::new());
    match writing.write(task, NESTING_MAX) {
        Ok(()) => Ok(true),
        Err(Stop::NotSimple) => Ok(false),
        Err(Stop::Error(error)) => Err(error),
    }
}

/// Writes objects of one task
pub(super) struct SpecWriter<'a> {
    codec: &'a Codec,
    payload: &'a mut Writer,
    /// Where in that the task begins
    start: usize,
    /// Addresses of the objects that can change, which must not be met twice
    seen: HashSet<usize>,
    /// The next value is the function of the task itself, which may travel apart from the task
    may_be_by_value: bool,
}

/// Why there is no payload
pub(super) enum Stop {
    NotSimple,
    Error(PyErr),
}

pub(super) type Outcome = Result<(), Stop>;

impl<'a> SpecWriter<'a> {
    /// Begins a task, of which some objects that can change have been met
    pub(super) fn new(codec: &'a Codec, payload: &'a mut Writer, seen: HashSet<usize>) -> Self {
        Self {
            codec,
            start: payload.len(),
            payload,
            seen,
            may_be_by_value: false,
        }
    }

    /// Writes the function of the task itself
    pub(super) fn write_function(&mut self, function: &Bound<'_, PyAny>) -> Outcome {
        self.may_be_by_value = true;
        let written = self.write(function, NESTING_MAX);
        self.may_be_by_value = false;
        written
    }

    /// Gives the objects that can change and have been met
    pub(super) fn into_seen(self) -> HashSet<usize> {
        self.seen
    }

    pub(super) fn write(&mut self, object: &Bound<'_, PyAny>, nesting_left: usize) -> Outcome {
        let Some(inner) = nesting_left.checked_sub(1) else {
            return Err(Stop::NotSimple);
        };
        // Strings and tuples are written again at each reference, which the pickler would not do.
        if self.payload.len() - self.start > PAYLOAD_BYTES_MAX {
            return Err(Stop::NotSimple);
        }
        if let Ok(text) = object.cast_exact::<PyString>() {
            // The pickler can write text that is not Unicode.
            let text = text.to_str().map_err(|_| Stop::NotSimple)?;
            if text.len() > PAYLOAD_BYTES_MAX {
                return Err(Stop::NotSimple);
            }
            self.payload.str(text)?;
        } else if object.is_none() {
            self.payload.nil();
        } else if let Ok(tuple) = object.cast_exact::<PyTuple>() {
            self.tagged(tag::TUPLE, tuple.len())?;
            for item in tuple.iter_borrowed() {
                self.write(&item, inner)?;
            }
        } else if object.is_exact_instance_of::<PyInt>() {
            self.int(object)?;
        } else if let Ok(bool) = object.cast_exact::<PyBool>() {
            self.payload.bool(bool.is_true());
        } else if let Ok(float) = object.cast_exact::<PyFloat>() {
            self.payload.float(float.value());
        } else if let Ok(data) = object.cast_exact::<PyBytes>() {
            let data = data.as_bytes();
            if data.len() > PAYLOAD_BYTES_MAX {
                return Err(Stop::NotSimple);
            }
            self.payload.bin(data)?;
        } else if is_class_of(&self.codec.names.task_ref, object) {
            self.tagged(tag::TASK_REF, 1)?;
            self.attribute(object, intern!(object.py(), "key"), inner)?;
        } else {
            return self.write_other(object, inner);
        }
        Ok(())
    }

    fn write_other(&mut self, object: &Bound<'_, PyAny>, inner: usize) -> Outcome {
        let py = object.py();
        let names = &self.codec.names;
        if let Ok(dict) = object.cast_exact::<PyDict>() {
            self.see(object)?;
            let dict = still::dict(dict)?;
            self.tagged(tag::DICT, 2 * dict.len())?;
            for (key, value) in dict.iter() {
                self.write(&key, inner)?;
                self.write(&value, inner)?;
            }
        } else if let Ok(set) = object.cast_exact::<PyFrozenSet>() {
            self.tagged(tag::FROZEN_SET, set.len())?;
            for item in set.iter() {
                self.write(&item, inner)?;
            }
        } else if let Some(class) = names
            .tasks
            .iter()
            .position(|class| is_class_of(class, object))
        {
            self.see(object)?;
            let is_outermost = inner + 1 == NESTING_MAX;
            self.tagged(tag::TASK, 1 + names.slots.len())?;
            self.payload.uint(class as u64);
            for slot in &names.slots {
                let slot = slot.bind(py).cast::<PyString>().map_err(PyErr::from)?;
                self.may_be_by_value = is_outermost && *slot == "func";
                self.attribute(object, slot, inner)?;
                self.may_be_by_value = false;
            }
        } else if let Ok(list) = object.cast_exact::<PyList>() {
            self.see(object)?;
            self.tagged(tag::LIST, list.len())?;
            for item in list.iter() {
                self.write(&item, inner)?;
            }
        } else if object.is_instance_of::<PyType>()
            || names
                .functions
                .iter()
                .any(|class| is_class_of(class, object))
        {
            // Another one may be, or lead to, the same: only the pickler keeps them the same.
            let may_be_by_value = std::mem::take(&mut self.may_be_by_value);
            let sent = &self.codec.sent;
            if !sent.write(names, object, may_be_by_value, self.payload)? {
                return Err(Stop::NotSimple);
            }
        } else if is_class_of(&names.partial, object) {
            self.see(object)?;
            // To ask for its dictionary would make one, which the pickler would then write.
            let reduced = object.call_method0(intern!(py, "__reduce__"))?;
            let state = reduced.get_item(2)?.cast_into::<PyTuple>();
            let state = state.map_err(PyErr::from)?;
            if state.len() != 4 || state.get_item(3)?.is_truthy()? {
                return Err(Stop::NotSimple);
            }
            self.tagged(tag::PARTIAL, 3)?;
            for item in state.iter().take(3) {
                self.write(&item, inner)?;
            }
        } else if is_class_of(&names.alias, object) {
            self.see(object)?;
            self.tagged(tag::ALIAS, 2)?;
            self.attribute(object, intern!(py, "key"), inner)?;
            self.attribute(object, intern!(py, "target"), inner)?;
        } else if is_class_of(&names.data_node, object) {
            self.see(object)?;
            self.tagged(tag::DATA_NODE, 2)?;
            self.attribute(object, intern!(py, "key"), inner)?;
            self.attribute(object, intern!(py, "value"), inner)?;
        } else if object.is_exact_instance_of::<PySlice>() {
            self.tagged(tag::SLICE, 3)?;
            for name in [
                intern!(py, "start"),
                intern!(py, "stop"),
                intern!(py, "step"),
            ] {
                self.attribute(object, name, inner)?;
            }
        } else {
            return Err(Stop::NotSimple);
        }
        Ok(())
    }

    fn attribute(
        &mut self,
        object: &Bound<'_, PyAny>,
        name: &Bound<'_, PyString>,
        inner: usize,
    ) -> Outcome {
        // A slot that is not set is an error that the pickler reports.
        let value = object.getattr(name).map_err(|_| Stop::NotSimple)?;
        self.write(&value, inner)
    }

    fn int(&mut self, object: &Bound<'_, PyAny>) -> Outcome {
        if let Ok(value) = object.extract::<i64>() {
            self.payload.int(value);
        } else if let Ok(value) = object.extract::<u64>() {
            self.payload.uint(value);
        } else {
            return Err(Stop::NotSimple);
        }
        Ok(())
    }

    fn tagged(&mut self, tag: u64, items: usize) -> Outcome {
        self.payload.array(1 + items)?;
        self.payload.uint(tag);
        Ok(())
    }

    /// Notes an object that can change: a second reference to it would become a second object
    pub(super) fn see(&mut self, object: &Bound<'_, PyAny>) -> Outcome {
        if self.seen.insert(object.as_ptr().addr()) {
            Ok(())
        } else {
            Err(Stop::NotSimple)
        }
    }
}

impl From<PyErr> for Stop {
    fn from(error: PyErr) -> Self {
        Self::Error(error)
    }
}

impl From<TooLong> for Stop {
    fn from(_: TooLong) -> Self {
        Self::NotSimple
    }
}

/// Far more than tasks nest; the pickler has its own limit
pub(super) const NESTING_MAX: usize = 100;

/// Longest payload: what is larger gains nothing here, and the pickler writes it once
const PAYLOAD_BYTES_MAX: usize = 64 << 10;

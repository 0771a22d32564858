//! Many calls of one function, each of which is to be a task: what the tasks share is written once.

use std::collections::HashSet;

use backhaul_dask::codec::calls::{hole, write_head};
use backhaul_dask::codec::task::tag;
use backhaul_dask::msgpack::Writer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};

use super::spec_write::{NESTING_MAX, SpecWriter, Stop};
use super::{Codec, is_class_of};

/// Writes calls; `None`, if one of them is not simple
///
/// `task` is a task of the function without arguments but the named ones, which all calls have.
/// `parse` is asked for arguments and dependencies of the task of a call whose arguments are not all
/// plain; it gives nothing if there is to be none.
pub(super) fn calls(
    codec: &Codec,
    task: &Bound<'_, PyAny>,
    keys: &Bound<'_, PyList>,
    calls: &Bound<'_, PyAny>,
    parse: &Bound<'_, PyAny>,
) -> PyResult<Option<Vec<u8>>> {
    let plain = codec.names.tasks.first();
    if !plain.is_some_and(|class| is_class_of(class, task)) {
        return Ok(None);
    }
    match write(codec, task, keys, calls, parse) {
        Ok(written) => Ok(Some(written)),
        Err(Stop::NotSimple) => Ok(None),
        Err(Stop::Error(error)) => Err(error),
    }
}

fn write(
    codec: &Codec,
    task: &Bound<'_, PyAny>,
    keys: &Bound<'_, PyList>,
    calls: &Bound<'_, PyAny>,
    parse: &Bound<'_, PyAny>,
) -> Result<Vec<u8>, Stop> {
    let shared = Shared::of(codec, task)?;
    let mut items = Writer::with_capacity(keys.len() * CALL_BYTES);
    let mut calls = calls.try_iter()?;
    for key in keys.iter() {
        let Some(arguments) = calls.next() else {
            let message = format!("{} keys for fewer calls", keys.len());
            return Err(PyValueError::new_err(message).into());
        };
        // Other keys, and those of a class of their own, are for the pickler.
        let key = key
            .cast_exact::<PyString>()
            .map_err(|_| Stop::NotSimple)?
            .to_str()
            .map_err(|_| Stop::NotSimple)?;
        items.str(key)?;
        shared.write_own(codec, &arguments?, parse, &mut items)?;
        if items.len() > BYTES_MAX {
            return Err(Stop::NotSimple);
        }
    }
    let pieces = shared.pieces.as_bytes();
    let mut writer = Writer::with_capacity(items.len() + pieces.len() + HEAD_BYTES);
    write_head(&mut writer, &codec.names.spec_prefix, pieces, keys.len())?;
    writer.extend(items.as_bytes());
    Ok(writer.into_bytes())
}

/// Parts that all of the tasks share
struct Shared {
    pieces: Writer,
    /// Dependencies of the tasks whose arguments are plain
    dependencies: Writer,
    /// Objects in it that can change, which no task may refer to besides
    seen: HashSet<usize>,
}

impl Shared {
    fn of(codec: &Codec, task: &Bound<'_, PyAny>) -> Result<Self, Stop> {
        let slots = &codec.names.slots;
        let mut pieces: Vec<Piece> = Vec::new();
        let mut part = Writer::default();
        part.array(2 + slots.len())?;
        part.uint(tag::TASK);
        // The first of the classes
        part.uint(0);
        let mut dependencies = Writer::default();
        let mut seen = HashSet::new();
        for slot in slots {
            let slot = slot.bind(task.py()).cast::<PyString>();
            let slot = slot.map_err(PyErr::from)?;
            let value = task.getattr(slot).map_err(|_| Stop::NotSimple)?;
            let hole = match slot.to_str().map_err(|_| Stop::NotSimple)? {
                "key" => hole::KEY,
                "args" => hole::ARGUMENTS,
                "_dependencies" => {
                    SpecWriter::new(codec, &mut dependencies, HashSet::new())
                        .write(&value, NESTING_MAX)?;
                    hole::DEPENDENCIES
                }
                name => {
                    let mut writing = SpecWriter::new(codec, &mut part, std::mem::take(&mut seen));
                    if name == "func" {
                        writing.write_function(&value)?;
                    } else {
                        writing.write(&value, NESTING_MAX)?;
                    }
                    seen = writing.into_seen();
                    continue;
                }
            };
            pieces.push(Piece::Shared(std::mem::take(&mut part)));
            pieces.push(Piece::Hole(hole));
        }
        pieces.push(Piece::Shared(part));
        Ok(Self {
            pieces: written(&pieces)?,
            dependencies,
            seen,
        })
    }

    /// Writes dependencies and arguments of a call
    fn write_own(
        &self,
        codec: &Codec,
        arguments: &Bound<'_, PyAny>,
        parse: &Bound<'_, PyAny>,
        items: &mut Writer,
    ) -> Result<(), Stop> {
        let arguments = arguments.cast_exact::<PyTuple>().map_err(PyErr::from)?;
        if arguments.iter_borrowed().all(|one| is_plain(&one)) {
            items.extend(self.dependencies.as_bytes());
            return SpecWriter::new(codec, items, HashSet::new())
                .write(arguments.as_any(), NESTING_MAX);
        }
        let parsed = parse.call1((arguments,))?;
        if parsed.is_none() {
            return Err(Stop::NotSimple);
        }
        let (arguments, dependencies): (Bound<'_, PyAny>, Bound<'_, PyAny>) = parsed.extract()?;
        let mut writing = SpecWriter::new(codec, items, self.seen.clone());
        writing.write(&dependencies, NESTING_MAX)?;
        writing.write(&arguments, NESTING_MAX)
    }
}

enum Piece {
    Shared(Writer),
    Hole(u64),
}

fn written(pieces: &[Piece]) -> Result<Writer, Stop> {
    let mut writer = Writer::default();
    writer.array(pieces.len())?;
    for piece in pieces {
        match piece {
            Piece::Shared(part) => writer.bin(part.as_bytes())?,
            Piece::Hole(hole) => writer.uint(*hole),
        }
    }
    Ok(writer)
}

/// Returns whether an object is written as it is, and refers to nothing
fn is_plain(object: &Bound<'_, PyAny>) -> bool {
    object.is_exact_instance_of::<PyInt>()
        || object.is_exact_instance_of::<PyString>()
        || object.is_exact_instance_of::<PyFloat>()
        || object.is_none()
        || object.is_exact_instance_of::<PyBool>()
        || object.is_exact_instance_of::<PyBytes>()
}

/// About what a call takes: its key, and a few numbers
const CALL_BYTES: usize = 64;

/// Most bytes of all calls: what is larger, Dask splits into frames
const BYTES_MAX: usize = 256 << 20;

/// More than all else takes
const HEAD_BYTES: usize = 128;

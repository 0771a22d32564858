//! A graph of tasks, each of which is written as it is to travel on to a worker.

use std::collections::HashSet;

use backhaul_dask::codec::graph::{flag, write_head, write_numbers, write_task};
use backhaul_dask::msgpack::Writer;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::spec_write::{NESTING_MAX, SpecWriter, Stop};
use super::{Codec, is_class_of};

/// Writes a graph; `None`, if something of it is for Dask to send
///
/// `ordered` has the place of each key. `pickle` is asked for the pickle of a task that is not
/// simple; it gives nothing if the graph is not to be written.
pub(super) fn graph(
    codec: &Codec,
    graph: &Bound<'_, PyDict>,
    ordered: &Bound<'_, PyDict>,
    wanted: &Bound<'_, PyAny>,
    pickle: &Bound<'_, PyAny>,
) -> PyResult<Option<Vec<u8>>> {
    match write(codec, graph, ordered, wanted, pickle) {
        Ok(written) => Ok(Some(written)),
        Err(Stop::NotSimple) => Ok(None),
        Err(Stop::Error(error)) => Err(error),
    }
}

fn write(
    codec: &Codec,
    graph: &Bound<'_, PyDict>,
    ordered: &Bound<'_, PyDict>,
    wanted: &Bound<'_, PyAny>,
    pickle: &Bound<'_, PyAny>,
) -> Result<Vec<u8>, Stop> {
    let py = graph.py();
    let mut names = Names::of(codec, graph)?;
    let mut tasks = Writer::with_capacity(graph.len() * TASK_BYTES);
    let mut payload = Writer::default();
    let mut needs: Vec<u32> = Vec::new();
    for (key, node) in graph.iter() {
        let is_call = codec.names.tasks.first();
        let is_call = is_call.is_some_and(|class| is_class_of(class, &node));
        if !(is_call || is_node(codec, &node)) {
            return Err(Stop::NotSimple);
        }
        let order = ordered.get_item(&key)?.ok_or(Stop::NotSimple)?;
        let order: u64 = order.extract().map_err(|_| Stop::NotSimple)?;
        needs.clear();
        for need in node.getattr(intern!(py, "dependencies"))?.try_iter()? {
            needs.push(names.number(codec, &need?)?);
        }
        let mut flags = if is_call { flag::IS_CALL } else { 0 };
        if node.getattr(intern!(py, "data_producer"))?.is_truthy()? {
            flags |= flag::DATA_PRODUCER;
        }
        payload.truncate(0);
        match SpecWriter::new(codec, &mut payload, HashSet::new()).write(&node, NESTING_MAX) {
            Ok(()) => write_task(&mut tasks, order, flags, &needs, payload.as_bytes())?,
            Err(Stop::NotSimple) => {
                let pickled = pickle.call1((&node,))?;
                let pickled = pickled.cast::<PyBytes>().map_err(|_| Stop::NotSimple)?;
                flags |= flag::IS_WHOLE;
                write_task(&mut tasks, order, flags, &needs, pickled.as_bytes())?;
            }
            Err(error) => return Err(error),
        }
        if tasks.len() > BYTES_MAX {
            return Err(Stop::NotSimple);
        }
    }
    let mut numbers = Vec::new();
    for key in wanted.try_iter()? {
        numbers.push(names.number(codec, &key?)?);
    }
    let mut wanted = Writer::default();
    write_numbers(&mut wanted, &numbers)?;
    let keys = names.written()?;
    let bytes = tasks.len() + keys.len() + wanted.len() + HEAD_BYTES;
    let mut writer = Writer::with_capacity(bytes);
    let prefix = &codec.names.spec_prefix;
    write_head(
        &mut writer,
        prefix,
        keys.as_bytes(),
        wanted.as_bytes(),
        graph.len(),
    )?;
    writer.extend(tasks.as_bytes());
    Ok(writer.into_bytes())
}

/// Keys by number, those of the tasks first
struct Names<'py> {
    numbers: Bound<'py, PyDict>,
    count: u32,
    keys: Writer,
}

impl<'py> Names<'py> {
    fn of(codec: &Codec, graph: &Bound<'py, PyDict>) -> Result<Self, Stop> {
        let mut names = Self {
            numbers: PyDict::new(graph.py()),
            count: 0,
            keys: Writer::with_capacity(graph.len() * KEY_BYTES),
        };
        for key in graph.keys().iter() {
            names.add(codec, &key)?;
        }
        Ok(names)
    }

    /// The number of a key, a new one if it has none
    fn number(&mut self, codec: &Codec, key: &Bound<'py, PyAny>) -> Result<u32, Stop> {
        match self.numbers.get_item(key)? {
            Some(number) => Ok(number.extract()?),
            None => self.add(codec, key),
        }
    }

    fn add(&mut self, codec: &Codec, key: &Bound<'py, PyAny>) -> Result<u32, Stop> {
        let number = self.count;
        SpecWriter::new(codec, &mut self.keys, HashSet::new()).write(key, NESTING_MAX)?;
        self.numbers.set_item(key, number)?;
        self.count = number.checked_add(1).ok_or(Stop::NotSimple)?;
        Ok(number)
    }

    /// All keys, as an array
    fn written(&self) -> Result<Writer, Stop> {
        let mut writer = Writer::with_capacity(self.keys.len() + HEAD_BYTES);
        writer.array(self.count as usize)?;
        writer.extend(self.keys.as_bytes());
        Ok(writer)
    }
}

/// Returns whether an object is of a class that stands for something in a graph, and of no other
fn is_node(codec: &Codec, object: &Bound<'_, PyAny>) -> bool {
    let names = &codec.names;
    names.tasks.iter().any(|class| is_class_of(class, object))
        || is_class_of(&names.alias, object)
        || is_class_of(&names.data_node, object)
}

/// About what a task takes, and a key
const TASK_BYTES: usize = 192;
const KEY_BYTES: usize = 48;

/// Most bytes of all tasks: what is larger, Dask splits into frames
const BYTES_MAX: usize = 256 << 20;

/// More than all else takes
const HEAD_BYTES: usize = 128;

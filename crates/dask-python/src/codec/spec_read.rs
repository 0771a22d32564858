//! Tasks from the payloads that `spec_write` makes.
//!
//! A function that cannot be loaded here is the fault of one task, and the message has others: the
//! task is made all the same, and raises when it is called.

use backhaul_dask::codec::task::tag;
use backhaul_dask::msgpack::{Reader, Token};
use pyo3::exceptions::{PyAttributeError, PyException, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyFrozenSet, PyList, PySlice, PyString, PyTuple};

use super::functions::modules;
use super::keys::KeyCache;
use super::{Codec, is_class_of};

/// Reads a task
pub(super) fn task<'py>(
    py: Python<'py>,
    codec: &Codec,
    keys: &mut KeyCache,
    payload: &[u8],
) -> PyResult<Bound<'py, PyAny>> {
    let mut reading = SpecReader {
        py,
        codec,
        keys,
        reader: Reader::new(payload),
        items: Vec::new(),
        failed: None,
    };
    let task = reading.object(NESTING_MAX)?;
    if !reading.reader.rest().is_empty() {
        return Err(malformed());
    }
    if let Some(Failed { error, raising }) = reading.failed {
        let plain = codec.names.tasks.first();
        if !plain.is_some_and(|class| is_class_of(class, &task)) {
            return Err(error);
        }
        task.setattr(intern!(py, "func"), raising)?;
    }
    Ok(task)
}

struct SpecReader<'a, 'py> {
    py: Python<'py>,
    codec: &'a Codec,
    keys: &'a mut KeyCache,
    reader: Reader<'a>,
    /// Items of the collections that are not complete yet
    items: Vec<Bound<'py, PyAny>>,
    /// The first function that could not be loaded
    failed: Option<Failed<'py>>,
}

/// Why a function could not be loaded, and what is in its place
struct Failed<'py> {
    error: PyErr,
    raising: Bound<'py, PyAny>,
}

impl<'py> SpecReader<'_, 'py> {
    fn object(&mut self, nesting_left: usize) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let inner = nesting_left.checked_sub(1).ok_or_else(malformed)?;
        Ok(match self.reader.token().map_err(|_| malformed())? {
            Token::Str(text) => PyString::from_bytes(py, text)?.into_any(),
            Token::Int(value) => value.into_pyobject(py)?.into_any(),
            Token::Uint(value) => value.into_pyobject(py)?.into_any(),
            Token::Nil => py.None().into_bound(py),
            Token::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
            Token::Float(value) => PyFloat::new(py, value).into_any(),
            Token::Bin(data) => PyBytes::new(py, data).into_any(),
            Token::Array(items) => return self.tagged(items, inner),
            Token::Map(_) | Token::Ext(..) => return Err(malformed()),
        })
    }

    fn tagged(&mut self, items: u32, inner: usize) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let names = &self.codec.names;
        let Ok(Token::Int(tag)) = self.reader.token() else {
            return Err(malformed());
        };
        let count = items.checked_sub(1).ok_or_else(malformed)?;
        let tag = tag.cast_unsigned();
        match (tag, count) {
            (tag::TASK_REF, 1) => {
                let key = self.object(inner)?;
                return names.task_ref.bind(py).call1((key,));
            }
            (tag::TASK, _) if count as usize == 1 + names.slots.len() => return self.task(inner),
            (tag::GLOBAL, 2) => return self.global(),
            (tag::FUNCTION, 1) => {
                let Ok(Token::Bin(pickle)) = self.reader.token() else {
                    return Err(malformed());
                };
                let found = self.codec.loaded.function(py, self.codec, pickle);
                return self.loaded(found);
            }
            _ => {}
        }
        let first = self.items.len();
        for _ in 0..count {
            let item = self.object(inner)?;
            self.items.push(item);
        }
        let items = self.items.drain(first..);
        Ok(match (tag, count) {
            (tag::TUPLE, _) => PyTuple::new(py, items)?.into_any(),
            (tag::LIST, _) => PyList::new(py, items)?.into_any(),
            (tag::FROZEN_SET, _) => PyFrozenSet::new(py, items)?.into_any(),
            (tag::DICT, _) if count.is_multiple_of(2) => {
                let dict = PyDict::new(py);
                let mut items = items;
                while let (Some(key), Some(value)) = (items.next(), items.next()) {
                    dict.set_item(key, value)?;
                }
                dict.into_any()
            }
            (tag::SLICE, 3) => {
                let class = py.get_type::<PySlice>();
                class.call1(PyTuple::new(py, items)?)?
            }
            (tag::PARTIAL, 3) => {
                let three: Result<[Bound<'_, PyAny>; 3], _> = items.collect::<Vec<_>>().try_into();
                let [function, arguments, named] = three.map_err(|_| malformed())?;
                let arguments = arguments.cast_into::<PyTuple>().map_err(|_| malformed())?;
                let named = named.cast_into::<PyDict>().map_err(|_| malformed())?;
                let all = [function]
                    .into_iter()
                    .chain(arguments.iter())
                    .collect::<Vec<_>>();
                names
                    .partial
                    .bind(py)
                    .call(PyTuple::new(py, all)?, Some(&named))?
            }
            (tag::ALIAS, 2) => names.alias.bind(py).call1(PyTuple::new(py, items)?)?,
            (tag::DATA_NODE, 2) => names.data_node.bind(py).call1(PyTuple::new(py, items)?)?,
            _ => return Err(malformed()),
        })
    }

    /// A task: made without its constructor, as unpickling does
    fn task(&mut self, inner: usize) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let names = &self.codec.names;
        let class = match self.reader.token() {
            Ok(Token::Int(class)) => usize::try_from(class).ok(),
            _ => None,
        };
        let class = class
            .and_then(|class| names.tasks.get(class))
            .ok_or_else(malformed)?;
        let class = class.bind(py);
        let task = class.call_method1(intern!(py, "__new__"), (class,))?;
        for slot in &names.slots {
            let value = self.object(inner)?;
            task.setattr(slot.bind(py).cast::<PyString>()?, value)?;
        }
        Ok(task)
    }

    /// A function, or what raises in its place when it is called
    fn loaded(&mut self, found: PyResult<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let error = match found {
            Err(error) if error.is_instance_of::<PyException>(self.py) => error,
            found => return found,
        };
        let raising = self.codec.names.raising.bind(self.py);
        let raising = raising.call1((error.value(self.py),))?;
        self.failed.get_or_insert_with(|| Failed {
            error,
            raising: raising.clone(),
        });
        Ok(raising)
    }

    fn global(&mut self) -> PyResult<Bound<'py, PyAny>> {
        let (Ok(Token::Str(module)), Ok(Token::Str(path))) =
            (self.reader.token(), self.reader.token())
        else {
            return Err(malformed());
        };
        let found = self.find(module, path);
        self.loaded(found)
    }

    /// Finds an object by its name, as unpickling does
    fn find(&mut self, module: &[u8], path: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let module = self.keys.key(py, module)?;
        let mut found = match modules(py)?.get_item(&module)? {
            Some(loaded) if !loaded.is_none() && !is_initializing(&loaded)? => loaded,
            // If another thread is importing the module, this waits for it.
            _ => py.import(&module)?.into_any(),
        };
        for name in path.split(|&byte| byte == b'.') {
            let name = self.keys.key(py, name)?;
            found = match found.getattr_opt(&name)? {
                Some(attribute) => attribute,
                None => {
                    return Err(PyAttributeError::new_err(format!(
                        "Can't get attribute '{}' on {}",
                        String::from_utf8_lossy(path),
                        py.import(&module)?.repr()?,
                    )));
                }
            };
        }
        Ok(found)
    }
}

fn malformed() -> PyErr {
    PyValueError::new_err("malformed task in a message")
}

/// As deep as they are written
const NESTING_MAX: usize = 100;

/// Returns whether a module is being imported, perhaps by another thread, and lacks names
fn is_initializing(module: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = module.py();
    let Some(spec) = module.getattr_opt(intern!(py, "__spec__"))? else {
        return Ok(false);
    };
    spec.getattr_opt(intern!(py, "_initializing"))?
        .map_or(Ok(false), |initializing| initializing.is_truthy())
}

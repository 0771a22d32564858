//! Functions that are sent and received again and again.
//!
//! Pickling a function by value takes longer than all else in a message, and a scheduler sends the
//! same function with thousands of tasks. So its pickle is kept, as long as the function is what it
//! was: every part of it that the pickle contains is compared with the part that was pickled, by
//! identity. Only functions whose parts cannot change in themselves are kept; which those are is
//! up to `describe`. Entries keep their objects alive, so no id belongs to two of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use backhaul_dask::codec::task::tag;
use backhaul_dask::codec::{Bounded, Limits};
use backhaul_dask::msgpack::{TooLong, Writer};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};

use super::{Codec, Names};

/// Functions that were sent, by their address
pub(super) struct SentFunctions {
    entries: Mutex<Bounded<usize, Arc<Sent>>>,
}

/// Functions that were received by value, by their pickle
pub(super) struct LoadedFunctions {
    entries: Mutex<Loaded>,
}

/// Functions by their pickles
type Loaded = Bounded<Box<[u8]>, Arc<Py<PyAny>>>;

/// A remembered function
struct Sent {
    function: Py<PyAny>,
    /// As it is written into a task
    encoded: Vec<u8>,
    check: Check,
}

/// A condition for the use of an entry
enum Check {
    /// Importing it gives the function
    Name {
        module: Py<PyAny>,
        path: Vec<Py<PyAny>>,
    },
    /// All these parts are what they were
    Parts(Vec<Parts>),
}

/// The parts of one function that its pickle contains
struct Parts {
    function: Py<PyAny>,
    /// Values of [`ATTRIBUTES`]
    attributes: Vec<Py<PyAny>>,
    /// Cells of the closure with their contents
    cells: Vec<(Py<PyAny>, Py<PyAny>)>,
    namespace: Named,
    /// The attributes that the program gave it
    own: Named,
}

/// A dictionary and what was in it
struct Named {
    dict: Py<PyDict>,
    /// Names with their values, or `None` for those that are not there
    names: Vec<(Py<PyAny>, Option<Py<PyAny>>)>,
}

impl SentFunctions {
    /// Writes a function; `false`, if it must be pickled with everything around it
    pub(super) fn write(
        &self,
        names: &Names,
        function: &Bound<'_, PyAny>,
        may_be_by_value: bool,
        payload: &mut Writer,
    ) -> PyResult<bool> {
        let py = function.py();
        if names.by_value_modules.bind(py).is_truthy()? {
            // The user wants functions of some modules pickled by value: cloudpickle knows which.
            return Ok(false);
        }
        let address = function.as_ptr().addr();
        let known = self.lock().get(&address).cloned();
        if let Some(sent) = known
            && sent.is_valid(py)
        {
            return Ok(sent.write(may_be_by_value, payload));
        }
        let described = names.describe.bind(py).call1((function,))?;
        if described.is_none() {
            return Ok(false);
        }
        let sent = Arc::new(Sent::new(function, &described)?);
        let written = sent.write(may_be_by_value, payload);
        let bytes = sent.encoded.len();
        let forgotten = self.lock().insert(address, sent, bytes);
        drop(forgotten);
        Ok(written)
    }

    pub(super) fn usage(&self) -> (usize, usize) {
        self.lock().usage()
    }

    pub(super) fn clear(&self) {
        let forgotten = self.lock().clear();
        drop(forgotten);
    }

    fn lock(&self) -> MutexGuard<'_, Bounded<usize, Arc<Sent>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoadedFunctions {
    /// The function of a pickle
    pub(super) fn function<'py>(
        &self,
        py: Python<'py>,
        codec: &Codec,
        pickle: &[u8],
    ) -> PyResult<Bound<'py, PyAny>> {
        let known = self.lock().get(pickle).cloned();
        if let Some(function) = known {
            return Ok(function.bind(py).clone());
        }
        let loads = codec.names.loads.bind(py);
        let function = loads.call1((PyBytes::new(py, pickle),))?;
        let entry = Arc::new(function.clone().unbind());
        let forgotten = self.lock().insert(pickle.into(), entry, pickle.len());
        drop(forgotten);
        Ok(function)
    }

    pub(super) fn usage(&self) -> (usize, usize) {
        self.lock().usage()
    }

    pub(super) fn clear(&self) {
        let forgotten = self.lock().clear();
        drop(forgotten);
    }

    fn lock(&self) -> MutexGuard<'_, Loaded> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for SentFunctions {
    fn default() -> Self {
        Self {
            entries: Mutex::new(Bounded::new(LIMITS)),
        }
    }
}

impl Default for LoadedFunctions {
    fn default() -> Self {
        Self {
            entries: Mutex::new(Bounded::new(LIMITS)),
        }
    }
}

impl Sent {
    /// From what `describe` says: `(module, name)` or `(pickle, parts)`
    fn new(function: &Bound<'_, PyAny>, described: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (first, second): (Bound<'_, PyAny>, Bound<'_, PyAny>) = described.extract()?;
        let mut writer = Writer::default();
        let too_long = |error: TooLong| PyValueError::new_err(error.to_string());
        let check = if let Ok(pickle) = first.cast::<PyBytes>() {
            writer.array(2).map_err(too_long)?;
            writer.uint(tag::FUNCTION);
            writer.bin(pickle.as_bytes()).map_err(too_long)?;
            let parts = second.try_iter()?.map(|parts| Parts::new(&parts?));
            Check::Parts(parts.collect::<PyResult<_>>()?)
        } else {
            let name = second.extract::<String>()?;
            writer.array(3).map_err(too_long)?;
            writer.uint(tag::GLOBAL);
            writer.str(&first.extract::<String>()?).map_err(too_long)?;
            writer.str(&name).map_err(too_long)?;
            let py = function.py();
            let path = name
                .split('.')
                .map(|name| PyString::intern(py, name).into_any().unbind());
            Check::Name {
                module: first.unbind(),
                path: path.collect(),
            }
        };
        Ok(Self {
            function: function.clone().unbind(),
            encoded: writer.into_bytes(),
            check,
        })
    }

    fn write(&self, may_be_by_value: bool, payload: &mut Writer) -> bool {
        let fits = may_be_by_value || matches!(self.check, Check::Name { .. });
        if fits {
            payload.extend(&self.encoded);
        }
        fits
    }

    fn is_valid(&self, py: Python<'_>) -> bool {
        let valid = match &self.check {
            Check::Name { module, path } => self.is_at(py, module, path),
            Check::Parts(all) => all
                .iter()
                .try_fold(true, |valid, parts| Ok(valid && parts.are_same(py)?)),
        };
        // The next look meets the error again, and can report it.
        valid.unwrap_or(false)
    }

    fn is_at(&self, py: Python<'_>, module: &Py<PyAny>, path: &[Py<PyAny>]) -> PyResult<bool> {
        let Some(module) = modules(py)?.get_item(module)? else {
            return Ok(false);
        };
        let mut found = module;
        for name in path {
            found = found.getattr(name.bind(py).cast::<PyString>()?)?;
        }
        Ok(found.is(&self.function))
    }
}

impl Parts {
    /// From a tuple of the fields in their order
    fn new(parts: &Bound<'_, PyAny>) -> PyResult<Self> {
        type Pairs<'py> = Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>;
        let tuple = parts.cast::<PyTuple>()?;
        let cells: Pairs<'_> = tuple.get_item(2)?.extract()?;
        Ok(Self {
            function: tuple.get_item(0)?.unbind(),
            attributes: tuple
                .get_item(1)?
                .try_iter()?
                .map(|item| Ok(item?.unbind()))
                .collect::<PyResult<_>>()?,
            cells: cells
                .into_iter()
                .map(|(cell, content)| (cell.unbind(), content.unbind()))
                .collect(),
            namespace: Named::new(&tuple.get_item(3)?)?,
            own: Named::new(&tuple.get_item(4)?)?,
        })
    }

    fn are_same(&self, py: Python<'_>) -> PyResult<bool> {
        let function = self.function.bind(py);
        let attributes = [
            intern!(py, "__code__"),
            intern!(py, "__defaults__"),
            intern!(py, "__kwdefaults__"),
            intern!(py, "__name__"),
            intern!(py, "__qualname__"),
            intern!(py, "__module__"),
        ];
        for (name, before) in attributes.iter().zip(&self.attributes) {
            if !function.getattr(*name)?.is(before) {
                return Ok(false);
            }
        }
        for (cell, before) in &self.cells {
            if !cell
                .bind(py)
                .getattr(intern!(py, "cell_contents"))?
                .is(before)
            {
                return Ok(false);
            }
        }
        let own = function.getattr(intern!(py, "__dict__"))?;
        Ok(own.is(&self.own.dict)
            && own.len()? == self.own.names.len()
            && self.own.is_same(py)?
            && self.namespace.is_same(py)?)
    }
}

impl Named {
    /// From a dictionary and a list of tuples, of a name and its value or of a name alone
    fn new(named: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (dict, names): (Bound<'_, PyDict>, Vec<Bound<'_, PyTuple>>) = named.extract()?;
        let names = names.into_iter().map(|pair| {
            let value = (pair.len() > 1).then(|| pair.get_item(1)).transpose()?;
            Ok((pair.get_item(0)?.unbind(), value.map(Bound::unbind)))
        });
        Ok(Self {
            dict: dict.unbind(),
            names: names.collect::<PyResult<_>>()?,
        })
    }

    fn is_same(&self, py: Python<'_>) -> PyResult<bool> {
        let dict = self.dict.bind(py);
        for (name, before) in &self.names {
            let same = match (dict.get_item(name)?, before) {
                (Some(now), Some(before)) => now.is(before),
                (None, None) => true,
                _ => false,
            };
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The modules that are loaded
pub(super) fn modules(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    static SYS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let sys = SYS.get_or_try_init(py, || Ok::<_, PyErr>(py.import("sys")?.unbind()))?;
    let modules = sys.bind(py).getattr(intern!(py, "modules"))?;
    Ok(modules.cast_into()?)
}

/// Of each of the two: the functions of more than one usual graph
const LIMITS: Limits = Limits {
    entries_max: 512,
    bytes_max: 16 << 20,
    entry_bytes_max: 4 << 20,
};

//! `dask.order` as a function of Python: keys to numbers, and numbers back to keys.
//!
//! The caller knows which values are tasks and which are data, and passes Dask's classes.

mod keys;
mod labels;

use std::panic::{AssertUnwindSafe, catch_unwind};

use backhaul_dask::order::{GraphBuilder, OrderError, TaskKind};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFrozenSet, PyType};

use self::keys::Keys;
use self::labels::Labeller;

#[doc = stub_doc!("order")]
#[pyfunction]
pub(crate) fn order<'py>(
    graph: &Bound<'py, PyDict>,
    graph_node: &Bound<'py, PyType>,
    data_node: &Bound<'py, PyType>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = graph.py();
    // Hashing and comparing keys may run Python, which must not change what is iterated over.
    let graph = graph.copy()?;
    let mut classes = Classes::new(graph_node, data_node)?;
    let mut labeller = Labeller::default();
    let mut builder = GraphBuilder::with_capacity(graph.len());
    let mut keys = Keys::with_capacity(graph.len());
    let mut sets = Vec::with_capacity(graph.len());
    for (key, value) in &graph {
        let (kind, set) = classes.look_at(&value)?;
        let hash = key.hash()?;
        let task = builder
            .add_task(kind, hash, labeller.label(&key)?)
            .map_err(refusal)?;
        keys.add(task, key, hash);
        sets.push(set);
    }
    let table = TableSize::new(py)?;
    let mut dependencies = Vec::new();
    for set in sets {
        dependencies.clear();
        if !set.is_empty() {
            for key in &set {
                let hash = key.hash()?;
                let task = match keys.find(&key, hash)? {
                    Some(task) => task,
                    None => {
                        let label = labeller.label(&key)?;
                        let task = builder
                            .add_task(TaskKind::External, hash, label)
                            .map_err(refusal)?;
                        keys.add(task, key, hash);
                        task
                    }
                };
                dependencies.push(task);
            }
        }
        builder.add_dependencies(&dependencies, table.slots(&set)?);
    }
    let numbered = catch_unwind(AssertUnwindSafe(|| {
        py.detach(|| backhaul_dask::order::order(&builder.build()))
    }))
    .map_err(|_| PyRuntimeError::new_err("a defect in the order of tasks"))?
    .map_err(refusal)?;
    let priorities = PyDict::new(py);
    for (priority, task) in numbered.into_iter().enumerate() {
        priorities.set_item(keys.key(task), priority)?;
    }
    Ok(priorities)
}

fn refusal(error: OrderError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[doc = stub_doc!("set_listing")]
#[pyfunction]
pub(crate) fn set_listing(added: Vec<isize>) -> Vec<isize> {
    backhaul_dask::order::set_listing(&added)
}

#[doc = stub_doc!("difference_listing")]
#[pyfunction]
pub(crate) fn difference_listing(
    set: &Bound<'_, PyFrozenSet>,
    other: Vec<isize>,
) -> PyResult<Vec<isize>> {
    let slots = TableSize::new(set.py())?.slots(set)?;
    let listed = set
        .iter()
        .map(|member| member.hash())
        .collect::<PyResult<Vec<_>>>()?;
    Ok(backhaul_dask::order::difference_listing(
        &listed, slots, &other,
    ))
}

/// Classes of a graph's values, and their kinds for the order
struct Classes<'py> {
    graph_node: Bound<'py, PyType>,
    data_node: Bound<'py, PyType>,
    /// The property that reads the attribute `_dependencies`
    dependencies: Bound<'py, PyAny>,
    seen: Vec<Class<'py>>,
}

struct Class<'py> {
    class: Bound<'py, PyType>,
    kind: TaskKind,
    /// True if its dependencies are an attribute, rather than computed by a property of its own
    plain: bool,
}

impl<'py> Classes<'py> {
    fn new(graph_node: &Bound<'py, PyType>, data_node: &Bound<'py, PyType>) -> PyResult<Self> {
        let py = graph_node.py();
        Ok(Self {
            graph_node: graph_node.clone(),
            data_node: data_node.clone(),
            dependencies: graph_node.getattr(intern!(py, "dependencies"))?,
            seen: Vec::new(),
        })
    }

    /// Returns the kind of a value, and its dependencies
    fn look_at(
        &mut self,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<(TaskKind, Bound<'py, PyFrozenSet>)> {
        let py = value.py();
        let type_of_value = value.get_type();
        let index = match self
            .seen
            .iter()
            .position(|seen| seen.class.is(&type_of_value))
        {
            Some(index) => index,
            None => {
                self.seen.push(self.classify(type_of_value)?);
                self.seen.len() - 1
            }
        };
        let class = &self.seen[index];
        let set = if class.plain {
            value.getattr(intern!(py, "_dependencies"))?
        } else {
            value.getattr(intern!(py, "dependencies"))?
        };
        Ok((class.kind, set.cast_into_exact()?))
    }

    fn classify(&self, class: Bound<'py, PyType>) -> PyResult<Class<'py>> {
        if !class.is_subclass(&self.graph_node)? {
            return Err(PyTypeError::new_err(format!(
                "not a node of a task graph: {class}"
            )));
        }
        let kind = if class.is_subclass(&self.data_node)? {
            TaskKind::Data
        } else {
            TaskKind::Run
        };
        let plain = class
            .getattr(intern!(class.py(), "dependencies"))?
            .is(&self.dependencies);
        Ok(Class { class, kind, plain })
    }
}

/// How many slots the table of a set has, by how large it says it is
struct TableSize {
    empty_bytes: usize,
}

impl TableSize {
    fn new(py: Python<'_>) -> PyResult<Self> {
        Ok(Self {
            empty_bytes: size_of_set(&PyFrozenSet::empty(py)?)?,
        })
    }

    fn slots(&self, set: &Bound<'_, PyFrozenSet>) -> PyResult<usize> {
        if set.len() <= EMBEDDED_MEMBERS_MAX {
            return Ok(EMBEDDED_SLOTS);
        }
        // A larger table is allocated apart: for each slot a pointer and a hash.
        let table_bytes = size_of_set(set)? - self.empty_bytes;
        Ok((table_bytes / (2 * size_of::<usize>())).max(EMBEDDED_SLOTS))
    }
}

fn size_of_set(set: &Bound<'_, PyFrozenSet>) -> PyResult<usize> {
    set.call_method0(intern!(set.py(), "__sizeof__"))?.extract()
}

/// Slots inside a set itself
const EMBEDDED_SLOTS: usize = 8;
/// Members that they take
const EMBEDDED_MEMBERS_MAX: usize = 4;

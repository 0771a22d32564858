//! Values of records, from Rust to Python and back.

use std::fmt;
use std::net::IpAddr;

use backhaul_topology::CpuSet;
use backhaul_topology::cpuset::CPUS_MAX;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFrozenSet, PyString, PyTuple};

/// A value that a record can have
pub(super) trait Field: Sized {
    /// The value as records have it
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>>;

    /// The value of an object, if that is one
    fn from_python(object: &Bound<'_, PyAny>) -> Result<Self, Unfit>;
}

/// An object in a record that is no value of its field
#[derive(Debug)]
pub(super) struct Unfit {
    /// Where it is, as `gpus[0].index`
    place: String,
    /// Fault of the object, in the words behind the place
    what: String,
}

impl Unfit {
    /// `must` says what it must be
    pub(super) fn new(object: &Bound<'_, PyAny>, must: impl fmt::Display) -> Self {
        let text = match object.repr() {
            Ok(repr) => repr.to_string_lossy().chars().take(REPR_MAX).collect(),
            Err(_) => "an object without repr".to_owned(),
        };
        Self {
            place: String::new(),
            what: format!(" is {text}: {must}"),
        }
    }

    /// With the words of an error that has the object in it
    fn with(error: impl fmt::Display) -> Self {
        Self {
            place: String::new(),
            what: format!(": {error}"),
        }
    }

    /// The same, in a field of a record
    pub(super) fn of_field(self, name: &str) -> Self {
        self.inside(name)
    }

    /// The same, in a collection
    fn of_item(self, index: usize) -> Self {
        self.inside(&format!("[{index}]"))
    }

    fn inside(mut self, outer: &str) -> Self {
        let is_field = !self.place.is_empty() && !self.place.starts_with('[');
        let dot = if is_field { "." } else { "" };
        self.place = format!("{outer}{dot}{}", self.place);
        self
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place.is_empty() {
            return f.write_str(self.what.trim_start_matches([':', ' ']));
        }
        write!(f, "{}{}", self.place, self.what)
    }
}

/// Whole numbers
macro_rules! whole {
    ($($number:ty),*) => {$(
        impl Field for $number {
            fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                Ok(self.into_pyobject(py)?.into_any())
            }

            fn from_python(object: &Bound<'_, PyAny>) -> Result<Self, Unfit> {
                // To Python, True is 1.
                if !object.is_instance_of::<PyBool>()
                    && let Ok(number) = object.extract()
                {
                    return Ok(number);
                }
                let most = Self::MAX;
                let must = format!("it must be a whole number from 0 to {most}");
                Err(Unfit::new(object, must))
            }
        }
    )*};
}

whole!(u32, u64);

impl Field for f64 {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.into_pyobject(py)?.into_any())
    }

    fn from_python(object: &Bound<'_, PyAny>) -> Result<Self, Unfit> {
        if !object.is_instance_of::<PyBool>()
            && let Ok(number) = object.extract()
        {
            return Ok(number);
        }
        Err(Unfit::new(object, "it must be a number"))
    }
}

impl Field for bool {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.into_pyobject(py)?.to_owned().into_any())
    }

    fn from_python(object: &Bound<'_, PyAny>) -> Result<Self, Unfit> {
        match object.cast_exact::<PyBool>() {
            Ok(bool) => Ok(bool.is_true()),
            Err(_) => Err(Unfit::new(object, "it must be True or False")),
        }
    }
}

impl Field for String {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyString::new(py, self).into_any())
    }

    fn from_python(object: &Bound<'_, PyAny>) -> Result<Self, Unfit> {
        object
            .extract()
            .map_err(|_| Unfit::new(object, "it must be text"))
    }
}

impl Field for IpAddr {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.to_string().to_python(py)
    }

    fn from_python(object: &Bound<'_, PyAny>) -> Result<Self, Unfit> {
        String::from_python(object)?
            .parse()
            .map_err(|_| Unfit::new(object, "it must be an IP address"))
    }
}

impl<T: Field> Field for Option<T> {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Some(value) => value.to_python(py),
            None => Ok(py.None().into_bound(py)),
        }
    }

    fn from_python(object: &Bound<'_, PyAny>) -> Result<Self, Unfit> {
        if object.is_none() {
            return Ok(None);
        }
        T::from_python(object).map(Some)
    }
}

/// A tuple in Python; read from any collection
impl<T: Field> Field for Vec<T> {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let items = self.iter().map(|item| item.to_python(py));
        let items = items.collect::<PyResult<Vec<_>>>()?;
        Ok(PyTuple::new(py, items)?.into_any())
    }

    fn from_python(object: &Bound<'_, PyAny>) -> Result<Self, Unfit> {
        let items = items_of(object, "it must be a collection")?;
        let items = items.iter().enumerate();
        items
            .map(|(index, item)| T::from_python(item).map_err(|unfit| unfit.of_item(index)))
            .collect()
    }
}

impl<T: Field> Field for (T, T) {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let pair = (self.0.to_python(py)?, self.1.to_python(py)?);
        Ok(pair.into_pyobject(py)?.into_any())
    }

    fn from_python(object: &Bound<'_, PyAny>) -> Result<Self, Unfit> {
        let pair: Vec<T> = Field::from_python(object)?;
        let pair: Result<[T; 2], _> = pair.try_into();
        pair.map(|[first, second]| (first, second))
            .map_err(|_| Unfit::new(object, "it must be two"))
    }
}

/// A frozenset of numbers in Python; read from any collection of them, or a list like `0-3,8`
impl Field for CpuSet {
    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyFrozenSet::new(py, self.iter())?.into_any())
    }

    fn from_python(object: &Bound<'_, PyAny>) -> Result<Self, Unfit> {
        if object.is_instance_of::<PyString>() {
            return String::from_python(object)?.parse().map_err(Unfit::with);
        }
        let must = format!("it must be whole numbers below {CPUS_MAX}, or a list such as 0-3,8");
        items_of(object, &must)?
            .iter()
            .map(|item| match u32::from_python(item) {
                Ok(cpu) if cpu < CPUS_MAX => Ok(cpu),
                _ => Err(Unfit::new(object, &must)),
            })
            .collect()
    }
}

/// Items of a collection; text is none
fn items_of<'py>(object: &Bound<'py, PyAny>, must: &str) -> Result<Vec<Bound<'py, PyAny>>, Unfit> {
    let unfit = || Unfit::new(object, must);
    if object.is_instance_of::<PyString>() {
        return Err(unfit());
    }
    let items = object.try_iter().map_err(|_| unfit())?;
    items.collect::<PyResult<_>>().map_err(|_| unfit())
}

/// Characters of an object that an error has: enough to know it by, however large it is
const REPR_MAX: usize = 100;

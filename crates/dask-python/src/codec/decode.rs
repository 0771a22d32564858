//! From msgpack to Python objects, with placeholders resolved.
//!
//! Arrays become tuples. Refusals and their exceptions are those of the package msgpack under
//! Dask's settings.

use backhaul_dask::codec::header;
use backhaul_dask::codec::task::payload_of;
use backhaul_dask::msgpack::{ReadError, Reader, TIMESTAMP, Timestamp, Token};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyList, PySet, PyTuple};

use super::bytes::with_bytes;
use super::keys::KeyCache;
use super::scalars::{self, Reading, Stopwatch};
use super::{Codec, spec_read};

/// One message, or one header, being read
pub(super) struct Decoder<'a, 'py> {
    py: Python<'py>,
    codec: &'a Codec,
    keys: &'a mut KeyCache,
    reader: Reader<'a>,
    /// The frames of the message and the options for its parts; a header has none
    message: Option<(&'a Bound<'py, PyAny>, &'a Bound<'py, PyAny>)>,
    /// Items of the tuples that are not complete yet
    items: Vec<Bound<'py, PyAny>>,
    /// How scalars are read: unknown until the first comes
    reading: Option<Reading>,
    /// Time spent on them
    scalars: Stopwatch,
}

impl<'a, 'py> Decoder<'a, 'py> {
    pub(super) fn new(
        py: Python<'py>,
        codec: &'a Codec,
        keys: &'a mut KeyCache,
        bytes: &'a [u8],
        message: Option<(&'a Bound<'py, PyAny>, &'a Bound<'py, PyAny>)>,
    ) -> Self {
        Self {
            py,
            codec,
            keys,
            reader: Reader::new(bytes),
            message,
            items: Vec::new(),
            reading: None,
            scalars: Stopwatch::default(),
        }
    }

    /// All of the bytes, as one object
    pub(super) fn message(mut self) -> PyResult<Bound<'py, PyAny>> {
        let object = self.object(0)?;
        let rest = self.reader.rest();
        if rest.is_empty() {
            self.scalars
                .report(&self.codec.names.scalars_read, self.py)?;
            return Ok(object);
        }
        let extra_data = self.codec.names.extra_data.bind(self.py);
        let error = extra_data.call1((object, PyBytes::new(self.py, rest)))?;
        Err(PyErr::from_value(error))
    }

    fn object(&mut self, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        match self.reader.token() {
            Ok(token) => self.object_of(token, depth),
            Err(error) => Err(self.refusal(error)),
        }
    }

    #[inline]
    fn object_of(&mut self, token: Token<'a>, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        Ok(match token {
            Token::Str(text) => self.keys.value(py, text)?.into_any(),
            Token::Int(value) => value.into_pyobject(py)?.into_any(),
            Token::Map(pairs) => return self.map(pairs, depth),
            Token::Array(items) => return self.array(items, depth),
            Token::Nil => py.None().into_bound(py),
            Token::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
            Token::Float(value) => PyFloat::new(py, value).into_any(),
            Token::Bin(data) => PyBytes::new(py, data).into_any(),
            Token::Uint(value) => value.into_pyobject(py)?.into_any(),
            Token::Ext(code, data) => return self.ext(code, data),
        })
    }

    fn array(&mut self, items: u32, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        self.check_depth(depth)?;
        let first = self.items.len();
        for _ in 0..items {
            let item = self.object(depth + 1)?;
            self.items.push(item);
        }
        Ok(PyTuple::new(self.py, self.items.drain(first..))?.into_any())
    }

    fn map(&mut self, pairs: u32, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        self.check_depth(depth)?;
        if pairs == 1
            && let Some(object) = self.placeholder()?
        {
            return Ok(object);
        }
        let dict = PyDict::new(self.py);
        let mut is_reserved = false;
        for _ in 0..pairs {
            let key = match self.reader.token() {
                Ok(Token::Str(text)) => {
                    is_reserved |= header::is_reserved(text);
                    self.keys.key(self.py, text)?.into_any()
                }
                Ok(token) => self.object_of(token, depth + 1)?,
                Err(error) => return Err(self.refusal(error)),
            };
            let value = self.object(depth + 1)?;
            dict.set_item(&key, &value)?;
        }
        if is_reserved {
            return self.replaced(&dict);
        }
        Ok(dict.into_any())
    }

    /// Returns the object that a map with a reserved key stands for
    fn replaced(&self, dict: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
        if dict.len() == 2
            && dict.contains(header::SET)?
            && let Some(items) = dict.get_item(header::SET_ITEMS)?
            && let Ok(items) = items.cast_exact::<PyTuple>()
        {
            return Ok(PySet::new(self.py, items.iter())?.into_any());
        }
        let names = &self.codec.names;
        match self.message {
            Some((frames, options)) => {
                let hook = names.hook.bind(self.py);
                hook.call1((dict, frames, options))
            }
            None => names.plain_hook.bind(self.py).call1((dict,)),
        }
    }

    /// Returns the object that the next map stands for, if that is a pickled object without buffers
    /// or a serialized scalar
    ///
    /// Nothing is taken from the reader otherwise; whatever is unusual is left to `hook`.
    fn placeholder(&mut self) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some((frames, options)) = self.message else {
            return Ok(None);
        };
        let mut ahead = self.reader.clone();
        let read: Placeholder<'a, 'py> = match ahead.token() {
            Ok(Token::Str(key)) if key == header::PICKLED.as_bytes() => Self::pickled,
            Ok(Token::Str(key)) if key == header::SERIALIZED.as_bytes() => Self::scalar,
            _ => return Ok(None),
        };
        let (Ok(Token::Int(offset @ 1..)), Ok(frames)) =
            (ahead.token(), frames.cast_exact::<PyList>())
        else {
            return Ok(None);
        };
        let Ok(offset) = usize::try_from(offset) else {
            return Ok(None);
        };
        let Ok(header) = frames.get_item(offset) else {
            return Ok(None);
        };
        let object = read(self, &header, frames.get_item(offset + 1).ok(), options)?;
        if object.is_some() {
            self.reader = ahead;
        }
        Ok(object)
    }

    fn pickled(
        &mut self,
        header: &Bound<'py, PyAny>,
        _: Option<Bound<'py, PyAny>>,
        _: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        with_bytes(header, |bytes| {
            let Some(pickle) = header::pickle_of(bytes) else {
                return Ok(None);
            };
            let names = &self.codec.names;
            if let Some(payload) = payload_of(pickle, &names.spec_prefix) {
                return spec_read::task(self.py, self.codec, self.keys, payload).map(Some);
            }
            let pickle = PyBytes::new(self.py, pickle);
            names.loads.bind(self.py).call1((pickle,)).map(Some)
        })
    }

    fn scalar(
        &mut self,
        header: &Bound<'py, PyAny>,
        pickled: Option<Bound<'py, PyAny>>,
        options: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let names = &self.codec.names;
        let expected = names.scalar_header.as_bytes(self.py);
        let Some(pickled) = pickled else {
            return Ok(None);
        };
        if !with_bytes(header, |bytes| Ok(bytes == expected))? {
            return Ok(None);
        }
        let reading = match self.reading {
            Some(known) => known,
            None => *self.reading.insert(Reading::from_options(options)?),
        };
        match reading {
            Reading::Load => {
                let loads = names.loads.bind(self.py);
                self.scalars.time(|| loads.call1((pickled,))).map(Some)
            }
            Reading::Keep => scalars::kept(
                names.serialized.bind(self.py),
                names.scalar_header_read.bind(self.py),
                pickled,
            )
            .map(Some),
            Reading::Ask => Ok(None),
        }
    }

    fn ext(&self, code: i8, data: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let names = &self.codec.names;
        if code != TIMESTAMP {
            let data = PyBytes::new(self.py, data);
            return names.ext_type.bind(self.py).call1((code, data));
        }
        let Some(time) = Timestamp::parse(data) else {
            return Err(PyValueError::new_err(format!(
                "invalid timestamp data (length {})",
                data.len()
            )));
        };
        let arguments = (time.seconds, time.nanoseconds);
        names.timestamp.bind(self.py).call1(arguments)
    }

    fn check_depth(&self, depth: usize) -> PyResult<()> {
        if depth < NESTING_MAX {
            return Ok(());
        }
        let error = self.codec.names.stack_error.bind(self.py).call0()?;
        Err(PyErr::from_value(error))
    }

    #[cold]
    fn refusal(&self, error: ReadError) -> PyErr {
        match error {
            ReadError::Format { .. } => match self.codec.names.format_error.bind(self.py).call0() {
                Ok(error) => PyErr::from_value(error),
                Err(error) => error,
            },
            ReadError::Incomplete => PyValueError::new_err("Unpack failed: incomplete input"),
            error => PyValueError::new_err(error.to_string()),
        }
    }
}

/// Reads what a placeholder stands for, given the frame that it names, the next one and the options
type Placeholder<'a, 'py> = fn(
    &mut Decoder<'a, 'py>,
    &Bound<'py, PyAny>,
    Option<Bound<'py, PyAny>>,
    &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyAny>>>;

/// As deep as the package msgpack nests (1.2.4)
const NESTING_MAX: usize = 1024;

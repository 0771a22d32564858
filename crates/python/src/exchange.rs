//! Kernels of the exchange for Python: converts, and calls `backhaul_exchange` without the GIL

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use backhaul_exchange::{
    Block, Column, ExchangeError, Join as Pairs, JoinKind, Kind, Order, Partitioning as Assignment,
    Scratch, Side, Source, Target, Text, assemble, extract, piece_bytes, piece_rows,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::detached;

#[doc = stub_doc!("Partitioning")]
#[pyclass(frozen, module = "backhaul._native")]
pub(crate) struct Partitioning {
    assignment: Assignment,
}

#[pymethods]
impl Partitioning {
    #[doc = stub_doc!("Partitioning.by_keys")]
    #[staticmethod]
    fn by_keys(
        py: Python<'_>,
        keys: Vec<RawColumn<'_>>,
        rows: usize,
        partitions: usize,
        wanted: Option<Vec<usize>>,
    ) -> PyResult<Self> {
        let (shapes, buffers) = flattened(keys)?;
        let made = detached(py, &buffers, &[], |sources, _| {
            let keys = columns_of(&shapes, sources);
            Assignment::by_keys(&keys, rows, partitions, wanted.as_deref())
        })?;
        made.map(|assignment| Self { assignment })
            .map_err(value_error)
    }

    #[doc = stub_doc!("Partitioning.by_numbers")]
    #[staticmethod]
    fn by_numbers(
        py: Python<'_>,
        numbers: Bound<'_, PyAny>,
        width: usize,
        rows: usize,
        partitions: usize,
        wanted: Option<Vec<usize>>,
    ) -> PyResult<Self> {
        let made = detached(py, &[numbers], &[], |sources, _| {
            Assignment::by_numbers(sources[0], width, rows, partitions, wanted.as_deref())
        })?;
        made.map(|assignment| Self { assignment })
            .map_err(value_error)
    }

    #[doc = stub_doc!("Partitioning.by_divisions")]
    #[staticmethod]
    fn by_divisions(
        py: Python<'_>,
        key: RawColumn<'_>,
        divisions: RawColumn<'_>,
        rows: usize,
        partitions: usize,
        wanted: Option<Vec<usize>>,
        order: (bool, bool),
    ) -> PyResult<Self> {
        let (ascending, missing_last) = order;
        let order = Order {
            ascending,
            missing_last,
        };
        let (shapes, buffers) = flattened(vec![key, divisions])?;
        let made = detached(py, &buffers, &[], |sources, _| {
            let [key, divisions] = &columns_of(&shapes, sources)[..] else {
                return Err(ExchangeError::Mismatch);
            };
            Assignment::by_divisions(key, divisions, rows, partitions, order, wanted.as_deref())
        })?;
        made.map(|assignment| Self { assignment })
            .map_err(value_error)
    }

    #[doc = stub_doc!("Partitioning.part")]
    fn part(&self, py: Python<'_>, start: usize, stop: usize) -> PyResult<Self> {
        let made = py.detach(|| self.assignment.part(start..stop));
        made.map(|assignment| Self { assignment })
            .map_err(value_error)
    }

    #[doc = stub_doc!("Partitioning.rows")]
    #[getter]
    fn rows(&self) -> usize {
        self.assignment.rows()
    }

    #[doc = stub_doc!("Partitioning.block_bytes")]
    fn block_bytes(&self, py: Python<'_>, columns: Vec<RawColumn<'_>>) -> PyResult<usize> {
        let (shapes, buffers) = flattened(columns)?;
        let layout = detached(py, &buffers, &[], |sources, _| {
            self.assignment.layout(&columns_of(&shapes, sources))
        })?;
        layout.map(|layout| layout.bytes()).map_err(value_error)
    }

    #[doc = stub_doc!("Partitioning.write_block")]
    fn write_block(
        &self,
        py: Python<'_>,
        columns: Vec<RawColumn<'_>>,
        block: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (shapes, buffers) = flattened(columns)?;
        let written = detached(py, &buffers, &[block], |sources, mut targets| {
            let columns = columns_of(&shapes, sources);
            let layout = self.assignment.layout(&columns)?;
            self.assignment.write(&layout, &columns, targets[0])
        })?;
        written.map_err(value_error)
    }
}

#[doc = stub_doc!("piece_sizes")]
#[pyfunction]
pub(crate) fn piece_sizes(
    py: Python<'_>,
    blocks: Vec<Bound<'_, PyAny>>,
    slot: usize,
) -> PyResult<(usize, Vec<usize>)> {
    let sizes = detached(py, &blocks, &[], |sources, _| {
        let blocks = read(sources)?;
        Ok((piece_rows(&blocks, slot)?, piece_bytes(&blocks, slot)?))
    })?;
    sizes.map_err(value_error)
}

#[doc = stub_doc!("assemble_pieces")]
#[pyfunction]
pub(crate) fn assemble_pieces(
    py: Python<'_>,
    blocks: Vec<Bound<'_, PyAny>>,
    slot: usize,
    targets: Vec<Vec<Bound<'_, PyAny>>>,
) -> PyResult<Vec<usize>> {
    let lengths: Vec<_> = targets.iter().map(Vec::len).collect();
    let targets: Vec<_> = targets.into_iter().flatten().collect();
    let nulls = detached(py, &blocks, &targets, |sources, targets| {
        assemble(&read(sources)?, slot, &mut targets_of(&lengths, targets)?)
    })?;
    nulls.map_err(value_error)
}

thread_local! {
    /// Memory that the joins of a thread use one after the other
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

#[doc = stub_doc!("Join")]
#[pyclass(frozen, module = "backhaul._native")]
pub(crate) struct Join {
    pairs: Pairs,
    sources: Vec<Source>,
    text_bytes: Vec<usize>,
}

#[pymethods]
impl Join {
    #[doc = stub_doc!("Join.of_slot")]
    #[staticmethod]
    fn of_slot(
        py: Python<'_>,
        left: Vec<Bound<'_, PyAny>>,
        right: Vec<Bound<'_, PyAny>>,
        slot: usize,
        keys: (Vec<usize>, Vec<usize>),
        how: &str,
        columns: Vec<(bool, usize, Option<usize>)>,
    ) -> PyResult<Self> {
        let kind = match how {
            "inner" => JoinKind::Inner,
            "left" => JoinKind::Left,
            "outer" => JoinKind::Outer,
            "semi" => JoinKind::Semi,
            _ => return Err(PyValueError::new_err(format!("invalid join: {how:?}"))),
        };
        let sources: Vec<_> = columns.into_iter().map(source_of).collect();
        let lefts = left.len();
        let blocks: Vec<_> = left.into_iter().chain(right).collect();
        let made = detached(py, &blocks, &[], |buffers, _| {
            let blocks = read(buffers)?;
            let (left, right) = blocks.split_at(lefts);
            let keys = [&keys.0[..], &keys.1];
            let pairs = SCRATCH
                .with_borrow_mut(|scratch| Pairs::new(left, right, slot, keys, kind, scratch))?;
            let text_bytes = sources
                .iter()
                .map(|&source| pairs.text_bytes(source, left, right))
                .collect::<Result<_, _>>()?;
            Ok((pairs, text_bytes))
        })?;
        let (pairs, text_bytes) = made.map_err(value_error)?;
        Ok(Self {
            pairs,
            sources,
            text_bytes,
        })
    }

    #[doc = stub_doc!("Join.rows")]
    #[getter]
    fn rows(&self) -> usize {
        self.pairs.rows()
    }

    #[doc = stub_doc!("Join.text_bytes")]
    #[getter]
    fn text_bytes(&self) -> Vec<usize> {
        self.text_bytes.clone()
    }

    #[doc = stub_doc!("Join.has_missing")]
    fn has_missing(&self, is_right: bool) -> bool {
        self.pairs.has_missing(side_of(is_right))
    }

    #[doc = stub_doc!("Join.gather")]
    fn gather(
        &self,
        py: Python<'_>,
        left: Vec<Bound<'_, PyAny>>,
        right: Vec<Bound<'_, PyAny>>,
        targets: Vec<Vec<Bound<'_, PyAny>>>,
    ) -> PyResult<Vec<usize>> {
        let lengths: Vec<_> = targets.iter().map(Vec::len).collect();
        let targets: Vec<_> = targets.into_iter().flatten().collect();
        let lefts = left.len();
        let blocks: Vec<_> = left.into_iter().chain(right).collect();
        let nulls = detached(py, &blocks, &targets, |buffers, targets| {
            let blocks = read(buffers)?;
            let (left, right) = blocks.split_at(lefts);
            let mut targets = targets_of(&lengths, targets)?;
            if targets.len() != self.sources.len() {
                return Err(ExchangeError::Mismatch);
            }
            self.sources
                .iter()
                .zip(&mut targets)
                .map(|(&source, target)| self.pairs.gather(source, left, right, target))
                .collect()
        })?;
        nulls.map_err(value_error)
    }
}

fn side_of(is_right: bool) -> Side {
    if is_right { Side::Right } else { Side::Left }
}

/// Converts the origin of a column: whether it is of the right frame, its number, the other column
fn source_of((is_right, column, other): (bool, usize, Option<usize>)) -> Source {
    Source {
        side: side_of(is_right),
        column,
        other,
    }
}

#[doc = stub_doc!("read_piece")]
#[pyfunction]
pub(crate) fn read_piece(
    py: Python<'_>,
    descriptor: i32,
    offset: u64,
    size: usize,
    slot: usize,
) -> PyResult<Bound<'_, PyBytes>> {
    let piece = py.detach(|| {
        let file = File::open(format!("/proc/self/fd/{descriptor}"))?;
        extract(size, slot, |start, target| {
            file.read_exact_at(target, offset + start as u64)
                .map_err(ReadError::Io)
        })
    });
    match piece {
        Ok(piece) => Ok(PyBytes::new(py, &piece)),
        Err(ReadError::Block(error)) => Err(value_error(error)),
        Err(ReadError::Io(error)) => Err(error.into()),
    }
}

/// A block in a file cannot be read
enum ReadError {
    Block(ExchangeError),
    Io(io::Error),
}

impl From<ExchangeError> for ReadError {
    fn from(error: ExchangeError) -> Self {
        Self::Block(error)
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A column as Python gives it: kind, values, offsets, validity, bit of the first row
type RawColumn<'py> = (
    String,
    Bound<'py, PyAny>,
    Option<Bound<'py, PyAny>>,
    Option<Bound<'py, PyAny>>,
    usize,
);

/// A column without its memory, which is in the following one to three buffers of a list
struct Shape {
    kind: Kind,
    has_validity: bool,
    validity_offset: usize,
}

fn flattened<'py>(columns: Vec<RawColumn<'py>>) -> PyResult<(Vec<Shape>, Vec<Bound<'py, PyAny>>)> {
    let mut shapes = Vec::with_capacity(columns.len());
    let mut buffers = Vec::with_capacity(columns.len());
    for (name, values, offsets, validity, validity_offset) in columns {
        let kind = kind_of(&name)
            .filter(|&kind| (kind == Kind::Text) == offsets.is_some())
            .ok_or_else(|| PyValueError::new_err(format!("invalid column of kind {name:?}")))?;
        shapes.push(Shape {
            kind,
            has_validity: validity.is_some(),
            validity_offset,
        });
        buffers.push(values);
        buffers.extend(offsets);
        buffers.extend(validity);
    }
    Ok((shapes, buffers))
}

fn columns_of<'a>(shapes: &[Shape], sources: &[&'a [u8]]) -> Vec<Column<'a>> {
    let mut sources = sources.iter().copied();
    let mut next = || sources.next().unwrap_or_default();
    let column = |shape: &Shape| match shape.kind {
        Kind::Text => {
            let (bytes, offsets) = (next(), next());
            Column::Text(Text {
                offsets,
                bytes,
                validity: shape.has_validity.then(&mut next),
                validity_offset: shape.validity_offset,
            })
        }
        kind => {
            let values = next();
            if shape.has_validity {
                next();
            }
            Column::Fixed { kind, values }
        }
    };
    shapes.iter().map(column).collect()
}

fn kind_of(name: &str) -> Option<Kind> {
    Some(match name {
        "bool" => Kind::Bool,
        "int8" => Kind::Int(1),
        "int16" => Kind::Int(2),
        "int32" => Kind::Int(4),
        "int64" => Kind::Int(8),
        "uint8" => Kind::Uint(1),
        "uint16" => Kind::Uint(2),
        "uint32" => Kind::Uint(4),
        "uint64" => Kind::Uint(8),
        "float32" => Kind::Float(4),
        "float64" => Kind::Float(8),
        "time" => Kind::Time,
        "text" => Kind::Text,
        _ => return None,
    })
}

/// Groups buffers into columns: one for values of equal width, three for text
fn targets_of<'a>(
    lengths: &[usize],
    targets: Vec<&'a mut [u8]>,
) -> Result<Vec<Target<'a>>, ExchangeError> {
    let mut slices = targets.into_iter();
    let mut next = || slices.next().ok_or(ExchangeError::Mismatch);
    let mut found = Vec::with_capacity(lengths.len());
    for length in lengths {
        found.push(match length {
            1 => Target::Fixed(next()?),
            3 => Target::Text {
                offsets: next()?,
                validity: next()?,
                bytes: next()?,
            },
            _ => return Err(ExchangeError::Mismatch),
        });
    }
    Ok(found)
}

fn read<'a>(sources: &[&'a [u8]]) -> Result<Vec<Block<'a>>, ExchangeError> {
    sources.iter().copied().map(Block::read).collect()
}

fn value_error(error: ExchangeError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

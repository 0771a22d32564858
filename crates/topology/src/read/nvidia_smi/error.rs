//! Errors of a table, with their place

use std::fmt;

use thiserror::Error;

/// Where a cell stands
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CellPosition {
    /// Line of the text, from 1
    pub line: usize,
    /// Column of the table, from 1, which is that of the names
    pub column: usize,
    /// Name of the row
    pub row: String,
    /// Name of the column
    pub header: String,
    /// Content of the cell
    pub cell: String,
}

impl fmt::Display for CellPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "line {}, column {} (row {}, column {}): {:?}",
            self.line, self.column, self.row, self.header, self.cell
        )
    }
}

/// A text that is not that of `nvidia-smi topo -m`
///
/// The fault is the text's: trying again does not help.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum TableError {
    /// No line begins with the name of a GPU
    #[error("no table of nvidia-smi topo -m: no line begins with GPU0 or another GPU")]
    NoTable,
    /// The first line of the table is a row
    #[error("line {line}: a row, where the header with the names of the columns is expected")]
    NoHeader {
        /// Line of the text, from 1
        line: usize,
    },
    /// Two columns have one name
    #[error("line {line}, column {column}: {name:?} is a column already")]
    DuplicateColumn {
        /// Line of the text, from 1
        line: usize,
        /// Column of the table, from 1
        column: usize,
        /// The name
        name: String,
    },
    /// A row has a name that no column has
    #[error("line {line}, column 1: {name:?} is not the name of a column")]
    UnknownRow {
        /// Line of the text, from 1
        line: usize,
        /// The name
        name: String,
    },
    /// Two rows have one name
    #[error("line {line}, column 1: there is a row {name:?} already")]
    DuplicateRow {
        /// Line of the text, from 1
        line: usize,
        /// The name
        name: String,
    },
    /// A GPU has a column and no row
    #[error("no row {name:?}, which the header on line {line} has a column for")]
    MissingRow {
        /// Line of the header, from 1
        line: usize,
        /// The name
        name: String,
    },
    /// A row is too short
    #[error("line {line}: row {row} has {cells} cells for {columns} devices; the last is {last:?}")]
    MissingCells {
        /// Line of the text, from 1
        line: usize,
        /// Name of the row
        row: String,
        /// Cells there are
        cells: usize,
        /// Cells there should be
        columns: usize,
        /// The last cell of the row
        last: String,
    },
    /// A row is too long
    #[error("line {line}: row {row} has {cell:?} right of the last column")]
    ExtraCell {
        /// Line of the text, from 1
        line: usize,
        /// Name of the row
        row: String,
        /// The first cell too many
        cell: String,
    },
    /// A cell that means nothing
    #[error("{position}, expected {expected}")]
    BadCell {
        /// The cell
        position: CellPosition,
        /// Content that may stand there
        expected: &'static str,
    },
    /// The table says two things of one pair
    #[error("{position}, but line {other_line} says {other_cell:?} of the same two devices")]
    Asymmetric {
        /// The second cell
        position: CellPosition,
        /// Line of the first cell, from 1
        other_line: usize,
        /// The first cell
        other_cell: String,
    },
    /// An entry of `NIC Legend` that cannot be right
    #[error("line {line}: {name:?} in the legend names a second device")]
    BadLegend {
        /// Line of the text, from 1
        line: usize,
        /// The name
        name: String,
    },
}

//! The parts of Dask's messages, as far as bytes say what they are.
//!
//! The walk over objects is that of `crates/dask-python`. Here is what it writes and recognises:
//! placeholders and headers ([`header`]), the pickle of a simple task ([`task`]), that of many calls
//! of one function ([`calls`]), a graph of tasks ([`graph`]), which pickles of scalars are sent as they
//! are ([`scalar`]); and what it remembers ([`ShortTexts`], [`Bounded`]).

mod bounded;
pub mod calls;
pub mod graph;
pub mod header;
pub mod scalar;
mod short_texts;
pub mod task;

pub use bounded::{Bounded, Limits};
pub use short_texts::ShortTexts;

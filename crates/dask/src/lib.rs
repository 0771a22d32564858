//! Pure functions and state machines for Dask: no I/O, no clock, no Python.

#![forbid(unsafe_code)]

pub mod codec;
mod hashing;
pub mod hot;
mod ids;
pub mod msgpack;
pub mod order;
mod ordered_set;
mod recommendations;
pub mod scheduler;
pub mod worker;

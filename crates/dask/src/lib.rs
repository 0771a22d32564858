//! Pure functions and state machines for Dask: no I/O, no clock, no Python.

#![forbid(unsafe_code)]

pub mod codec;
pub mod hot;
pub mod msgpack;
pub mod order;
pub mod scheduler;

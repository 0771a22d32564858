//! What Dask's scheduler computes, as pure functions: no I/O, no clock, no Python.

#![forbid(unsafe_code)]

pub mod order;

//! Where work goes, as pure functions and state machines: no I/O, no clock, no Python, no Dask.
//!
//! - [`resources`]: what a worker has that tasks may hold, by identity, and who holds it
//! - [`links`]: how fast the ways between peers are, learned from what has travelled
//! - [`cost`]: what it costs to run a task at a place
//! - [`roots`]: where the tasks without inputs go, so that what is combined is made together
//! - [`network`]: edges that flows share fairly, for what is simulated
//!
//! Quantities are small integers, or `f64` of bytes and seconds; every input that is not is an error.

#![forbid(unsafe_code)]

pub mod cost;
pub mod links;
pub mod network;
pub mod resources;
pub mod roots;

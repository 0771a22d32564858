//! Models of wake-ups, explored by loom: `make test-loom`.
//!
//! `request` is the production code, compiled here with loom's locks and atomics. The agreement on
//! who moves a connection along (`connection`) is the production code's step for step, over a ring and
//! an engine in miniature: what it drives there, sockets and epoll, loom cannot explore.

#![forbid(unsafe_code)]
#![cfg(loom)]
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "only models use what is here"
)]

#[path = "../../fabric/src/request.rs"]
mod request;

#[cfg(test)]
mod connection;
#[cfg(test)]
mod request_models;

/// Parts of its crate that `request` uses
mod runtime {
    use std::time::Duration;

    #[derive(Debug)]
    pub struct LoopWatch;

    #[derive(Debug)]
    pub struct Doorbell;

    /// No model sleeps on doorbells
    pub(crate) fn sleep_on(_: &Doorbell, _: Option<&Doorbell>, _: Option<Duration>) {
        unreachable!("it is for threads that watch a connection")
    }
}

/// As above
mod link {
    #[derive(Debug)]
    pub struct Delivery;
}

/// As above, with loom's in the place of the standard library's; its `Arc` takes no `dyn`
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, Ordering};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::sync::{Arc, PoisonError};
}

/// Runs a model in every interleaving with at most so many preemptions; `None` is any number
#[cfg(test)]
fn explore(preemptions: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(model);
}

//! From `tracing` events of the engine to Python's `logging`.
//!
//! Events at WARN and above are kept in a bounded queue until a thread of Python writes them out;
//! when it is full, the oldest give way and are counted.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use backhaul_sys::forks::PerProcess;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::deferred;

static QUEUE: PerProcess<Mutex<Queue>> = PerProcess::new();

#[derive(Default)]
struct Queue {
    lines: VecDeque<(u8, String)>,
    lost: u64,
}

/// Sends this module's events to the queue
pub(crate) fn install() {
    // A second import finds it installed, which is what is asked for.
    let _ = tracing::subscriber::set_global_default(Sink);
}

/// Writes what is queued to the logger `backhaul`
pub(crate) fn write_out(py: Python<'_>) {
    static LOG: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let (lines, lost) = {
        let mut queue = QUEUE.value().lock().unwrap_or_else(PoisonError::into_inner);
        if queue.lines.is_empty() {
            return;
        }
        (
            std::mem::take(&mut queue.lines),
            std::mem::take(&mut queue.lost),
        )
    };
    let Ok(log) = LOG.import(py, "backhaul._logs", "log") else {
        return;
    };
    if lost > 0 {
        // A logger that raises must not break the call that happened to come by.
        let _ = log.call1((WARNING, format!("{lost} earlier messages were dropped")));
    }
    for (level, line) in lines {
        let _ = log.call1((level, line));
    }
}

struct Sink;

impl Subscriber for Sink {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = match *event.metadata().level() {
            Level::ERROR => ERROR,
            _ => WARNING,
        };
        {
            let mut queue = QUEUE.value().lock().unwrap_or_else(PoisonError::into_inner);
            if queue.lines.len() == LINES_MAX {
                queue.lines.pop_front();
                queue.lost += 1;
            }
            queue.lines.push_back((level, line.message + &line.fields));
        }
        deferred::ask();
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string does not fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}

/// Lines kept
const LINES_MAX: usize = 1024;

/// `logging.WARNING`
const WARNING: u8 = 30;

/// `logging.ERROR`
const ERROR: u8 = 40;

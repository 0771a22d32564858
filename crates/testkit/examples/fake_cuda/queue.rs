//! Queue of a stream, and a thread that works it off in order.
//!
//! An operation may have to wait for others first; these were all submitted before it, so no
//! operations wait in a circle. The order of the legacy stream is decided here, when an operation
//! is submitted: one of the legacy stream comes after all that is submitted to blocking streams of
//! its context, and one of a blocking stream comes after all that is submitted to the legacy stream
//! (the driver API's "Stream synchronization behavior").

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use cudarc::driver::sys::CUresult;

use crate::error::Outcome;
use crate::settings::settings;

/// A queue of operations on a device
#[derive(Debug)]
pub(crate) struct Stream {
    /// The device of its context
    pub(crate) context: usize,
    order: Order,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// How a stream goes with the legacy stream of its context
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Order {
    Legacy,
    Blocking,
    NonBlocking,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Operation>,
    submitted: u64,
    completed: u64,
    /// Nothing more comes: the thread ends once it has nothing to do
    closed: bool,
}

struct Operation {
    after: Vec<Mark>,
    work: Option<Box<dyn FnOnce() + Send>>,
}

/// A point in a stream: all that was submitted to it until now
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    stream: Arc<Stream>,
    count: u64,
}

/// The streams of a process
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) by_handle: HashMap<usize, Arc<Stream>>,
    contexts: Vec<OfContext>,
}

#[derive(Debug, Default)]
struct OfContext {
    legacy: Option<Arc<Stream>>,
    /// All others, those among them that are destroyed and still at work
    others: Vec<Weak<Stream>>,
}

impl Stream {
    fn start(context: usize, order: Order) -> Outcome<Arc<Self>> {
        let stream = Arc::new(Self {
            context,
            order,
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let worker = Arc::clone(&stream);
        std::thread::Builder::new()
            .name("fake-cuda-stream".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || worker.work())
            .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(stream)
    }

    /// Works the queue off, until it is closed and empty
    fn work(&self) {
        loop {
            let mut queue = self.lock();
            let operation = loop {
                if let Some(operation) = queue.waiting.pop_front() {
                    break operation;
                }
                if queue.closed {
                    return;
                }
                queue = self.wait(queue);
            };
            drop(queue);
            for mark in &operation.after {
                mark.wait();
            }
            if let Some(work) = operation.work {
                if !settings().delay.is_zero() {
                    std::thread::sleep(settings().delay);
                }
                // The panic has told its story; those that wait must not wait for ever.
                let _ = catch_unwind(AssertUnwindSafe(work));
            }
            self.lock().completed += 1;
            self.changed.notify_all();
        }
    }

    fn push(self: &Arc<Self>, operation: Operation) -> Mark {
        let mut queue = self.lock();
        queue.waiting.push_back(operation);
        queue.submitted += 1;
        let count = queue.submitted;
        drop(queue);
        self.changed.notify_all();
        Mark {
            stream: Arc::clone(self),
            count,
        }
    }

    /// All that is submitted
    fn mark(self: &Arc<Self>) -> Mark {
        Mark {
            stream: Arc::clone(self),
            count: self.lock().submitted,
        }
    }

    /// Lets the thread end, once it has nothing to do
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Returns whether nothing more may come
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        self.changed
            .wait(queue)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mark {
    /// Returns whether the stream has got there
    pub(crate) fn is_done(&self) -> bool {
        self.stream.lock().completed >= self.count
    }

    /// Waits until the stream has got there
    pub(crate) fn wait(&self) {
        let mut queue = self.stream.lock();
        while queue.completed < self.count {
            queue = self.stream.wait(queue);
        }
    }
}

impl Streams {
    /// No stream, for so many contexts
    pub(crate) fn new(contexts: usize) -> Self {
        Self {
            by_handle: HashMap::new(),
            contexts: (0..contexts).map(|_| OfContext::default()).collect(),
        }
    }

    /// Adds an operation to a stream, after those that its kind of stream waits for, and those given
    pub(crate) fn submit(
        &mut self,
        stream: &Arc<Stream>,
        mut after: Vec<Mark>,
        work: Option<Box<dyn FnOnce() + Send>>,
    ) -> Mark {
        match stream.order {
            Order::Legacy => {
                after.extend(self.marks_of(stream.context, |order| order == Order::Blocking));
            }
            Order::Blocking => {
                let legacy = self.contexts[stream.context].legacy.as_ref();
                after.extend(legacy.map(Stream::mark));
            }
            Order::NonBlocking => {}
        }
        stream.push(Operation { after, work })
    }

    /// All that is submitted in a context
    pub(crate) fn all_marks(&mut self, context: usize) -> Vec<Mark> {
        self.marks_of(context, |_| true)
    }

    /// All that is submitted to some streams of a context
    fn marks_of(&mut self, context: usize, which: impl Fn(Order) -> bool) -> Vec<Mark> {
        let of_context = &mut self.contexts[context];
        of_context.others.retain(|stream| stream.strong_count() > 0);
        of_context
            .others
            .iter()
            .filter_map(Weak::upgrade)
            .chain(of_context.legacy.clone())
            .filter(|stream| which(stream.order))
            .map(|stream| stream.mark())
            .collect()
    }

    /// Returns the marks to wait for to know that a stream is idle
    pub(crate) fn marks_to_idle(&mut self, stream: &Arc<Stream>) -> Vec<Mark> {
        match stream.order {
            // Work in it waits for blocking streams first.
            Order::Legacy => self.marks_of(stream.context, |order| order != Order::NonBlocking),
            Order::Blocking | Order::NonBlocking => vec![stream.mark()],
        }
    }

    /// Ends the streams of a context
    pub(crate) fn end(&mut self, context: usize) {
        self.by_handle.retain(|_, stream| stream.context != context);
        let of_context = std::mem::take(&mut self.contexts[context]);
        for stream in of_context.others.iter().filter_map(Weak::upgrade) {
            stream.close();
        }
        if let Some(stream) = of_context.legacy {
            stream.close();
        }
    }

    /// The legacy stream of a context
    pub(crate) fn legacy(&mut self, context: usize) -> Outcome<Arc<Stream>> {
        match &self.contexts[context].legacy {
            Some(stream) => Ok(Arc::clone(stream)),
            None => self.start(context, Order::Legacy),
        }
    }

    /// Starts a stream of a context
    pub(crate) fn start(&mut self, context: usize, order: Order) -> Outcome<Arc<Stream>> {
        let stream = Stream::start(context, order)?;
        let of_context = &mut self.contexts[context];
        if order == Order::Legacy {
            of_context.legacy = Some(Arc::clone(&stream));
        } else {
            of_context.others.push(Arc::downgrade(&stream));
        }
        Ok(stream)
    }
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation")
            .field("after", &self.after.len())
            .finish_non_exhaustive()
    }
}

/// Enough for a function of the application
const STACK_BYTES: usize = 1 << 20;

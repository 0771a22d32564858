//! A small executor, written by hand: a waker for each task, tasks polled only when woken.
//!
//! Requests must work on any executor. `pollster` has one task and parks its thread; this one
//! has many, and so finds wakes that are lost, or that go to a task that was polled before.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// A future that a task runs
pub type Task<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs all tasks on this thread, returning their results in order
///
/// # Panics
///
/// If a task panics.
pub fn run_all<'a, T>(tasks: impl IntoIterator<Item = Task<'a, T>>) -> Vec<T> {
    let woken = Arc::new(Woken::default());
    let mut tasks: Vec<Option<Task<'a, T>>> = tasks.into_iter().map(Some).collect();
    let mut results: Vec<Option<T>> = tasks.iter().map(|_| None).collect();
    let wakers: Vec<Waker> = (0..tasks.len())
        .map(|task| {
            let woken = Arc::clone(&woken);
            Waker::from(Arc::new(TaskWaker { task, woken }))
        })
        .collect();
    for waker in &wakers {
        waker.wake_by_ref();
    }
    let mut left = tasks.len();
    while left > 0 {
        let index = woken.next();
        let Some(task) = &mut tasks[index] else {
            // A wake of a task that is over is harmless.
            continue;
        };
        if let Poll::Ready(result) = task.as_mut().poll(&mut Context::from_waker(&wakers[index])) {
            results[index] = Some(result);
            tasks[index] = None;
            left -= 1;
        }
    }
    results.into_iter().map(Option::unwrap).collect()
}

/// Tasks to poll, in order of waking
#[derive(Debug, Default)]
struct Woken {
    queue: Mutex<VecDeque<usize>>,
    added: Condvar,
}

struct TaskWaker {
    task: usize,
    woken: Arc<Woken>,
}

impl Woken {
    fn next(&self) -> usize {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(task) = queue.pop_front() {
                return task;
            }
            let waited = self.added.wait(queue);
            queue = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let woken = &self.woken;
        let mut queue = woken.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(self.task);
        woken.added.notify_one();
    }
}

/// Polls a future `polls` times, then drops it
///
/// Resolves to its result if that came first. Wakes itself after each poll, so that the drop
/// happens at one moment after the other of the operation, not only after real wakes.
pub async fn give_up_after<F: Future + Unpin>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = Some(future);
    let mut left = polls;
    std::future::poll_fn(move |cx| {
        let Some(inner) = &mut future else {
            return Poll::Ready(None);
        };
        if left == 0 {
            future = None;
            return Poll::Ready(None);
        }
        left -= 1;
        match Pin::new(inner).poll(cx) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}

//! Which of the tasks that wait are sent when there may be room again.
//!
//! The first ones of all lines go by priority, but that of a request that a worker is kept for goes
//! before them. A line whose first task finds no room is left until the next pass.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::hash::Hash;
use std::vec;

use super::admission::Admission;
use super::lines::by_priority;
use super::places::Place;

/// One pass over all lines, see [`Admission::step`]
#[derive(Debug)]
pub struct Drain<T, P> {
    /// Lines whose first waiting task is not known yet
    lines: vec::IntoIter<u64>,
    heads: BinaryHeap<Reverse<Head<P>>>,
    /// The step that the caller is to answer, and its line
    asked: Option<(u64, Step<T>)>,
}

/// A question or a request to whoever has the tasks
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step<T> {
    /// Asks whether the task still waits
    Waits(T),
    /// Asks whether a worker that the task is bound to may have room: cheaper than to look for it
    MayGo(T),
    /// Requests to send the task; asks whether it still waits after that
    Send(T),
}

impl<T: Copy + Eq + Hash, P: Clone + PartialOrd> Admission<T, P> {
    /// Begins to send what waits; `runs` tells which workers run
    pub fn begin_drain(&mut self, runs: impl Fn(Place) -> bool) -> Drain<T, P> {
        if let Some(kept) = self.turns.kept
            && !self.kept_place.is_some_and(&runs)
        {
            self.keep_worker(kept, runs);
        }
        Drain {
            lines: self.lines.numbers().into_iter(),
            heads: BinaryHeap::new(),
            asked: None,
        }
    }

    /// Continues a pass with the answer to its last step, any to the first; `None` at its end
    pub fn step(
        &mut self,
        drain: &mut Drain<T, P>,
        answer: bool,
        runs: impl Fn(Place) -> bool,
    ) -> Option<Step<T>> {
        let mut line = None;
        match drain.asked.take() {
            Some((number, Step::Waits(_))) if answer => self.push_head(drain, number),
            Some((number, Step::MayGo(task))) if answer => {
                return drain.ask(number, Step::Send(task));
            }
            // It was sent, or no client wants it any more.
            Some((number, Step::Waits(task) | Step::Send(task))) if !answer => {
                self.lines.discard(number, &task);
                line = Some(number);
            }
            _ => {}
        }
        while let Some(number) = line.take().or_else(|| drain.lines.next()) {
            if let Some((task, _)) = self.lines.first(number) {
                return drain.ask(number, Step::Waits(task));
            }
            if let Some(key) = self.lines.end(number)
                && !key.is_restricted()
            {
                self.left(key.request);
            }
        }
        while let Some(Reverse(Head { number, .. })) = drain.heads.pop() {
            let Some(key) = self.lines.key(number) else {
                continue;
            };
            let (request, is_restricted) = (key.request, key.is_restricted());
            let Some((task, _)) = self.lines.first(number) else {
                continue;
            };
            if is_restricted {
                return drain.ask(number, Step::MayGo(task));
            }
            let least = self.least_loaded(request, &runs);
            if least.is_some_and(|place| self.has_room(request, place)) {
                return drain.ask(number, Step::Send(task));
            }
        }
        None
    }

    fn push_head(&mut self, drain: &mut Drain<T, P>, number: u64) {
        let Some((_, priority)) = self.lines.first(number) else {
            return;
        };
        let request = self.lines.key(number).map(|key| key.request);
        let is_kept = request.is_some() && self.turns.kept == request;
        drain.heads.push(Reverse(Head {
            priority: (!is_kept).then_some(priority),
            number,
        }));
    }
}

impl<T: Copy, P> Drain<T, P> {
    fn ask(&mut self, number: u64, step: Step<T>) -> Option<Step<T>> {
        self.asked = Some((number, step));
        Some(step)
    }
}

/// The first task of a line
#[derive(Debug)]
struct Head<P> {
    /// `None`, which comes first, for a request that a worker is kept for
    priority: Option<P>,
    number: u64,
}

impl<P: PartialOrd> Ord for Head<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        by_priority(&self.priority, &other.priority).then(self.number.cmp(&other.number))
    }
}

impl<P: PartialOrd> PartialOrd for Head<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P: PartialOrd> PartialEq for Head<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<P: PartialOrd> Eq for Head<P> {}

//! Requests of a scheduler's tasks: which worker may be sent one more, and which request is next.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use super::lines::{LineKey, Lines};
use super::places::{Place, Places, Signature};
use super::request::{Request, RequestError};
use super::turns::{Turns, Waits};

/// The resource that a thread is, which every task takes one of unless it says otherwise
pub const CPU: &str = "CPU";

/// Resource that a task without a thread asks for in addition, of which each worker has some
pub const BESIDE: &str = "tasks without CPU";

/// Put before names of users' resources that would be one of these
const DECLARED: &str = "declared ";

/// Returns the name here of a user's resource; `declared_name` of `backhaul.dask.resource_pools`
pub fn declared_name(name: &str) -> Cow<'_, str> {
    match name.trim_start_matches(DECLARED) {
        CPU | BESIDE => Cow::Owned(format!("{DECLARED}{name}")),
        _ => Cow::Borrowed(name),
    }
}

/// The distinct requests of a scheduler's tasks, the workers that have room for one more, and the
/// tasks that hold what they ask for or wait
///
/// `T` is a task and `P` where it stands among all tasks. The caller decides which workers run.
#[derive(Debug)]
pub struct Admission<T, P> {
    /// Units of workers, and units in use
    pub places: Places,
    /// The requests that wait, and who went past them
    pub turns: Turns<Signature, P>,
    /// The worker that takes nothing more of what the request needs that `turns` keeps it for
    pub kept_place: Option<Place>,
    pub(super) lines: Lines<T, P>,
    asked: HashMap<Signature, Asked>,
    by_needs: HashMap<Needs, Signature>,
    /// Tasks that were sent to a worker and hold what they ask for
    booked: HashMap<T, (Signature, Place)>,
    /// Tasks of each worker that take less than a thread
    beside: HashMap<Place, u64>,
}

/// Tasks that hold something or wait, for another scheduler that continues from there
#[derive(Clone, Debug, PartialEq)]
pub struct AdmissionView<T, P> {
    /// Tasks that wait, each line in the order in which it would go
    pub waiting: Vec<T>,
    /// Requests that wait, and others may have gone past
    pub passed: Vec<Passed<P>>,
    /// Which of them a worker is kept for
    pub kept: Option<usize>,
    /// The worker that is kept for it
    pub kept_place: Option<Place>,
    /// Workers that were sent such tasks, the one first whose last was longest ago
    pub served: Vec<Place>,
}

/// A request that waits
#[derive(Clone, Debug, PartialEq)]
pub struct Passed<P> {
    /// How much of what it asks for, threads left out
    pub amounts: Vec<(Arc<str>, f64)>,
    /// How many threads it takes
    pub threads: f64,
    /// Where its first task stands
    pub stands: P,
    /// How many leases went past it
    pub passes: u64,
}

impl<P> Passed<P> {
    /// Converts where the first task stands
    pub fn standing<Q>(self, converted: impl FnOnce(P) -> Q) -> Passed<Q> {
        Passed {
            amounts: self.amounts,
            threads: self.threads,
            stands: converted(self.stands),
            passes: self.passes,
        }
    }
}

/// Amounts of each resource, as bits of the numbers, and of threads
type Needs = (Vec<(Arc<str>, u64)>, u64);

/// One distinct request
#[derive(Debug)]
pub struct Asked {
    /// How much of what it asks for, threads left out
    pub amounts: Vec<(Arc<str>, f64)>,
    /// How many threads it takes
    pub threads: f64,
    /// Resources that tasks with this request keep from each other
    names: Vec<Arc<str>>,
}

impl Asked {
    /// Returns whether such a task runs beside those that fill the threads of a worker
    pub fn is_beside(&self) -> bool {
        self.threads < 1.0
    }
}

impl<T, P> Default for Admission<T, P> {
    fn default() -> Self {
        Self {
            places: Places::default(),
            turns: Turns::default(),
            kept_place: None,
            lines: Lines::default(),
            asked: HashMap::new(),
            by_needs: HashMap::new(),
            booked: HashMap::new(),
            beside: HashMap::new(),
        }
    }
}

impl<T: Copy + Eq + Hash, P: Clone + PartialOrd> Admission<T, P> {
    /// The number of what a task asks for: amounts of users' resources, and threads
    ///
    /// # Errors
    ///
    /// [`RequestError`] if that cannot be asked for.
    pub fn request(
        &mut self,
        amounts: Vec<(Arc<str>, f64)>,
        threads: f64,
    ) -> Result<Signature, RequestError> {
        let bits = amounts
            .iter()
            .map(|(name, units)| (Arc::clone(name), units.to_bits()));
        let needs = (bits.collect(), threads.to_bits());
        if let Some(&known) = self.by_needs.get(&needs) {
            return Ok(known);
        }
        let apart = amounts
            .iter()
            .map(|(name, units)| (declared_name(name), *units));
        let mut all: Vec<(Cow<'_, str>, f64)> = apart.collect();
        let mut names: Vec<Arc<str>> = all.iter().map(|(name, _)| Arc::from(&**name)).collect();
        // Several threads are a restriction, too: not every worker has them. Tasks without a thread
        // are counted, so that a worker is not sent more than it could ever run at the same time.
        if threads != 1.0 {
            all.push((Cow::Borrowed(CPU), threads));
        }
        if threads == 0.0 {
            all.push((Cow::Borrowed(BESIDE), 1.0));
        }
        if threads > 1.0 {
            names.push(Arc::from(CPU));
        }
        let all = all.iter().map(|(name, units)| (name.as_ref(), *units));
        let signature = self.places.signature(&Request::new(all, [])?);
        self.by_needs.insert(needs, signature);
        self.asked.entry(signature).or_insert(Asked {
            amounts,
            threads,
            names,
        });
        Ok(signature)
    }

    /// Returns the units and threads of a request
    pub fn asked(&self, request: Signature) -> Option<&Asked> {
        self.asked.get(&request)
    }

    /// Returns whether tasks with a request run beside those that fill the threads of a worker
    pub fn is_beside(&self, request: Signature) -> bool {
        self.asked(request).is_some_and(Asked::is_beside)
    }

    // Where tasks go

    /// Returns whether a worker may be given one more such task, to run or to wait
    pub fn has_room(&self, request: Signature, place: Place) -> bool {
        self.places.has_room(request, place).unwrap_or(false)
    }

    /// The worker, of those that run, that would be the least loaded with one more such task
    pub fn least_loaded(
        &mut self,
        request: Signature,
        runs: impl Fn(Place) -> bool,
    ) -> Option<Place> {
        let kept = self.kept_from(request);
        let mut ranked = self.places.ranked(request).into_iter().flatten();
        ranked.find(|&place| Some(place) != kept && runs(place))
    }

    /// Chooses, of the workers with room, the one where a task can begin first
    ///
    /// With `keeps`, tasks wait for room elsewhere, and a worker without room gets none. `begins_s`
    /// tells when a task could begin at a worker, of the load that the worker would have with it:
    /// above 1, the task would have to wait there.
    pub fn choose(
        &self,
        request: Signature,
        candidates: impl IntoIterator<Item = Place>,
        keeps: bool,
        begins_s: impl Fn(Place, f64) -> f64,
    ) -> Option<Place> {
        let mut best: Option<(f64, f64, Place)> = None;
        for place in candidates {
            let Some(load) = self.load(request, place, keeps) else {
                continue;
            };
            let begins_s = begins_s(place, load);
            if best.is_none_or(|(least_s, least, _)| (begins_s, load) < (least_s, least)) {
                best = Some((begins_s, load, place));
            }
        }
        best.map(|(_, _, place)| place)
    }

    /// How loaded a worker would be with one more such task; `None` if it may not be sent one now
    fn load(&self, request: Signature, place: Place, keeps: bool) -> Option<f64> {
        let load = self.places.load(request, place).ok().flatten()?;
        let is_full = keeps && !self.has_room(request, place);
        (!is_full && self.kept_from(request) != Some(place)).then_some(load)
    }

    /// The worker that takes no such task now, for another request that waited for long
    fn kept_from(&self, request: Signature) -> Option<Place> {
        let kept = self.turns.kept.filter(|&kept| kept != request)?;
        share(&self.asked, kept, request).then_some(self.kept_place)?
    }

    // Tasks that hold what they ask for

    /// Notes that a task was sent to a worker, and where it stood; `counts` says whether it takes
    /// less than a thread and is not counted there yet
    ///
    /// If others have gone past a request too often, a worker is kept for it.
    pub fn book(
        &mut self,
        task: T,
        request: Signature,
        place: Place,
        stood: &P,
        counts: bool,
        runs: impl Fn(Place) -> bool,
    ) {
        self.inherit_booking(task, request, place, counts);
        let (asked, turns) = (&self.asked, &mut self.turns);
        let overdue = turns.granted(&request, stood, |&other| share(asked, request, other));
        let _ = (overdue.into_iter()).any(|request| self.keep_worker(request, &runs));
    }

    /// Notes that a worker has a task, which was sent there before
    pub fn inherit_booking(&mut self, task: T, request: Signature, place: Place, counts: bool) {
        // A worker that has left the cluster has no place any more.
        let _ = self.places.book(request, place);
        self.booked.insert(task, (request, place));
        if counts {
            *self.beside.entry(place).or_default() += 1;
        }
    }

    /// Tasks that hold what they ask for
    pub fn booked(&self) -> impl Iterator<Item = T> + '_ {
        self.booked.keys().copied()
    }

    /// Returns whether a task holds what it asks for
    pub fn is_booked(&self, task: &T) -> bool {
        self.booked.contains_key(task)
    }

    /// Notes that a task has left a worker, or has given back what it held there; `place` is `None`
    /// if the worker has left
    pub fn release(&mut self, task: &T, place: Option<Place>) {
        let Some((request, booked_at)) = self.booked.remove(task) else {
            return;
        };
        // It may have been stolen from a worker that has left since.
        let _ = self.places.release(request, booked_at);
        if self.is_beside(request)
            && let Some(beside) = place.and_then(|place| self.beside.get_mut(&place))
        {
            *beside = beside.saturating_sub(1);
        }
    }

    /// How many tasks of a worker take less than a thread
    pub fn beside(&self, place: Place) -> u64 {
        self.beside.get(&place).copied().unwrap_or_default()
    }

    /// Forgets a worker, all that is booked there, and what these tasks of it hold
    pub fn remove_worker(&mut self, place: Place, tasks: impl IntoIterator<Item = T>) {
        for task in tasks {
            self.booked.remove(&task);
        }
        self.beside.remove(&place);
        self.places.remove_worker(place);
        if self.kept_place == Some(place) {
            self.kept_place = None;
        }
    }

    // Tasks that wait

    /// Keeps a task that no worker has room for; returns why none ever will, if that is so
    pub fn wait(&mut self, key: LineKey, task: T, priority: P) -> Option<String> {
        let request = key.request;
        let reason = self.places.unmeetable(request).ok().flatten();
        let can_wait = reason.is_none() && !key.is_restricted();
        let first = self.lines.add(key, task, priority);
        if can_wait {
            self.turns.refused(&request, first);
        }
        reason
    }

    /// Puts a task into its line, in which it waited before
    pub fn join_line(&mut self, key: LineKey, task: T, priority: P) {
        self.lines.add(key, task, priority);
    }

    /// Takes a task out of the line in which it waits
    pub fn leave_line(&mut self, task: &T) {
        self.lines.leave(task);
    }

    /// Returns whether tasks wait, or did until the last pass over all lines
    pub fn has_lines(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Keeps the least loaded worker that runs for a request that waited for long; returns whether
    /// there is one
    pub(super) fn keep_worker(&mut self, request: Signature, runs: impl Fn(Place) -> bool) -> bool {
        self.kept_place = self.least_loaded(request, runs);
        if self.kept_place.is_some() {
            self.turns.kept = Some(request);
        }
        self.kept_place.is_some()
    }

    /// Notes that no task waits with a request any more
    pub(super) fn left(&mut self, request: Signature) {
        if self.turns.left(&request) {
            self.kept_place = None;
        }
    }

    // Another scheduler continues

    /// Returns what another scheduler has to know; `waits` tells which tasks still do
    ///
    /// A request whose tasks were all cancelled is left out: the next pass over the lines would
    /// have found that out.
    pub fn view(&self, waits: impl Fn(&T) -> bool) -> AdmissionView<T, P> {
        let is_there = |request| self.lines.has_unbound(request, &waits);
        let passed = self.turns.waiting().iter();
        let passed: Vec<_> = passed
            .filter(|one| is_there(one.request))
            .filter_map(|one| Some((one, self.asked(one.request)?)))
            .collect();
        let is_kept = |one: &Waits<Signature, P>| Some(one.request) == self.turns.kept;
        let mut waiting = self.lines.members();
        waiting.retain(&waits);
        AdmissionView {
            waiting,
            kept: passed.iter().position(|(one, _)| is_kept(one)),
            passed: passed
                .into_iter()
                .map(|(one, asked)| Passed {
                    amounts: asked.amounts.clone(),
                    threads: asked.threads,
                    stands: one.stands.clone(),
                    passes: one.passes,
                })
                .collect(),
            kept_place: self.kept_place,
            served: self.places.served(),
        }
    }

    /// Takes over requests that wait, as a view has them; their tasks are booked and in lines
    pub fn inherit(
        &mut self,
        passed: impl IntoIterator<Item = Passed<P>>,
        kept: Option<usize>,
        kept_place: Option<Place>,
        served: &[Place],
    ) {
        for (number, one) in passed.into_iter().enumerate() {
            // The other scheduler has refused requests that are not possible.
            let Ok(request) = self.request(one.amounts, one.threads) else {
                continue;
            };
            let waits = Waits {
                request,
                stands: one.stands,
                passes: one.passes,
            };
            self.turns.inherit(waits, kept == Some(number));
        }
        self.kept_place = kept_place;
        self.places.set_served(served);
    }

    /// Forgets all workers and tasks: another scheduler continues; requests keep their numbers
    pub fn clear(&mut self) {
        self.places.remove_workers();
        self.turns.clear();
        self.kept_place = None;
        self.lines = Lines::default();
        self.booked.clear();
        self.beside.clear();
    }
}

/// Returns whether two requests keep something from each other
fn share(asked: &HashMap<Signature, Asked>, one: Signature, other: Signature) -> bool {
    let pair = asked.get(&one).zip(asked.get(&other));
    pair.is_some_and(|(one, other)| one.names.iter().any(|name| other.names.contains(name)))
}

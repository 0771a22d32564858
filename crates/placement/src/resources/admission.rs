//! Requests of a scheduler's tasks: which worker may be sent one more, and which request is next.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use super::places::{Place, Places, Signature};
use super::request::{Request, RequestError};
use super::turns::Turns;

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

/// The distinct requests of a scheduler's tasks, and the workers that have room for one more
///
/// `P` is where a task stands among all tasks.
#[derive(Debug)]
pub struct Admission<P> {
    /// Units of workers, and units in use
    pub places: Places,
    /// The requests that wait, and who went past them
    pub turns: Turns<Signature, P>,
    /// The worker that takes nothing more of what the request needs that `turns` keeps it for
    pub kept_place: Option<Place>,
    asked: HashMap<Signature, Asked>,
    by_needs: HashMap<Needs, Signature>,
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

impl<P> Default for Admission<P> {
    fn default() -> Self {
        Self {
            places: Places::default(),
            turns: Turns::default(),
            kept_place: None,
            asked: HashMap::new(),
            by_needs: HashMap::new(),
        }
    }
}

impl<P: PartialOrd> Admission<P> {
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

    /// Returns whether a worker may be given one more such task, to run or to wait
    pub fn has_room(&self, request: Signature, place: Place) -> bool {
        self.places.has_room(request, place).unwrap_or(false)
    }

    /// How loaded a worker would be with one more such task; `None` if it may not be sent one now
    ///
    /// With `keeps`, tasks wait for room elsewhere, and a worker without room may not.
    pub fn load(&self, request: Signature, place: Place, keeps: bool) -> Option<f64> {
        let load = self.places.load(request, place).ok().flatten()?;
        let is_full = keeps && !self.has_room(request, place);
        (!is_full && self.kept_from(request) != Some(place)).then_some(load)
    }

    /// Workers that can ever meet a request, without one that is kept for another one that needs
    /// the same; the least loaded first
    pub fn ranked(&mut self, request: Signature) -> impl Iterator<Item = Place> + '_ {
        let kept = self.kept_from(request);
        let ranked = self.places.ranked(request).into_iter().flatten();
        ranked.filter(move |&place| Some(place) != kept)
    }

    /// The worker that takes no such task now, for another request that waited for long
    fn kept_from(&self, request: Signature) -> Option<Place> {
        let kept = self.turns.kept.filter(|&kept| kept != request)?;
        share(&self.asked, kept, request).then_some(self.kept_place)?
    }

    /// Notes that a task has got what it asks for, and where it stood; returns the requests that
    /// others have gone past too often, for the first of which a worker is to be kept
    pub fn granted(&mut self, request: Signature, stood: &P) -> Vec<Signature> {
        let (asked, turns) = (&self.asked, &mut self.turns);
        turns.granted(&request, stood, |&other| share(asked, request, other))
    }

    /// Keeps a worker for a request that waited for long; returns whether there is one to keep
    pub fn keep(&mut self, request: Signature, place: Option<Place>) -> bool {
        self.kept_place = place;
        if place.is_some() {
            self.turns.kept = Some(request);
        }
        place.is_some()
    }

    /// Notes that no task waits with a request any more
    pub fn left(&mut self, request: Signature) {
        if self.turns.left(&request) {
            self.kept_place = None;
        }
    }

    /// Forgets a worker and all that is booked there
    pub fn remove_worker(&mut self, place: Place) {
        self.places.remove_worker(place);
        if self.kept_place == Some(place) {
            self.kept_place = None;
        }
    }
}

/// Returns whether two requests keep something from each other
fn share(asked: &HashMap<Signature, Asked>, one: Signature, other: Signature) -> bool {
    let pair = asked.get(&one).zip(asked.get(&other));
    pair.is_some_and(|(one, other)| one.names.iter().any(|name| other.names.contains(name)))
}

//! Which worker a task with resources fits best: for a scheduler.
//!
//! For each distinct request there is one ranking of the workers that can meet it, kept up to date
//! as tasks are placed and end, so that a choice among thousands costs no look at each. Where there
//! are more than [`RANKINGS_MAX`], those that were asked for the longest ago are made again when
//! they are asked for.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use thiserror::Error;

use super::declare::{Declaration, DeclareError};
use super::pools::Pools;
use super::quantity::Quantity;
use super::request::Request;

/// How much may be placed at a worker, as a multiple of what it has: while one task holds a unit,
/// another one is there to take it over
pub const AHEAD: u64 = 2;

/// Rankings that are kept up to date
pub const RANKINGS_MAX: usize = 64;

/// Load of one, a resource that is wholly used, in the rankings
const FULL: u64 = 1 << 20;

/// Number of one distinct request
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Signature(pub u32);

/// Number of one worker, as the scheduler gives it
pub type Place = u32;

/// The workers of a scheduler, and what of them is spoken for
#[derive(Debug, Default)]
pub struct Places {
    workers: BTreeMap<Place, Worker>,
    signatures: Vec<Ranking>,
    by_request: HashMap<Request, Signature>,
    /// Signatures that are kept up to date, the one first that was asked for the longest ago
    kept: Vec<Signature>,
    turn: u64,
}

#[derive(Debug)]
struct Worker {
    pools: Pools,
    totals: BTreeMap<String, Quantity>,
    used: BTreeMap<String, Quantity>,
    booked: BTreeMap<Signature, u64>,
    turn: u64,
}

#[derive(Debug)]
struct Ranking {
    request: Request,
    /// True if it is up to date; empty if not
    is_kept: bool,
    order: BTreeSet<Rank>,
    rank_of: HashMap<Place, Rank>,
}

/// A task was given to a worker, or has left the worker
#[derive(Clone, Copy, Eq, PartialEq)]
enum Change {
    Book,
    Release,
}

/// Load, then who was given something longest ago
type Rank = (u64, u64, Place);

impl Places {
    /// Knows of a worker, or of what it has now; what is booked there stays booked
    ///
    /// # Errors
    ///
    /// [`DeclareError`] if what it has makes no sense. Nothing has changed then.
    pub fn set_worker(
        &mut self,
        place: Place,
        declared: &BTreeMap<String, Declaration>,
    ) -> Result<(), DeclareError> {
        let pools = Pools::new(declared)?;
        let totals = pools
            .amounts()
            .map(|(name, total, _)| (name.to_owned(), total))
            .collect();
        let before = self.workers.remove(&place);
        let (used, booked, turn) = match before {
            Some(worker) => (worker.used, worker.booked, worker.turn),
            None => Default::default(),
        };
        let worker = Worker {
            pools,
            totals,
            used,
            booked,
            turn,
        };
        for &number in &self.kept {
            self.signatures[number.0 as usize].place(place, &worker, number);
        }
        self.workers.insert(place, worker);
        Ok(())
    }

    /// Forgets a worker and all that is booked there
    pub fn remove_worker(&mut self, place: Place) {
        if self.workers.remove(&place).is_some() {
            for ranking in &mut self.signatures {
                ranking.forget(place);
            }
        }
    }

    /// Forgets all workers
    pub fn remove_workers(&mut self) {
        self.workers.clear();
        for ranking in &mut self.signatures {
            ranking.order.clear();
            ranking.rank_of.clear();
        }
    }

    /// Number of a request; the same for equal ones
    pub fn signature(&mut self, request: &Request) -> Signature {
        if let Some(&known) = self.by_request.get(request) {
            return known;
        }
        let number = signature(self.signatures.len());
        self.signatures.push(Ranking {
            request: request.clone(),
            is_kept: false,
            order: BTreeSet::new(),
            rank_of: HashMap::new(),
        });
        self.by_request.insert(request.clone(), number);
        number
    }

    /// The workers that can ever meet a request, the least loaded first
    ///
    /// Of equals, the one first that was given something longest ago.
    ///
    /// # Errors
    ///
    /// [`PlacesError`] if there is no such request.
    pub fn ranked(
        &mut self,
        signature: Signature,
    ) -> Result<impl Iterator<Item = Place> + '_, PlacesError> {
        let ranking = self.kept_ranking(signature)?;
        Ok(ranking.order.iter().map(|&(_, _, place)| place))
    }

    /// How loaded a worker would be with one more such task: above 1, the task would have to wait;
    /// `None` if the worker can never meet the request
    ///
    /// # Errors
    ///
    /// [`PlacesError`] if there is no such request or worker.
    pub fn load(&self, signature: Signature, place: Place) -> Result<Option<f64>, PlacesError> {
        let worker = self.worker(place)?;
        let ranking = self.ranking(signature)?;
        if worker.pools.meetable(&ranking.request).is_err() {
            return Ok(None);
        }
        if ranking.request.needs().is_empty() {
            return Ok(Some(0.0));
        }
        Ok(Some(ranking.load(worker, signature) as f64 / FULL as f64))
    }

    /// Returns whether a worker may be given one more such task, to run or to wait
    ///
    /// # Errors
    ///
    /// [`PlacesError`] if there is no such request or worker.
    pub fn has_room(&self, signature: Signature, place: Place) -> Result<bool, PlacesError> {
        Ok(self
            .load(signature, place)?
            .is_some_and(|load| load <= AHEAD as f64))
    }

    /// Notes that a task was given to a worker
    ///
    /// # Errors
    ///
    /// [`PlacesError`] if there is no such request or worker.
    pub fn book(&mut self, signature: Signature, place: Place) -> Result<(), PlacesError> {
        self.ranking(signature)?;
        self.turn += 1;
        let turn = self.turn;
        let worker = self.worker_mut(place)?;
        worker.turn = turn;
        *worker.booked.entry(signature).or_default() += 1;
        self.change(signature, place, Change::Book);
        Ok(())
    }

    /// Notes that a task has left a worker
    ///
    /// # Errors
    ///
    /// [`PlacesError`] if there is no such request or worker, or none such is booked there.
    pub fn release(&mut self, signature: Signature, place: Place) -> Result<(), PlacesError> {
        self.ranking(signature)?;
        let worker = self.worker_mut(place)?;
        match worker.booked.get_mut(&signature) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                worker.booked.remove(&signature);
            }
            None => return Err(PlacesError::NotBooked { signature, place }),
        }
        self.change(signature, place, Change::Release);
        Ok(())
    }

    /// The workers that were given something, the one first whose last task came longest ago
    pub fn served(&self) -> Vec<Place> {
        let served = self.workers.iter().filter(|(_, worker)| worker.turn > 0);
        let mut served: Vec<_> = served
            .map(|(&place, worker)| (worker.turn, place))
            .collect();
        served.sort_unstable();
        served.into_iter().map(|(_, place)| place).collect()
    }

    /// Sets who was given something, in the order of [`Places::served`]
    pub fn set_served(&mut self, served: &[Place]) {
        for worker in self.workers.values_mut() {
            worker.turn = 0;
        }
        self.turn = 0;
        for place in served {
            self.turn += 1;
            if let Some(worker) = self.workers.get_mut(place) {
                worker.turn = self.turn;
            }
        }
        for &number in &self.kept {
            for (&place, worker) in &self.workers {
                self.signatures[number.0 as usize].place(place, worker, number);
            }
        }
    }

    /// How many such tasks a worker was given, and has
    pub fn booked(&self, signature: Signature, place: Place) -> u64 {
        self.workers
            .get(&place)
            .and_then(|worker| worker.booked.get(&signature))
            .copied()
            .unwrap_or(0)
    }

    /// Says why no worker can ever meet a request; `None` if one can, or there is none at all
    ///
    /// # Errors
    ///
    /// [`PlacesError`] if there is no such request.
    pub fn unmeetable(&mut self, signature: Signature) -> Result<Option<String>, PlacesError> {
        if !self.kept_ranking(signature)?.order.is_empty() {
            return Ok(None);
        }
        let ranking = self.ranking(signature)?;
        // Of the reasons, each once: most clusters have few kinds of workers.
        let reasons: BTreeSet<String> = self
            .workers
            .values()
            .filter_map(|worker| worker.pools.meetable(&ranking.request).err())
            .map(|reason| reason.to_string())
            .collect();
        let reasons: Vec<String> = reasons.into_iter().take(3).collect();
        Ok((!reasons.is_empty()).then(|| reasons.join("; or ")))
    }

    fn change(&mut self, signature: Signature, place: Place, change: Change) {
        let Some(worker) = self.workers.get_mut(&place) else {
            return;
        };
        let request = self.signatures[signature.0 as usize].request.clone();
        for (name, amount) in request.needs() {
            let used = worker.used.entry(name.clone()).or_default();
            match change {
                Change::Book => *used += *amount,
                Change::Release => *used -= *amount,
            }
        }
        // A worker that was given something comes after its equals in all rankings.
        let all = change == Change::Book;
        for &number in &self.kept {
            let ranking = &mut self.signatures[number.0 as usize];
            if all || number == signature || ranking.shares(&request) {
                ranking.place(place, worker, number);
            }
        }
    }

    /// Gives a ranking that is up to date from now on
    fn kept_ranking(&mut self, signature: Signature) -> Result<&Ranking, PlacesError> {
        if !self.ranking(signature)?.is_kept {
            if self.kept.len() == RANKINGS_MAX {
                let longest_ago = self.kept.remove(0);
                self.signatures[longest_ago.0 as usize].clear();
            }
            let ranking = &mut self.signatures[signature.0 as usize];
            ranking.is_kept = true;
            for (&place, worker) in &self.workers {
                ranking.place(place, worker, signature);
            }
            self.kept.push(signature);
        } else if self.kept.last() != Some(&signature)
            && let Some(found) = self.kept.iter().position(|&kept| kept == signature)
        {
            self.kept[found..].rotate_left(1);
        }
        self.ranking(signature)
    }

    fn ranking(&self, signature: Signature) -> Result<&Ranking, PlacesError> {
        self.signatures
            .get(signature.0 as usize)
            .ok_or(PlacesError::NoSuchRequest { signature })
    }

    fn worker(&self, place: Place) -> Result<&Worker, PlacesError> {
        self.workers
            .get(&place)
            .ok_or(PlacesError::NoSuchWorker { place })
    }

    fn worker_mut(&mut self, place: Place) -> Result<&mut Worker, PlacesError> {
        self.workers
            .get_mut(&place)
            .ok_or(PlacesError::NoSuchWorker { place })
    }
}

impl Ranking {
    fn place(&mut self, place: Place, worker: &Worker, number: Signature) {
        self.forget(place);
        if worker.pools.meetable(&self.request).is_ok() {
            let rank = (self.load(worker, number), worker.turn, place);
            self.order.insert(rank);
            self.rank_of.insert(place, rank);
        }
    }

    fn clear(&mut self) {
        self.is_kept = false;
        self.order.clear();
        self.rank_of.clear();
    }

    fn forget(&mut self, place: Place) {
        if let Some(rank) = self.rank_of.remove(&place) {
            self.order.remove(&rank);
        }
    }

    /// Load of the resource that is used the most; by number where nothing is asked for
    fn load(&self, worker: &Worker, number: Signature) -> u64 {
        if self.request.needs().is_empty() {
            return worker.booked.get(&number).copied().unwrap_or(0);
        }
        let loads = self.request.needs().iter().map(|(name, wanted)| {
            let used = worker.used.get(name).copied().unwrap_or_default();
            let total = worker.totals[name];
            let parts = u128::from((used + *wanted).parts()) * u128::from(FULL);
            // Rounded up: a worker that uses more than its total is above one.
            u64::try_from(parts.div_ceil(u128::from(total.parts()))).unwrap_or(u64::MAX)
        });
        loads.max().unwrap_or(0)
    }

    fn shares(&self, request: &Request) -> bool {
        let mine = self.request.needs();
        request
            .needs()
            .iter()
            .any(|(name, _)| mine.iter().any(|(other, _)| other == name))
    }
}

fn signature(number: usize) -> Signature {
    Signature(u32::try_from(number).expect("there are fewer than 2^32 distinct requests"))
}

/// Unknown task or worker of a scheduler's places
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum PlacesError {
    /// No request has this number
    #[error("there is no request number {}", signature.0)]
    NoSuchRequest {
        /// The number
        signature: Signature,
    },
    /// No worker has this number
    #[error("there is no worker number {place}")]
    NoSuchWorker {
        /// The number
        place: Place,
    },
    /// The worker was given no such task, or none is left
    #[error("worker number {place} has no task with request number {}", signature.0)]
    NotBooked {
        /// The request
        signature: Signature,
        /// The worker
        place: Place,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::Indexed;

    fn gpus(count: u32) -> BTreeMap<String, Declaration> {
        let pool = Declaration::Indexed(Indexed::counted(count));
        BTreeMap::from([("GPU".to_owned(), pool)])
    }

    fn request(units: f64) -> Request {
        Request::new([("GPU", units)], []).expect("it makes sense")
    }

    fn best(places: &mut Places, signature: Signature) -> Option<Place> {
        places.ranked(signature).expect("it is known").next()
    }

    #[test]
    fn eight_tasks_on_two_workers_are_four_and_four() {
        let mut places = Places::default();
        let one = places.signature(&request(1.0));
        for place in 0..2 {
            places.set_worker(place, &gpus(2)).expect("it makes sense");
        }
        for _ in 0..8 {
            let place = best(&mut places, one).expect("one can");
            places.book(one, place).expect("it is known");
        }
        assert_eq!((places.booked(one, 0), places.booked(one, 1)), (4, 4));
        assert_eq!(places.has_room(one, 0), Ok(false));
    }

    #[test]
    fn requests_for_one_resource_see_each_other() {
        let mut places = Places::default();
        let (one, two) = (
            places.signature(&request(1.0)),
            places.signature(&request(2.0)),
        );
        for place in 0..2 {
            places.set_worker(place, &gpus(2)).expect("it makes sense");
        }
        places.book(two, 0).expect("it is known");
        assert_eq!(best(&mut places, one), Some(1));
        places.book(one, 1).expect("it is known");
        places.release(two, 0).expect("it is booked");
        assert_eq!(best(&mut places, one), Some(0));
        assert_eq!(
            places.release(two, 0),
            Err(PlacesError::NotBooked {
                signature: two,
                place: 0
            })
        );
    }

    #[test]
    fn only_workers_that_can_ever_meet_it_are_ranked() {
        let mut places = Places::default();
        let four = places.signature(&request(4.0));
        places.set_worker(0, &gpus(2)).expect("it makes sense");
        assert_eq!(best(&mut places, four), None);
        assert_eq!(
            places.unmeetable(four),
            Ok(Some(
                "4 of GPU are more than the 2 that there are".to_owned()
            ))
        );
        places.set_worker(1, &gpus(4)).expect("it makes sense");
        assert_eq!(best(&mut places, four), Some(1));
        places.remove_worker(1);
        assert_eq!(best(&mut places, four), None);
    }

    #[test]
    fn tasks_that_ask_for_nothing_are_spread_by_number() {
        let mut places = Places::default();
        let nothing = places.signature(&Request::default());
        for place in 0..3 {
            places
                .set_worker(place, &BTreeMap::new())
                .expect("it makes sense");
        }
        for _ in 0..9 {
            let place = best(&mut places, nothing).expect("each can");
            places.book(nothing, place).expect("it is known");
        }
        assert!((0..3).all(|place| places.booked(nothing, place) == 3));
        assert_eq!(places.has_room(nothing, 0), Ok(true));
    }

    #[test]
    fn rankings_that_were_not_kept_are_right_when_they_are_asked_for() {
        let mut places = Places::default();
        places.set_worker(0, &gpus(2)).expect("it makes sense");
        places.set_worker(1, &gpus(2)).expect("it makes sense");
        let shares = 1..=2 * RANKINGS_MAX as u32;
        let signatures: Vec<Signature> = shares
            .map(|share| places.signature(&request(f64::from(share) / 1000.0)))
            .collect();
        let one = places.signature(&request(1.0));
        for &signature in &signatures {
            assert_eq!(best(&mut places, signature), Some(0));
        }
        places.book(one, 0).expect("it is known");
        for &signature in &signatures {
            assert_eq!(best(&mut places, signature), Some(1));
        }
        assert!(places.kept.len() <= RANKINGS_MAX);
    }

    #[test]
    fn what_is_booked_stays_when_a_worker_has_more() {
        let mut places = Places::default();
        let one = places.signature(&request(1.0));
        places.set_worker(0, &gpus(1)).expect("it makes sense");
        places.book(one, 0).expect("it is known");
        assert_eq!(places.load(one, 0), Ok(Some(2.0)));
        places.set_worker(0, &gpus(4)).expect("it makes sense");
        assert_eq!(places.load(one, 0), Ok(Some(0.5)));
    }
}

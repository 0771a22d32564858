//! Tasks that ask a scheduler for resources, with workers that pause and leave, against a count of
//! all tasks after every step.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use backhaul_placement::resources::{
    AHEAD, Admission, Declaration, Indexed, LineKey, Place, Signature, Step,
};
use proptest::prelude::*;

const PLACES: [u32; 3] = [1, 2, 4];
/// Leases that may go past a request here
const PASSES_MAX: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waits,
    RunsAt(Place),
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Task {
    units: u32,
    priority: u32,
    /// The only worker where it may run
    bound_to: Option<Place>,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Comes {
        units: u32,
        priority: u32,
        bound_to: Option<Place>,
    },
    Ends(usize),
    IsCancelled(usize),
    Toggles(Place),
    Leaves(Place),
}

#[derive(Default)]
struct Scheduler {
    admission: Admission<usize, u32>,
    tasks: Vec<Task>,
    running: HashSet<Place>,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let place = 0..PLACES.len() as Place;
    let comes = (
        1..=4_u32,
        0..50_u32,
        prop::option::weighted(0.2, place.clone()),
    );
    let event = prop_oneof![
        6 => comes.prop_map(|(units, priority, bound_to)| {
            Event::Comes { units, priority, bound_to }
        }),
        4 => any::<usize>().prop_map(Event::Ends),
        1 => any::<usize>().prop_map(Event::IsCancelled),
        1 => place.clone().prop_map(Event::Toggles),
        1 => place.prop_map(Event::Leaves),
    ];
    prop::collection::vec(event, 1..150)
}

impl Scheduler {
    fn new() -> Self {
        let mut one = Self::default();
        one.admission.turns.passes_max = PASSES_MAX;
        for place in 0..PLACES.len() as Place {
            one.joins(place);
        }
        one
    }

    fn joins(&mut self, place: Place) {
        let pool = Declaration::Indexed(Indexed::counted(PLACES[place as usize]));
        let declared = BTreeMap::from([("GPU".to_owned(), pool)]);
        let places = &mut self.admission.places;
        places.set_worker(place, &declared).expect("it makes sense");
        self.running.insert(place);
    }

    fn request(&mut self, units: u32) -> Signature {
        let amounts = vec![(Arc::from("GPU"), f64::from(units))];
        self.admission
            .request(amounts, 1.0)
            .expect("it makes sense")
    }

    /// Sends a task if a worker has room, else lets it wait
    fn decide(&mut self, number: usize) {
        let task = self.tasks[number];
        let request = self.request(task.units);
        let running = &self.running;
        let runs = |place| running.contains(&place);
        let candidate = match task.bound_to {
            Some(place) => Some(place).filter(|place| running.contains(place)),
            None => self.admission.least_loaded(request, runs),
        };
        let chosen = self
            .admission
            .choose(request, candidate, true, |_, load| load);
        if let Some(place) = chosen {
            let stood = task.priority;
            self.admission
                .book(number, request, place, &stood, false, runs);
            self.tasks[number].state = State::RunsAt(place);
        } else {
            let workers = task
                .bound_to
                .iter()
                .map(|place| Arc::from(place.to_string()));
            let key = LineKey::new(request, workers.collect(), Vec::new(), false);
            self.admission.wait(key, number, task.priority);
        }
    }

    fn waits(&self, number: usize) -> bool {
        self.tasks[number].state == State::Waits
    }

    /// Sends what may go, of tasks with one request and bound alike the first one first; returns
    /// whether a task was sent
    fn drain(&mut self) -> bool {
        let mut sent = false;
        let mut drain = self
            .admission
            .begin_drain(|place| self.running.contains(&place));
        let mut answer = false;
        loop {
            let running = &self.running;
            let runs = |place| running.contains(&place);
            let Some(step) = self.admission.step(&mut drain, answer, runs) else {
                return sent;
            };
            answer = match step {
                Step::Waits(number) => self.waits(number),
                Step::MayGo(number) => {
                    let task = self.tasks[number];
                    let request = self.request(task.units);
                    task.bound_to.is_some_and(|place| {
                        self.running.contains(&place) && self.admission.has_room(request, place)
                    })
                }
                Step::Send(number) => {
                    let task = self.tasks[number];
                    let is_alike =
                        |one: &&Task| one.units == task.units && one.bound_to == task.bound_to;
                    let waiting = self.tasks.iter().filter(|one| one.state == State::Waits);
                    let first = waiting.filter(is_alike).map(|one| one.priority).min();
                    assert_eq!(first, Some(task.priority));
                    self.decide(number);
                    sent |= !self.waits(number);
                    self.waits(number)
                }
            };
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Comes {
                units,
                priority,
                bound_to,
            } => {
                let number = self.tasks.len();
                let state = State::Waits;
                self.tasks.push(Task {
                    units,
                    priority,
                    bound_to,
                    state,
                });
                self.decide(number);
            }
            Event::Ends(any) | Event::IsCancelled(any) if !self.tasks.is_empty() => {
                let number = any % self.tasks.len();
                match (event, self.tasks[number].state) {
                    (Event::Ends(_), State::RunsAt(place)) => {
                        self.admission.release(&number, Some(place));
                        self.tasks[number].state = State::Gone;
                    }
                    (Event::IsCancelled(_), State::Waits) => {
                        self.tasks[number].state = State::Gone;
                    }
                    _ => {}
                }
            }
            Event::Toggles(place) if self.running.contains(&place) => {
                self.running.remove(&place);
            }
            Event::Toggles(place) => {
                self.running.insert(place);
            }
            Event::Leaves(place) => {
                let numbered = self.tasks.iter().enumerate();
                let there = numbered.filter(|(_, one)| one.state == State::RunsAt(place));
                let there: Vec<usize> = there.map(|(number, _)| number).collect();
                self.admission.remove_worker(place, there.iter().copied());
                for &number in &there {
                    self.tasks[number].state = State::Gone;
                }
                self.joins(place);
            }
            _ => {}
        }
        // A worker may be kept for a request and free again in one pass: lines that it was kept from
        // go in the next.
        while self.drain() {}
    }

    fn used(&self, place: Place) -> u32 {
        let there = (self.tasks.iter()).filter(|one| one.state == State::RunsAt(place));
        there.map(|one| one.units).sum()
    }

    /// True if a running worker has room for a task, were none kept for another
    fn has_room(&self, task: &Task, place: Place) -> bool {
        let units = PLACES[place as usize];
        self.running.contains(&place)
            && task.bound_to.is_none_or(|bound_to| bound_to == place)
            && task.units <= units
            && self.used(place) + task.units <= AHEAD as u32 * units
    }

    fn check(&mut self) {
        for place in 0..PLACES.len() as Place {
            let units = PLACES[place as usize];
            assert!(
                self.used(place) <= AHEAD as u32 * units,
                "worker {place} has too much"
            );
        }
        let kept = self.admission.turns.kept;
        let kept_place = kept.and(self.admission.kept_place);
        for number in 0..self.tasks.len() {
            let task = self.tasks[number];
            let booked = self.admission.is_booked(&number);
            assert_eq!(booked, matches!(task.state, State::RunsAt(_)));
            if task.state != State::Waits {
                continue;
            }
            let is_kept = kept == Some(self.request(task.units));
            for place in 0..PLACES.len() as Place {
                let may_use = is_kept || kept_place != Some(place);
                assert!(
                    !(may_use && self.has_room(&task, place)),
                    "{task:?} waits for {place}"
                );
            }
        }
        let view = self
            .admission
            .view(|&number| self.tasks[number].state == State::Waits);
        let waiting = self
            .tasks
            .iter()
            .filter(|one| one.state == State::Waits)
            .count();
        assert_eq!(view.waiting.len(), waiting);
    }
}

proptest! {
    #[test]
    fn nothing_waits_that_a_worker_has_room_for(events in events()) {
        let mut scheduler = Scheduler::new();
        for event in events {
            scheduler.handle(event);
            scheduler.check();
        }
    }

    #[test]
    fn another_admission_continues_as_the_first_would(
        before in events(), after in events(), resets in any::<bool>()
    ) {
        let mut scheduler = Scheduler::new();
        for event in before {
            scheduler.handle(event);
        }
        // Rankings that were not asked for lately learn only then who was served.
        let served = scheduler.admission.places.served();
        scheduler.admission.places.set_served(&served);
        let mut other = continued(&scheduler, resets);
        for event in after {
            scheduler.handle(event);
            other.handle(event);
            let states = |one: &Scheduler| one.tasks.iter().map(|task| task.state).collect::<Vec<_>>();
            prop_assert_eq!(states(&scheduler), states(&other));
        }
    }
}

/// Returns a scheduler that takes over from another one, with the same admission or with a new one
fn continued(before: &Scheduler, resets: bool) -> Scheduler {
    let waits = |number: &usize| before.tasks[*number].state == State::Waits;
    let view = before.admission.view(waits);
    let mut other = Scheduler::new();
    if resets {
        // Requests have other numbers then.
        other.request(9);
        other.admission.clear();
        for place in 0..PLACES.len() as Place {
            other.joins(place);
        }
    }
    other.tasks.clone_from(&before.tasks);
    other.running.clone_from(&before.running);
    for (number, task) in before.tasks.iter().enumerate() {
        if let State::RunsAt(place) = task.state {
            let request = other.request(task.units);
            other
                .admission
                .inherit_booking(number, request, place, false);
        }
    }
    for number in view.waiting {
        let task = before.tasks[number];
        let request = other.request(task.units);
        let workers = task
            .bound_to
            .iter()
            .map(|place| Arc::from(place.to_string()));
        let key = LineKey::new(request, workers.collect(), Vec::new(), false);
        other.admission.join_line(key, number, task.priority);
    }
    (other.admission).inherit(view.passed, view.kept, view.kept_place, &view.served);
    other
}

//! The state of requests for resources, as another core or Dask's scheduler goes on from it.

use std::sync::Arc;

use backhaul_placement::resources::Waits;

use super::compact::PriorityOrNone;
use super::core::SchedulerCore;
use super::error::InheritError;
use super::ids::{Id, TaskId, WorkerId};
use super::task::{Key, Priority, TaskState};

/// State of requests for resources, for a core that goes on from there
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoomView {
    /// Keys of tasks that hold what they ask for
    pub booked: Vec<Key>,
    /// Keys of tasks that wait for room, each line in the order in which it would go
    pub waiting: Vec<Key>,
    /// Requests that wait, and others may have gone past
    pub passed: Vec<Passed>,
    /// Which of them something is kept for
    pub kept: Option<usize>,
    /// Address of the worker that is kept for it
    pub kept_worker: Option<Arc<str>>,
    /// Addresses of the workers that were sent such tasks, the one first whose last was longest ago
    pub served: Vec<Arc<str>>,
    /// True if something has come back that a task may wait for, and nothing was sent yet
    pub drains: bool,
}

/// A request that waits
#[derive(Clone, Debug, PartialEq)]
pub struct Passed {
    /// How much of what it asks for, threads left out
    pub amounts: Vec<(Arc<str>, f64)>,
    /// How many threads it takes
    pub threads: f64,
    /// Priority of its first task
    pub stands: Priority,
    /// How many went past it
    pub passes: u64,
}

impl SchedulerCore {
    /// Returns the state of requests for resources; `None` if no task has ever made one
    pub fn room_view(&self) -> Option<RoomView> {
        let room = self.room.as_deref().filter(|room| room.is_active)?;
        let waits = |&(task, serial): &(TaskId, u32)| {
            let one = self.tasks.find(task)?;
            let waits = one.serial == serial && one.state == TaskState::NoWorker;
            waits.then(|| Arc::clone(&one.key))
        };
        // Of a request whose tasks were all cancelled the next drain finds out.
        let is_there = |request| {
            room.lines
                .unbound(request)
                .iter()
                .any(|one| waits(one).is_some())
        };
        let passed = room.admission.turns.waiting().iter();
        let passed: Vec<_> = passed
            .filter(|one| is_there(one.request))
            .filter_map(|one| Some((one, room.admission.asked(one.request)?, one.stands.get()?)))
            .collect();
        let mut booked: Vec<TaskId> = room.booked.keys().copied().collect();
        booked.sort_by_key(|&task| self.tasks[task].run_id.get());
        Some(RoomView {
            booked: booked
                .iter()
                .map(|&task| Arc::clone(&self.tasks[task].key))
                .collect(),
            waiting: room.lines.members().iter().filter_map(waits).collect(),
            kept: passed
                .iter()
                .position(|(one, ..)| Some(one.request) == room.admission.turns.kept),
            passed: passed
                .into_iter()
                .map(|(one, asked, stands)| Passed {
                    amounts: asked.amounts.clone(),
                    threads: asked.threads,
                    stands,
                    passes: one.passes,
                })
                .collect(),
            kept_worker: room
                .admission
                .kept_place
                .map(|place| WorkerId::at(place as usize))
                .filter(|&worker| self.workers.is_current(worker))
                .map(|worker| Arc::clone(&self.workers[worker].address)),
            served: room
                .admission
                .places
                .served()
                .into_iter()
                .map(|place| Arc::clone(&self.workers[WorkerId::at(place as usize)].address))
                .collect(),
            drains: room.drains,
        })
    }

    /// Takes over what another scheduler knew of requests, as [`SchedulerCore::room_view`] shows it
    ///
    /// To be called after [`SchedulerCore::declare`] for the workers that have units by ids. What
    /// waits is sent at the end of the next event.
    ///
    /// # Errors
    ///
    /// [`InheritError`] if the view names an unknown worker or task. The core must not be used then.
    pub fn inherit_room(&mut self, view: &RoomView) -> Result<(), InheritError> {
        self.begin_admission();
        for key in &view.booked {
            let task = self.inherited_key(key)?;
            if let Some(worker) = self.tasks[task].processing_on {
                self.inherit_booking(task, worker);
            }
        }
        for key in &view.waiting {
            let task = self.inherited_key(key)?;
            if let Some(request) = self.request_of(task) {
                self.join_line(task, request);
            }
        }
        let find = |address: &Arc<str>| self.inherited_worker(address);
        let kept_worker = view.kept_worker.as_ref().map(find).transpose()?;
        let served = view
            .served
            .iter()
            .map(|address| Ok(find(address)?.number()));
        let served = served.collect::<Result<Vec<_>, InheritError>>()?;
        let Some(room) = &mut self.room else {
            return Ok(());
        };
        for (place, one) in view.passed.iter().enumerate() {
            // Dask's scheduler has refused requests that are not possible.
            let Ok(request) = room.request(&one.amounts, one.threads) else {
                continue;
            };
            let stands = PriorityOrNone::some(one.stands);
            let passes = one.passes;
            room.admission.turns.inherit(
                Waits {
                    request,
                    stands,
                    passes,
                },
                view.kept == Some(place),
            );
        }
        room.admission.kept_place = kept_worker.map(Id::number);
        room.admission.places.set_served(&served);
        room.drains = view.drains;
        Ok(())
    }

    fn inherit_booking(&mut self, task: TaskId, worker: WorkerId) {
        let Some(request) = self.request_of(task) else {
            return;
        };
        let is_beside = self.is_beside(request);
        if let Some(room) = &mut self.room {
            let _ = room.admission.places.book(request, worker.number());
            room.booked.insert(task, (request, worker));
            if is_beside {
                *room.beside.entry(worker).or_default() += 1;
            }
        }
    }
}

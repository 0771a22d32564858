//! The state of requests for resources, as another core or Dask's scheduler goes on from it.

use std::sync::Arc;

use backhaul_placement::resources::{Passed, Place};

use super::compact::PriorityOrNone;
use super::core::SchedulerCore;
use super::error::InheritError;
use super::ids::{Id, WorkerId};
use super::task::{Key, Priority};

/// State of requests for resources, for a core that goes on from there
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoomView {
    /// Keys of tasks that hold what they ask for
    pub booked: Vec<Key>,
    /// Keys of tasks that wait for room, each line in the order in which it would go
    pub waiting: Vec<Key>,
    /// Requests that wait, and others may have gone past
    pub passed: Vec<Passed<Priority>>,
    /// Which of them something is kept for
    pub kept: Option<usize>,
    /// Address of the worker that is kept for it
    pub kept_worker: Option<Arc<str>>,
    /// Addresses of the workers that were sent such tasks, the one first whose last was longest ago
    pub served: Vec<Arc<str>>,
    /// True if something has come back that a task may wait for, and nothing was sent yet
    pub drains: bool,
}

impl SchedulerCore {
    /// Returns the state of requests for resources; `None` if no task has ever made one
    pub fn room_view(&self) -> Option<RoomView> {
        let room = self.room.as_deref().filter(|room| room.is_active)?;
        let view = room.admission.view(|asking| self.waits(asking));
        let worker_of = |place: Place| WorkerId::at(place as usize);
        let address = |worker: WorkerId| Arc::clone(&self.workers[worker].address);
        let mut booked: Vec<_> = room.admission.booked().map(|(task, _)| task).collect();
        booked.sort_by_key(|&task| self.tasks[task].run_id.get());
        let kept_worker = view.kept_place.map(worker_of);
        let key = |task| Arc::clone(&self.tasks[task].key);
        Some(RoomView {
            booked: booked.into_iter().map(key).collect(),
            waiting: view
                .waiting
                .into_iter()
                .map(|(task, _)| key(task))
                .collect(),
            passed: view
                .passed
                .into_iter()
                .map(|one| one.standing(PriorityOrNone::or_nan))
                .collect(),
            kept: view.kept,
            kept_worker: kept_worker
                .filter(|&worker| self.workers.is_current(worker))
                .map(address),
            served: view
                .served
                .into_iter()
                .map(|place| address(worker_of(place)))
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
            let asking = self.asking(task);
            if let Some(worker) = self.tasks[task].processing_on
                && let Some(request) = self.request_of(task)
                && let Some(room) = &mut self.room
            {
                let counts = room.admission.is_beside(request);
                (room.admission).inherit_booking(asking, request, worker.number(), counts);
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
        let passed = view.passed.iter().cloned();
        room.admission.inherit(
            passed.map(|one| one.standing(PriorityOrNone::some)),
            view.kept,
            kept_worker.map(Id::number),
            &served,
        );
        room.drains = view.drains;
        Ok(())
    }
}

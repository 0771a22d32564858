//! Tasks that wait until a worker has room for them, and when they go.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

use backhaul_placement::resources::Signature;

use super::compact::PriorityOrNone;
use super::core::{SchedulerCore, shown};
use super::error::EventError;
use super::ids::{TaskId, WorkerId};
use super::lines::LineKey;
use super::room::Unmet;
use super::task::TaskState;

impl SchedulerCore {
    /// Keeps a task that no worker has room for, or ever will
    pub(super) fn wait_for_room(&mut self, task: TaskId, request: Signature) {
        let key = self.line_key(task, request);
        let one = &self.tasks[task];
        let Some(room) = self.room.as_deref_mut() else {
            return;
        };
        let reason = room.admission.places.unmeetable(request).ok().flatten();
        let can_wait = reason.is_none() && !key.is_restricted();
        if let Some(reason) = reason
            && room.warned.insert(request)
            && let Some(asked) = room.admission.asked(request)
        {
            room.unmet.push(Unmet {
                key: Arc::clone(&one.key),
                amounts: asked.amounts.clone(),
                threads: asked.threads,
                reason,
            });
        }
        let first = room.lines.add(key, task, one.serial, one.priority);
        if can_wait {
            room.admission.turns.refused(&request, first);
        }
    }

    /// Puts a task into its line, in which it waited before
    pub(super) fn join_line(&mut self, task: TaskId, request: Signature) {
        let key = self.line_key(task, request);
        let one = &self.tasks[task];
        if let Some(room) = &mut self.room {
            room.lines.add(key, task, one.serial, one.priority);
        }
    }

    fn line_key(&self, task: TaskId, request: Signature) -> LineKey {
        let one = &self.tasks[task];
        let sorted = |list: Option<&Vec<Arc<str>>>| {
            let mut sorted = list.cloned().unwrap_or_default();
            sorted.sort();
            sorted.dedup();
            sorted
        };
        let requirements = one.requirements.as_deref();
        let mut key = LineKey {
            request,
            workers: sorted(requirements.and_then(|one| one.workers.as_ref())),
            hosts: sorted(requirements.and_then(|one| one.hosts.as_ref())),
            loose: false,
        };
        key.loose = key.is_restricted() && requirements.is_some_and(|one| one.loose);
        key
    }

    /// Sends as many of the tasks that wait as workers have room for, the first ones first; to be
    /// called when all else that an event brings is done
    ///
    /// # Errors
    ///
    /// Errors of the transitions.
    pub(super) fn drain(&mut self) -> Result<(), EventError> {
        while let Some(room) = self.room.as_deref_mut()
            && std::mem::take(&mut room.drains)
        {
            self.drain_once()?;
        }
        Ok(())
    }

    fn drain_once(&mut self) -> Result<(), EventError> {
        let Some(room) = self.room.as_deref_mut() else {
            return Ok(());
        };
        let runs = |place| self.running.contains(WorkerId::at(place as usize));
        if let Some(kept) = room.admission.turns.kept
            && !room.admission.kept_place.is_some_and(runs)
        {
            room.keep_worker(kept, &self.running);
        }
        let mut heads = BinaryHeap::new();
        for number in room.lines.numbers() {
            self.push_head(&mut heads, number);
        }
        while let Some(Reverse(Head { number, .. })) = heads.pop() {
            let Some(room) = self.room.as_deref_mut() else {
                break;
            };
            let Some(key) = room.lines.key(number) else {
                continue;
            };
            let request = key.request;
            if key.is_restricted() {
                if !self.check_first(number) {
                    continue;
                }
            } else {
                let least = room.least_loaded(request, &self.running);
                if !least.is_some_and(|worker| room.has_room(request, worker)) {
                    continue;
                }
            }
            let first = self.room.as_deref_mut();
            let Some((task, serial, _)) = first.and_then(|room| room.lines.first(number)) else {
                continue;
            };
            let name = shown(&self.tasks[task].key);
            self.stimulus = Arc::from(format!("resources-free-{name}"));
            self.follow_one(task, TaskState::Processing)?;
            if !self.waits(task, serial) {
                self.push_head(&mut heads, number);
            }
        }
        Ok(())
    }

    /// Looks whether the first of a line that is restricted may find room: cheaper than to look for it
    fn check_first(&mut self, number: u64) -> bool {
        let room = self.room.as_deref_mut();
        let Some((task, ..)) = room.and_then(|room| room.lines.first(number)) else {
            return false;
        };
        let (Some(room), Some(one)) = (self.room.as_deref(), self.tasks.find(task)) else {
            return false;
        };
        let Some(asks) = one.requirements.as_deref().filter(|asks| !asks.loose) else {
            return true;
        };
        let Some(request) = asks.request.filter(|_| self.keeps()) else {
            return true;
        };
        let has_room = |worker| self.running.contains(worker) && room.has_room(request, worker);
        let mut named = asks.workers.iter().flatten().peekable();
        let mut hosts = asks.hosts.iter().flatten().peekable();
        if named.peek().is_none() && hosts.peek().is_none() {
            return true;
        }
        named.any(|address| self.workers.by_address(address).is_some_and(has_room))
            || hosts.any(|host| {
                let workers = self.host_of(host).and_then(|host| self.hosts.get(&host));
                workers.is_some_and(|workers| workers.iter().any(has_room))
            })
    }

    fn waits(&self, task: TaskId, serial: u32) -> bool {
        let one = self.tasks.find(task);
        one.is_some_and(|one| one.serial == serial && one.state == TaskState::NoWorker)
    }

    /// Notes which task of a line is the first that waits, if any still does
    fn push_head(&mut self, heads: &mut BinaryHeap<Reverse<Head>>, number: u64) {
        loop {
            let Some(room) = self.room.as_deref_mut() else {
                return;
            };
            let Some((task, serial, priority)) = room.lines.first(number) else {
                // It was sent, or no client wants it any more.
                if let Some(key) = room.lines.end(number)
                    && !key.is_restricted()
                {
                    room.admission.left(key.request);
                }
                return;
            };
            let request = room.lines.key(number).map(|key| key.request);
            let is_kept = request.is_some() && room.admission.turns.kept == request;
            if self.waits(task, serial) {
                heads.push(Reverse(Head {
                    comes_later: !is_kept,
                    priority,
                    number,
                }));
                return;
            }
            if let Some(room) = self.room.as_deref_mut() {
                room.lines.discard(number, task, serial);
            }
        }
    }
}

/// The first task of a line: that of a request that something is kept for goes first
#[derive(Debug)]
struct Head {
    comes_later: bool,
    priority: PriorityOrNone,
    number: u64,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_priority = match (self.priority.get(), other.priority.get()) {
            (Some(ours), Some(theirs)) if self.comes_later && other.comes_later => {
                ours.order(&theirs)
            }
            _ => Ordering::Equal,
        };
        let by_turn = self.comes_later.cmp(&other.comes_later);
        by_turn
            .then(by_priority)
            .then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Head {}

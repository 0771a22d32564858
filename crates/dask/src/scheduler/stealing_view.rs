//! Tasks that may be moved, as programs read them.

use std::sync::Arc;

use super::core::SchedulerCore;
use super::error::InheritError;
use super::ids::{TaskId, WorkerId};
use super::stealing::{LEVELS, Move};
use super::task::Key;
use crate::ordered_set::OrderedSet;

/// A task that a victim has been asked for, by key and addresses
#[derive(Clone, Debug, PartialEq)]
pub struct MoveView {
    /// Its key
    pub key: Key,
    /// Address of the victim
    pub victim: Arc<str>,
    /// Address of the thief, which may be gone
    pub thief: Arc<str>,
    /// Work that the victim loses, in seconds
    pub victim_s: f64,
    /// Work that the thief gets, in seconds
    pub thief_s: f64,
    /// Which request
    pub stimulus: Arc<str>,
}

/// All that is known of tasks that may be moved, by keys, prefixes and addresses
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StealingView {
    /// Tasks by worker and level, where there are any
    pub stealable: Vec<(Arc<str>, usize, Vec<Key>)>,
    /// Tasks that victims have been asked for
    pub in_flight: Vec<MoveView>,
    /// Seconds that workers gain and lose by them
    pub occupancy_s: Vec<(Arc<str>, f64)>,
    /// Tasks that they do
    pub tasks: Vec<(Arc<str>, i64)>,
    /// Tasks that were filed while their duration was unknown
    pub unknown: Vec<(Arc<str>, Vec<Key>)>,
    /// How many requests there have been
    pub requests: u64,
}

impl SchedulerCore {
    /// All of it, as it is now; workers that have gone are left out
    pub fn stealing_view(&self) -> Option<StealingView> {
        let stealing = self.stealing.as_ref()?;
        let address = |worker: WorkerId| Arc::clone(&self.workers[worker].address);
        let keys = |tasks: &OrderedSet<TaskId>| -> Vec<Key> {
            let keys = tasks.iter().map(|task| Arc::clone(&self.tasks[task].key));
            keys.collect()
        };
        let mut view = StealingView {
            requests: stealing.requests,
            ..StealingView::default()
        };
        for &worker in self.workers.sorted() {
            for (level, tasks) in stealing
                .stealable
                .get(&worker)
                .into_iter()
                .flat_map(|levels| {
                    levels
                        .iter()
                        .enumerate()
                        .filter(|(_, tasks)| !tasks.is_empty())
                })
            {
                view.stealable.push((address(worker), level, keys(tasks)));
            }
            if let Some(&moved_s) = stealing.in_flight_occupancy_s.get(&worker) {
                view.occupancy_s.push((address(worker), moved_s));
            }
            if let Some(&tasks) = stealing.in_flight_tasks.get(&worker) {
                view.tasks.push((address(worker), tasks));
            }
        }
        for task in stealing.in_flight.iter() {
            let one = &stealing.moves[&task];
            view.in_flight.push(MoveView {
                key: Arc::clone(&self.tasks[task].key),
                victim: address(one.victim),
                thief: Arc::clone(&one.thief_address),
                victim_s: one.victim_s,
                thief_s: one.thief_s,
                stimulus: Arc::clone(&one.stimulus),
            });
        }
        for (&prefix, tasks) in &stealing.unknown {
            let name = Arc::clone(&self.groups[prefix].name);
            view.unknown.push((name, keys(tasks)));
        }
        Some(view)
    }

    /// Takes over what another scheduler knew of it, as [`SchedulerCore::stealing_view`] shows it
    ///
    /// To be called after [`SchedulerCore::begin_stealing`]; without that nothing is taken over.
    ///
    /// # Errors
    ///
    /// [`InheritError`] if the view names an unknown worker, prefix or task. The core must not be used
    /// then.
    pub fn inherit_stealing(&mut self, view: &StealingView) -> Result<(), InheritError> {
        let Some(mut stealing) = self.stealing.take() else {
            return Ok(());
        };
        for (address, level, keys) in &view.stealable {
            let worker = self.inherited_worker(address)?;
            let levels = stealing.stealable.entry(worker);
            let levels = levels.or_insert_with(|| Box::new([const { OrderedSet::new() }; LEVELS]));
            let Some(tasks) = levels.get_mut(*level) else {
                continue;
            };
            *tasks = self.inherited_tasks(keys)?;
            // There are fewer levels than a byte counts.
            let filed = (worker, *level as u8);
            stealing
                .filed
                .extend(tasks.iter().map(|task| (task, filed)));
        }
        for one in &view.in_flight {
            let task = self.inherited_key(&one.key)?;
            let moved = Move {
                victim: self.inherited_worker(&one.victim)?,
                thief: self.inherited_worker(&one.thief)?,
                thief_address: Arc::clone(&one.thief),
                victim_s: one.victim_s,
                thief_s: one.thief_s,
                stimulus: Arc::clone(&one.stimulus),
            };
            stealing.in_flight.insert(task);
            stealing.moves.insert(task, moved);
        }
        for (address, moved_s) in &view.occupancy_s {
            let worker = self.inherited_worker(address)?;
            stealing.in_flight_occupancy_s.insert(worker, *moved_s);
        }
        for (address, tasks) in &view.tasks {
            let worker = self.inherited_worker(address)?;
            stealing.in_flight_tasks.insert(worker, *tasks);
        }
        for (name, keys) in &view.unknown {
            let prefix = self.inherited_prefix(name)?;
            let tasks = self.inherited_tasks(keys)?;
            stealing.unknown.insert(prefix, tasks);
        }
        stealing.requests = view.requests;
        self.stealing = Some(stealing);
        Ok(())
    }
}
